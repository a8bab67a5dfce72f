"""Finds the flows of a process for the dashboard.

A Connect worker has one herder, whose connectors may belong to several flows. A dedicated mirror has one herder for
each flow, and its paths begin with the flow, ``/{source}/{target}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from connect.core.herder_api import HerderApi, NotFound

#: (source, target) to the herder of that flow; a Connect worker has ("", "").
Herders = Mapping[tuple[str, str], HerderApi]

SOURCE: Final = "source"
#: Java's classes, without package and ``Connector``, and what each does for its flow.
_PARTS: Final = {"MirrorSource": SOURCE, "MirrorCheckpoint": "checkpoint", "MirrorHeartbeat": "heartbeat"}


@dataclass(frozen=True, slots=True)
class UiFlow:
    """A flow as pages see it.

    Args:
        name: Unique in this process, such as ``us->eu``.
        prefix: What its REST paths begin with.
        connectors: Names of its connectors, by what they do: source, checkpoint, heartbeat.
    """

    name: str
    source: str
    target: str
    prefix: str
    connectors: Mapping[str, str]
    herder: HerderApi

    def to_json(self) -> dict[str, Any]:
        fields = ("name", "source", "target", "prefix", "connectors")
        return {field: getattr(self, field) for field in fields}


async def flows_of(herders: Herders) -> dict[str, UiFlow]:
    """Return the flows of a process by name, in order. Flows without a MirrorSource are left out, and so are those of
    workers that are still starting."""
    found: list[UiFlow] = []
    for path, herder in list(herders.items()):
        if herder.is_ready():
            found += [each async for each in _flows(path, herder)]
    names = Counter(each.name for each in found)
    named = {each.name if names[each.name] == 1 else f"{each.name} ({each.connectors[SOURCE]})": each for each in found}
    return {
        name: UiFlow(name, each.source, each.target, each.prefix, each.connectors, each.herder)
        for name, each in sorted(named.items())
    }


async def _flows(path: tuple[str, str], herder: HerderApi) -> AsyncIterator[UiFlow]:
    prefix = "".join(f"/{quote(each, safe='')}" for each in path if each)
    sources: list[tuple[tuple[str, str], str]] = []
    others: dict[tuple[str, str], dict[str, str]] = {}
    for name in await herder.connectors():
        try:
            config = herder.known_connector(name).config
        except NotFound:  # deleted meanwhile
            continue
        part = _PARTS.get(config.get("connector.class", "").rpartition(".")[2].removesuffix("Connector"))
        ends = (config.get("source.cluster.alias", "source"), config.get("target.cluster.alias", "target"))
        if part == SOURCE:
            sources.append((ends, name))
        elif part is not None:
            others.setdefault(ends, {})[part] = name
    for (source, target), name in sources:
        connectors = {SOURCE: name, **others.get((source, target), {})}
        yield UiFlow(f"{source}->{target}", source, target, prefix, connectors, herder)
