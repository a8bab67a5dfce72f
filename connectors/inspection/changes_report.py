"""Reports what a running flow would change on its clusters and what differs from its settings, in the words of
``heliograph plan``."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from connect.kafka.concurrency import wall_ms
from connect.kafka.long_log import LongLogs
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.inspection.flow_plan import FlowDrift, InternalTopics, Planned, drift_of_flow
from connectors.inspection.plan_words import ACTIONS, drift_cells, in_words
from connectors.kept_reports import rows_asked
from connectors.source.plugin import access_of
from connectors.source.worker_context import MirrorHost, looked_at_parts

PLAN: Final = "plan"
DRIFT: Final = "drift"
_MOST_ROWS: Final = 1000
_DEFAULT_ROWS: Final = 100
_FRESH_S: Final = 30.0

_Found = tuple[FlowDrift, int]


async def changes_report(
    kind: str, settings: MirrorSourceSettings, clients: FlowClients, query: Mapping[str, str], host: MirrorHost
) -> dict[str, Any] | None:
    """Return the JSON of a report: ``top`` of the rows that contain ``search``, of a look at most 30 s old. None if it
    is not one of these.

    Raises ConfigError if ``top`` is not a number, HeliographError if a cluster does not answer.
    """
    if kind not in (PLAN, DRIFT):
        return None
    top = rows_asked(query.get("top") or str(_DEFAULT_ROWS))
    drift, at_ms = await host.kept.get(("changes", settings.name), _FRESH_S, partial(_look, settings, clients))
    rows, counts = await asyncio.to_thread(_rows, drift, kind, query.get("search", "").lower())
    command = f"heliograph plan mm2.properties --flow {shlex.quote(settings.flow)}"
    return {
        "connector": settings.name,
        "flow": settings.flow,
        "at_ms": at_ms,
        "counts": counts,
        "matching": len(rows),
        "rows": rows[:top],
        "notes": drift.plan.notes[:_MOST_ROWS],
        "unknown": list(dict.fromkeys((*drift.plan.unknown, *drift.unknown)))[:_MOST_ROWS],
        "command": command if kind == PLAN else f"{command} --drift",
    }


async def _look(settings: MirrorSourceSettings, clients: FlowClients) -> _Found:
    long_logs = LongLogs()
    try:
        async with looked_at_parts(clients, settings.source_alias, settings.target_alias, long_logs) as parts:
            # The running worker has made its internal topics.
            return await drift_of_flow(settings, parts, access_of(settings, parts), InternalTopics(())), wall_ms()
    finally:
        long_logs.close()


def _rows(drift: FlowDrift, kind: str, search: str) -> tuple[list[Sequence[str]], dict[str, int]]:
    """Return the rows that contain ``search``, and how many changes or differences there are of each kind."""
    if kind == PLAN:
        rows = [*_changes(drift.plan.changes), *_changes(drift.plan.later, "later: ")]
    else:
        rows = [drift_cells(one) for one in drift.left]
    return [row for row in rows if search in " ".join(row).lower()], dict(Counter(row[0] for row in rows))


def _changes(planned: Sequence[Planned], before: str = "") -> list[tuple[str, ...]]:
    return [(before + ACTIONS[type(one.change)][1], one.cluster, *in_words(one.change)) for one in planned]
