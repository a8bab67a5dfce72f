"""The reference of all settings in Markdown, for ``heliograph config --reference`` and ``docs/reference``.

``python -m connect.cli.reference FOLDER`` writes the pages of ``docs/reference``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connect.core.config.client_settings import CLIENTS, REFUSED_SECURITY, SUPPORTED_SECURITY
from connect.core.config.config_def import REQUIRED, ConfigDef, Importance, Required, Value
from connect.core.config.connector_settings import CONNECTOR, SOURCE_CONNECTOR, topic_group
from connect.core.config.rest_settings import REST
from connect.core.config.security_settings import SECURITY
from connect.core.config.worker_config import ineffective
from connect.core.config.worker_settings import OWN as OWN_OF_WORKER
from connect.core.config.worker_settings import WORKER
from connect.core.errors import ConfigError
from connect.plugins import builtin
from connectors.config import definitions
from connectors.config.connector_configs import CONSUMER, PRODUCER
from connectors.config.ignored_keys import connector_notices

#: Returns whether a setting works, as a word or two.
Effect = Callable[[str], str]
_WORKS: Final = "works"
_IGNORED: Final = "ignored, with a warning"


def markdown(config: ConfigDef, effect: Effect | None = None) -> str:
    """Format a table of all settings, the important ones first; with ``effect`` a column says which ones work."""
    order = list(Importance)
    rows = sorted(config.settings.values(), key=lambda each: (order.index(each.importance), each.name))
    columns = ("key", "type", "default", "valid values", *(() if effect is None else ("here",)), "meaning")
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for each in rows:
        check = "" if each.check is None else str(each.check)
        cells = [f"`{each.name}`", str(each.type), _default_text(each.default), check, each.doc.replace("<", "&lt;")]
        if effect is not None:
            cells.insert(-1, effect(each.name))
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


_SECURITY: Final = "For `security.protocol`, `ssl.*` and `sasl.*` see [security](security.md)."
_NOTE: Final = "This page is generated; `heliograph config --reference` prints it.\n"


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its title, the text before the tables, the tables by heading, and which of their settings work."""

    title: str
    text: str
    tables: tuple[tuple[str, ConfigDef], ...]
    effect: Effect | None = None

    def markdown(self) -> str:
        parts = [f"# {self.title}\n", f"{self.text}\n", _NOTE]
        for heading, config in self.tables:
            parts += [f"## {heading}\n", markdown(config, self.effect) if config.settings else "No settings.\n"]
        return "\n".join(parts)


def pages() -> dict[str, Page]:
    """Return the pages by name."""
    worker = _without(WORKER, SECURITY, REST, OWN_OF_WORKER)
    return {
        "worker": Page(
            "Worker",
            "The file of `connect-distributed`. " + _SECURITY + " Keys with the prefix `producer.`, `consumer.` or "
            "`admin.` are passed to the clients of connectors.",
            (("Settings", worker), ("REST", REST), ("Settings that Java does not have", OWN_OF_WORKER)),
            lambda key: _IGNORED if any(ineffective({key: ""})) else _WORKS,
        ),
        "source": Page(
            "Source connectors",
            "Settings of every connector, in addition to its own.",
            (
                ("Every connector", CONNECTOR),
                ("Source connectors", _without(SOURCE_CONNECTOR, CONNECTOR)),
                ("Topics that connectors create", topic_group("default", REQUIRED, REQUIRED, include=(".*",))),
                ("Topics of a group; null means the default group's value", topic_group("<group>", None, None)),
            ),
        ),
        "mirror": Page(
            "Mirror connectors",
            "The three connectors of MirrorMaker 2. In `mm2.properties` the same keys apply to every flow, or with the "
            "prefix `us->eu.` to one. The settings of [every connector](source.md) apply too.",
            (
                ("MirrorSourceConnector", _without(definitions.SOURCE, CONNECTOR, SECURITY, definitions.OWN)),
                ("MirrorSourceConnector: DefaultConfigPropertyFilter", definitions.USE_DEFAULTS_FROM),
                ("MirrorSourceConnector: settings that Java does not have", definitions.OWN),
                ("MirrorCheckpointConnector", _without(definitions.CHECKPOINT, CONNECTOR, SECURITY)),
                ("MirrorHeartbeatConnector", _without(definitions.HEARTBEAT, CONNECTOR, SECURITY)),
                ("The source's consumer, with prefix `consumer.` or `source.consumer.`", CONSUMER),
                ("The producer of records, with prefix `producer.override.`", PRODUCER),
            ),
            _of_mirror,
        ),
        "plugins": Page(
            "Plugins",
            "The built-in connectors, converters, transformations and predicates with their settings. Settings of a "
            "converter have the prefix `key.converter.`, `value.converter.` or `header.converter.`, those of a "
            "transformation `transforms.<alias>.`.",
            tuple(_plugins()),
        ),
        "clients": Page(
            "Clients of connectors",
            "Settings with the prefixes `producer.override.`, `consumer.override.` and `admin.override.`, if the "
            "worker's policy allows them, with the defaults of Java's clients. " + _SECURITY,
            tuple((kind.capitalize(), _without(config, SECURITY)) for kind, config in CLIENTS.items()),
        ),
        "security": Page(
            "Security",
            "How Kafka clients connect to brokers. The keys apply in a worker's file, with the prefix of a client, or "
            "with that of a cluster in `mm2.properties`. [Security](../security.md) says which are supported.",
            (("Settings", SECURITY),),
            lambda key: _WORKS if key in SUPPORTED_SECURITY else "refused" if key in REFUSED_SECURITY else _IGNORED,
        ),
    }


def _of_mirror(key: str) -> str:
    """Settings of a connector's clients are declared because they work."""
    is_client = key in CONSUMER.settings or key in PRODUCER.settings
    return _IGNORED if not is_client and connector_notices({key: ""}) else _WORKS


def reference(names: Sequence[str] = ()) -> str:
    """Return the text of the named pages, or of all. Raises ConfigError for an unknown page."""
    known = pages()
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no page '{name}'. Use one of {', '.join(known)}")
    return "\n".join(known[name].markdown() for name in names or known)


def write(folder: Path) -> None:
    """Write every page and the index."""
    found = pages()
    for name, page in found.items():
        (folder / f"{name}.md").write_text(page.markdown(), "utf-8")
    (folder / "README.md").write_text(index(found), "utf-8")


def index(found: dict[str, Page]) -> str:
    lines = "".join(f"* [{page.title}]({name}.md)\n" for name, page in found.items())
    return f"# Settings\n\nAll settings with type, default and meaning.\n\n{_NOTE}\n{lines}"


def _without(config: ConfigDef, *others: ConfigDef) -> ConfigDef:
    left_out = {key for other in others for key in other.settings}
    return ConfigDef({key: each for key, each in config.settings.items() if key not in left_out})


def _plugins() -> Iterable[tuple[str, ConfigDef]]:
    """Yield a table for each class; a converter has the same settings as a header converter."""
    converters = (*builtin.CONVERTERS, *builtin.HEADER_CONVERTERS)
    seen: dict[str, ConfigDef] = {}
    for each in (*builtin.CONNECTORS, *converters, *builtin.TRANSFORMATIONS, *builtin.PREDICATES):
        seen.setdefault(each.name, each.config_def)
    return ((f"`{name}`", config) for name, config in seen.items())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
