"""Reports of a checkpoint connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from connect.api.connector import Props
from connect.kafka.concurrency import wall_ms
from connectors.kept_reports import KeptReports, rows_asked

GROUPS: Final = "groups"
MOVE: Final = "move"
_KINDS: Final = {GROUPS: ("search", "group", "top"), MOVE: ("group", "rehearse", "rest", "top")}
#: How long an answer is given again.
_FRESH_S: Final = 5.0


async def flow_report(
    worker: Mapping[str, str], kept: KeptReports, kind: str, props: Props, query: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return a report, None if there is none of this ``kind``. ``worker`` are the worker's properties, with references
    resolved.

    Raises:
        ConfigError: ``top`` is not a number, or a setting is invalid.
        RetriableError: The clusters did not answer in time.
    """
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
    from connectors.reports.flow_site import flow_site
    from connectors.reports.group_report import groups_as_json, read_groups
    from connectors.reports.move_report import look_at_move, move_as_json

    group = asked["group"]
    async with flow_site(props, worker) as site:
        if kind == GROUPS:
            seen, matching = await read_groups(site, asked["search"], group)
            shown = site.checkpoints, seen, matching, top
            return groups_as_json(*shown, with_partitions=bool(group), search=asked["search"])
        look = await look_at_move(site, [group] if group else [], rehearses=asked["rehearse"] == "true")
        return move_as_json(look, site.checkpoints.name, wall_ms(), top, asked["rest"])
