"""``heliograph topology``, which shows the clusters and flows of a file from their heartbeats.

It prints a line for each flow, and for each cluster a tree of the clusters whose records reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.text import Text
from rich.tree import Tree

from connect.api.policy import ReplicationPolicy
from connect.cli.console import FORMAT, exit_code
from connect.cli.tables import ERROR, console, show, show_json, table, text
from connect.core.errors import ConfigError, HeliographError
from connect.core.wording import printable
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import wall_ms
from connect.kafka.security.connection_settings import connection_settings
from connectors import heartbeat
from connectors.config.definitions import HEARTBEAT, SOURCE
from connectors.config.mm2_properties import Connector, Flow, MirrorMakerConfig, load
from connectors.heartbeat import Age, ClusterHeartbeats, ConfiguredFlow, FlowHealth, FlowState, Way
from connectors.policy import make_policy

_NOT_ALIVE: Final = dict.fromkeys((FlowState.STOPPED, FlowState.NONE), ERROR)
_STYLES: Final = {FlowState.ALIVE: "green", FlowState.OFF: "", FlowState.UNKNOWN: "yellow", **_NOT_ALIVE}
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def show_topology(clusters: Sequence[ClusterHeartbeats], flows: Sequence[FlowHealth], ways: Sequence[Way]) -> None:
    names = [one.name if one.in_file else f"{one.name} (not in the file)" for one in flows]
    rows = ((name, _state(one.state), age_words(one.age)) for name, one in zip(names, flows, strict=True))
    console().print(table(("flow", "its worker", "last heartbeat"), rows))
    console().print("Sources of records, from mirrored heartbeats:\n", soft_wrap=True)
    for cluster in clusters:
        console().print(_tree(cluster, [way for way in ways if way.cluster == cluster.alias]))
    for cluster in clusters:
        if cluster.error:
            print()
            show(f"not checked: {cluster.error}", ERROR)


def _state(state: FlowState) -> Text:
    return text(state.value, _STYLES[state])


def _tree(cluster: ClusterHeartbeats, ways: Sequence[Way]) -> Tree:
    tree = Tree(Text(printable(cluster.alias), style="bold"))
    if cluster.error:
        tree.add(Text("not checked", style=_STYLES[FlowState.UNKNOWN]))
    elif not ways:
        tree.add(Text("no mirrored heartbeats"))
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for way in ways:
        for depth in range(1, len(way.through) + 1):
            through = way.through[:depth]
            if through not in branches:
                label = Text(f"<- {printable(through[-1])}")
                branches[through] = branches[through[:-1]].add(label)
        branches[way.through].label = _label(way)
    return tree


def _label(way: Way) -> Text:
    hops = "1 hop" if len(way.through) == 1 else f"{len(way.through)} hops"
    label = Text(f"<- {printable(way.through[-1])}  {hops}, ")
    word = "" if way.state is FlowState.ALIVE else f"{way.state.value}: "
    return label.append(f"{word}{age_words(way.age)}", style=_STYLES[way.state])


def age_words(age: Age | None) -> str:
    """Format an age: ``0.4 s ago`` or ``more than 3 h ago``."""
    if age is None:
        return "none"
    unit = next(((size, word) for size, word in _UNITS if age.seconds >= size), None)
    reported = f"{age.seconds:.1f} s" if unit is None else f"{age.seconds / unit[0]:.0f} {unit[1]}"
    return f"more than {reported} ago" if age.at_least else f"{reported} ago"


_TIMEOUT_S: Final = 15.0
_SOON_S: Final = 5.0
#: A flow without a heartbeat for this time has stopped, unless another time is given.
STALE_AFTER_S: Final = 30.0


def run_topology(file: Path, *, stale_after_s: float, as_json: bool) -> int:
    """Print the topology and return the exit code: 0 every flow and way is alive, 2 one is not, 1 a cluster could not
    be checked. Raises ConfigError if the file is wrong."""
    config = load(file)
    seen, health, ways = asyncio.run(heartbeats_of(config, config.flows_to_run(), stale_after_s))
    if as_json:
        show_json(topology_as_json(list(seen.values()), health, ways))
    else:
        show_topology(list(seen.values()), health, ways)
    return exit_code(unknown=any(one.error for one in seen.values()), found=heartbeat.has_stopped(health, ways))


async def health_of(config: MirrorMakerConfig, flows: Sequence[Flow]) -> dict[str, FlowHealth]:
    """Return what the heartbeats on the targets of flows say about the flows, by name; a target that does not answer
    soon leaves them unknown. Raises ConfigError if the file is wrong."""
    seen = await _look(config, dict.fromkeys(flow.target for flow in flows), flows, _SOON_S)
    health = heartbeat.flow_health(map(_wanted, flows), seen, wall_ms(), STALE_AFTER_S)
    return {one.name: one for one in health}


async def heartbeats_of(
    config: MirrorMakerConfig, flows: Sequence[Flow], stale_after_s: float
) -> tuple[dict[str, ClusterHeartbeats], list[FlowHealth], list[Way]]:
    """Return the heartbeats of the clusters of flows by alias, and what they say about the flows and their ways. Raises
    ConfigError if the file is wrong."""
    aliases = [alias for alias in config.clusters if any(alias in (flow.source, flow.target) for flow in flows)]
    seen = await _look(config, aliases, flows, _TIMEOUT_S)
    now_ms, wanted = wall_ms(), [_wanted(flow) for flow in flows]
    health = heartbeat.flow_health(wanted, seen, now_ms, stale_after_s)
    return seen, list(health), list(heartbeat.way_health(wanted, seen.values(), now_ms, stale_after_s))


def topology_as_json(
    clusters: Sequence[ClusterHeartbeats], flows: Sequence[FlowHealth], ways: Sequence[Way]
) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    return {
        "format": FORMAT,
        "complete": not any(one.error for one in clusters),
        "clusters": [{"alias": one.alias, "error": one.error or None} for one in clusters],
        "flows": [{"flow": one.name, **_seen(one)} for one in flows],
        "ways": [
            {
                "cluster": one.cluster,
                "from": one.through[-1],
                "through": list(one.through),
                "hops": len(one.through),
                "topic": one.topic,
                **_seen(one),
            }
            for one in ways
        ],
    }


def _seen(one: FlowHealth | Way) -> dict[str, Any]:
    age: dict[str, Any] = {"age_seconds": None if one.age is None else one.age.seconds}
    if one.age is not None and one.age.at_least:
        age["at_least"] = True
    return {"state": one.state.value, "in_file": one.in_file, **age}


async def _look(
    config: MirrorMakerConfig, aliases: Iterable[str], flows: Sequence[Flow], within_s: float
) -> dict[str, ClusterHeartbeats]:
    found = await asyncio.gather(*(_look_at(config, alias, flows, within_s) for alias in aliases))
    return {one.alias: one for one in found}


async def _look_at(config: MirrorMakerConfig, alias: str, flows: Sequence[Flow], within_s: float) -> ClusterHeartbeats:
    """Read the heartbeats of a cluster; the result has the error if it does not answer. Raises ConfigError."""
    policies = _policies(flow for flow in flows if flow.target == alias) or _policies(flows)
    props, name = config.client_properties(alias), f"cluster {alias}"
    cluster = Cluster(connection_settings(props, client_id="heliograph-topology", where=name), alias)
    try:
        async with asyncio.timeout(within_s):
            return ClusterHeartbeats(alias, await heartbeat.read_heartbeats(cluster, policies, within_s), policies)
    except ConfigError:
        raise
    except HeliographError as error:
        return ClusterHeartbeats(alias, policies=policies, error=str(error))
    except TimeoutError:
        return ClusterHeartbeats(alias, policies=policies, error=f"{name} does not answer within {within_s:g} s")
    finally:
        await cluster.close()


def _policies(flows: Iterable[Flow]) -> list[ReplicationPolicy]:
    return [make_policy(flow.config.resolved(flow.connector_config())) for flow in flows]


def _wanted(flow: Flow) -> ConfiguredFlow:
    values = HEARTBEAT.parse(flow.config.resolved(flow.connector_config(Connector.HEARTBEAT)))
    interval_s = values.integer("emit.heartbeats.interval.seconds")
    beats = values.boolean("emit.heartbeats.enabled") and interval_s >= 0
    copying = SOURCE.parse(flow.config.resolved(flow.connector_config())) if flow.enabled else None
    carries = copying is not None and copying.boolean("heartbeats.replication.enabled")
    return ConfiguredFlow(flow.source, flow.target, carries, interval_s if beats else None)
