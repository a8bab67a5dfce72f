"""Finds the flows of a process, and takes a snapshot of them all for the dashboard.

A Connect worker has one herder, whose connectors may belong to several flows. A dedicated mirror has one herder for
each flow, and its paths begin with the flow, ``/{source}/{target}``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from connect.core.errors import HeliographError
from connect.core.herder_api import HerderApi, NotFound
from connect.core.model import State
from connect.kafka.concurrency import gather_limited

log = logging.getLogger(__name__)

#: (source, target) to the herder of that flow; a Connect worker has ("", "").
Herders = Mapping[tuple[str, str], HerderApi]

SOURCE: Final = "source"
#: Java's classes, without package and ``Connector``, and what each does for its flow.
_PARTS: Final = {"MirrorSource": SOURCE, "MirrorCheckpoint": "checkpoint", "MirrorHeartbeat": "heartbeat"}
OVERVIEW: Final = "overview"
_ANSWERS_WITHIN_S: Final = 10.0
#: Failed tasks whose errors a snapshot contains.
_MOST_ERRORS: Final = 3


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


async def snapshot(herders: Herders) -> dict[str, Any]:
    """Return all flows by name: each its overview report and the states of its connectors."""
    flows = await flows_of(herders)
    shown = await gather_limited(_shown, flows.values())
    starting = [stage for herder in herders.values() if not herder.is_ready() and (stage := herder.stage() or "...")]
    return {"flows": dict(zip(flows, shown, strict=True)), "starting": starting}


async def _shown(flow: UiFlow) -> dict[str, Any]:
    """Return a flow of the snapshot; ``error`` says why it has no overview. Other flows are shown all the same."""
    states = {part: _state(flow.herder, name) for part, name in flow.connectors.items()}
    overview, error = None, None
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            overview = await flow.herder.connector_report(flow.connectors[SOURCE], OVERVIEW, {})
    except TimeoutError:
        error = f"{flow.name} gave no overview within {_ANSWERS_WITHIN_S:.0f} s."
    except HeliographError as refusal:
        error = str(refusal)
    except Exception as defect:
        log.error("%s: its overview failed because of a bug", flow.name, exc_info=defect)
        error = f"The overview of {flow.name} failed ({type(defect).__name__}); see the worker's log."
    return {**flow.to_json(), "states": states, OVERVIEW: overview, "error": error}


def _state(herder: HerderApi, name: str) -> dict[str, Any] | None:
    """Return the state of a connector, how many of its tasks are in which, and why some failed; None before it has a
    state."""
    try:
        info = herder.connector_status(name)
    except NotFound:
        return None
    parts = [("connector", info.connector), *((f"task {number}", status) for number, status in info.tasks.items())]
    failed = [(of, status) for of, status in parts if status.state == State.FAILED]
    return {
        "state": str(info.connector.state),
        "tasks": Counter(str(status.state) for status in info.tasks.values()),
        "errors": [{"of": of, "reason": first_line(status.trace)} for of, status in failed[:_MOST_ERRORS]],
    }


def first_line(trace: str | None) -> str:
    return (trace or "").strip().partition("\n")[0]
