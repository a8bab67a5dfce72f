"""``/docs``: the API as a page of plain HTML. It loads nothing, neither scripts nor styles of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "code{background:#eee;padding:.1em .3em}summary{cursor:pointer;padding:.2em 0}"
    "b{display:inline-block;min-width:5em}table{border-collapse:collapse;margin:.5em 1em}"
    "td,th{border:1px solid #ccc;padding:.1em .6em;text-align:left;font-weight:normal}"
)


def docs_page(document: Mapping[str, Any], root_path: str) -> str:
    """The page of an OpenAPI document that is served at ``{root_path}/openapi.json``."""
    title = escape(document["info"]["title"])
    operations = "".join(
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    link = escape(f"{root_path}/openapi.json")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>"
        f'<body><h1>{title}</h1><p>For programs: <a href="{link}">{link}</a></p>{operations}</body></html>'
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    text = escape(operation.get("description") or operation.get("summary", ""))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{where}</td><td>{escape(kind)}</td></tr>"
        for name, where, kind in _parameters(operation)
    )
    table = f"<table><tr><th>parameter<th>in<th>type</tr>{rows}</table>" if rows else ""
    statuses = ", ".join(escape(each) for each in operation.get("responses", {}))
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code></summary>"
        f"<p>{text}</p>{table}<p>Statuses: {statuses}</p></details>"
    )


def _parameters(operation: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, place and type of each; the body comes last."""
    for each in operation.get("parameters", ()):
        kind = _kind(each.get("schema", {}))
        yield each["name"], each["in"], kind if each.get("required") else f"{kind}, optional"
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield media, "body", _kind(content.get("schema", {}))


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    return str(schema.get("type", "any"))
