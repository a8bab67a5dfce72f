"""Declared settings as tables of Markdown: the source of ``docs/reference``."""

from __future__ import annotations

from connect.core.config import ConfigDef, Importance, Required, Value


def markdown(config: ConfigDef) -> str:
    """A table of all settings, the important ones first."""
    order = list(Importance)
    rows = sorted(config.settings.values(), key=lambda each: (order.index(each.importance), each.name))
    lines = ["| key | type | default | valid values | meaning |", "| --- | --- | --- | --- | --- |"]
    for each in rows:
        check = "" if each.check is None else str(each.check)
        cells = (f"`{each.name}`", str(each.type), _default_text(each.default), check, each.doc.replace("<", "&lt;"))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default_text(default: Value | Required) -> str:
    match default:
        case Required():
            return "required"
        case None:
            return "null"
        case bool():
            return str(default).lower()
        case tuple():
            return f"`{','.join(default)}`" if default else "empty"
        case "":
            return "empty"
        case _:
            return f"`{default}`"
