"""``heliograph topology``: the clusters and flows of a file as their heartbeats show them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from connect.api.policy import ReplicationPolicy
from connect.cli.connectors_view import show_json
from connect.cli.console import EXIT_OK
from connect.cli.topology_view import show_topology
from connect.core.errors import ConfigError, HeliographError
from connect.kafka.clock import wall_ms
from connect.kafka.cluster import Cluster
from connect.kafka.settings import connection_settings
from connectors.config_defs import HEARTBEAT, SOURCE
from connectors.flow_health import FlowHealth, Seen, Wanted, Way, flows_told, has_stopped, ways_told
from connectors.flows import Connector, Flow, MirrorMakerConfig, load
from connectors.heartbeat_reader import read_heartbeats
from connectors.policies import make_policy

#: Of the JSON; it changes where a reader of an older one would misunderstand.
FORMAT: Final = 1
EXIT_UNKNOWN: Final = 1
EXIT_STOPPED: Final = 2
_TIMEOUT_S: Final = 15.0


def run_topology(file: Path, *, stale_after_s: float, as_json: bool) -> int:
    """Print it; the exit code: 0 every flow and way is alive, 2 one is not, 1 a cluster could not be looked at.

    Raises ConfigError for a file that is wrong.
    """
    config = load(file)
    flows = config.flows_to_run()
    seen = asyncio.run(_look(config, flows))
    now_ms = wall_ms()
    wanted = [_wanted(flow) for flow in flows]
    health = flows_told(wanted, seen, now_ms, stale_after_s)
    ways = ways_told(wanted, seen.values(), now_ms, stale_after_s)
    if as_json:
        show_json(topology_as_json(list(seen.values()), health, ways))
    else:
        show_topology(list(seen.values()), health, ways)
    if any(one.error for one in seen.values()):
        return EXIT_UNKNOWN
    return EXIT_STOPPED if has_stopped(health, ways) else EXIT_OK


def topology_as_json(clusters: Sequence[Seen], flows: Sequence[FlowHealth], ways: Sequence[Way]) -> dict[str, Any]:
    """See docs/operations.md."""
    return {
        "format": FORMAT,
        "complete": not any(one.error for one in clusters),
        "clusters": [{"alias": one.alias, "error": one.error or None} for one in clusters],
        "flows": [{"flow": one.name, "state": one.state.value, "in_file": one.in_file, **_age(one)} for one in flows],
        "ways": [
            {
                "cluster": one.cluster,
                "from": one.through[-1],
                "through": list(one.through),
                "hops": len(one.through),
                "topic": one.topic,
                "state": one.state.value,
                "in_file": one.in_file,
                **_age(one),
            }
            for one in ways
        ],
    }


def _age(one: FlowHealth | Way) -> dict[str, Any]:
    if one.age is None:
        return {"age_seconds": None}
    return {"age_seconds": one.age.seconds, **({"at_least": True} if one.age.at_least else {})}


async def _look(config: MirrorMakerConfig, flows: Sequence[Flow]) -> dict[str, Seen]:
    aliases = [alias for alias in config.clusters if any(alias in (flow.source, flow.target) for flow in flows)]
    found = await asyncio.gather(*(_look_at(config, alias, flows) for alias in aliases))
    return {one.alias: one for one in found}


async def _look_at(config: MirrorMakerConfig, alias: str, flows: Sequence[Flow]) -> Seen:
    """One cluster. Raises ConfigError; what does not answer is told in what is seen."""
    policies = _policies(flow for flow in flows if flow.target == alias) or _policies(flows)
    props = config.client_properties(alias)
    client_id = "heliograph-topology"
    cluster = Cluster(connection_settings(props, client_id=client_id, where=f"cluster {alias}"), alias)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return Seen(alias, await read_heartbeats(cluster, policies, _TIMEOUT_S), policies)
    except ConfigError:
        raise
    except HeliographError as error:
        return Seen(alias, policies=policies, error=str(error))
    except TimeoutError:
        return Seen(alias, policies=policies, error=f"cluster {alias} does not answer within {_TIMEOUT_S:g} s")
    finally:
        await cluster.close()


def _policies(flows: Iterable[Flow]) -> list[ReplicationPolicy]:
    return [make_policy(flow.config.resolved(flow.connector_config())) for flow in flows]


def _wanted(flow: Flow) -> Wanted:
    values = HEARTBEAT.parse(flow.config.resolved(flow.connector_config(Connector.HEARTBEAT)))
    interval_s = values.integer("emit.heartbeats.interval.seconds")
    beats = values.boolean("emit.heartbeats.enabled") and interval_s >= 0
    carries = flow.enabled and SOURCE.parse(flow.config.resolved(flow.connector_config())).boolean(
        "heartbeats.replication.enabled"
    )
    return Wanted(flow.source, flow.target, carries, interval_s if beats else None)
