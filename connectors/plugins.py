"""The three connectors under Java's class names, for a worker's plugins, and the reports of a checkpoint connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from connect.api.connector import Props
from connect.api.plugins import KAFKA_VERSION, PluginDescription, PluginKind
from connect.core.config.config_def import ConfigDef
from connect.kafka.concurrency import wall_ms
from connectors.checkpoint.connector import MirrorCheckpointConnector, SharedMaps
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, SOURCE
from connectors.connector_base import KeptReports, MirrorConnector, rows_asked
from connectors.heartbeat import MirrorHeartbeatConnector
from connectors.inspection.changes_report import changes_report
from connectors.source.plugin import MirrorSource
from connectors.source.worker_context import MirrorHost

_PACKAGE: Final = "org.apache.kafka.connect.mirror."
#: Reports of a checkpoint connector, and the queries of each.
_GROUPS: Final = "groups"
_KINDS: Final = {_GROUPS: ("search", "group", "top"), "move": ("group", "rehearse", "rest", "top")}
#: How long an answer is given again.
_FRESH_S: Final = 5.0


def mirror_plugins(host: MirrorHost) -> tuple[PluginDescription, ...]:
    """Return the descriptions of the connectors, which all use ``host``."""
    kind, maps = PluginKind.SOURCE, SharedMaps(host.long_logs)
    reports = partial(consumer_group_report, host.worker, host.kept)
    made: tuple[tuple[str, Callable[[], MirrorConnector], ConfigDef], ...] = (
        ("MirrorCheckpointConnector", lambda: MirrorCheckpointConnector(host.written, maps, reports), CHECKPOINT),
        ("MirrorHeartbeatConnector", lambda: MirrorHeartbeatConnector(host.written), HEARTBEAT),
        ("MirrorSourceConnector", lambda: MirrorSource(host, changes_report), SOURCE),
    )
    return tuple(PluginDescription(kind, _PACKAGE + name, make, of, KAFKA_VERSION) for name, make, of in made)


async def consumer_group_report(
    worker: Mapping[str, str], kept: KeptReports, kind: str, props: Props, query: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return a report of a checkpoint connector, None if there is none of this ``kind``. ``worker`` are the worker's
    properties, with references resolved. Raises ConfigError if ``top`` is not a number, or a setting is invalid, and
    RetriableError if the clusters did not answer in time."""
    if kind not in _KINDS:
        return None
    asked = {name: query.get(name, "") for name in _KINDS[kind]}
    top = rows_asked(asked["top"] or "20")
    key = kind, tuple(sorted(props.items())), tuple(asked.items())
    return await kept.get(key, _FRESH_S, lambda: _read(kind, props, worker, asked, top))


async def _read(
    kind: str, props: Props, worker: Mapping[str, str], asked: Mapping[str, str], top: int
) -> dict[str, Any]:
    # Loaded here, in the report's thread, because a worker starts without a failover's modules.
    from connectors.consumer_group_reports import checklist_as_json, groups_as_json, look_at_move, read_groups
    from connectors.failover.clusters_and_lease import flow_site

    group = asked["group"]
    async with flow_site(props, worker) as site:
        if kind == _GROUPS:
            seen, matching = await read_groups(site, asked["search"], group)
            shown = site.checkpoints, seen, matching, top
            return groups_as_json(*shown, with_partitions=bool(group), search=asked["search"])
        look = await look_at_move(site, [group] if group else [], rehearses=asked["rehearse"] == "true")
        return checklist_as_json(look, site.checkpoints.name, wall_ms(), top, asked["rest"])
