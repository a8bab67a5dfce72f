"""Export what the last verification of each flow found, for Prometheus: one record of the target, read each minute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from prometheus_client.metrics_core import Metric

from connect.core.errors import HeliographError
from connect.core.metrics import Families, Rows
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_progress import UNKNOWN, age_ms
from connectors.flow_verified import VerifiedFacts
from connectors.source.worker_context import FlowParts, MirrorHost
from connectors.verification.last_run import read_last_run

log = logging.getLogger(__name__)

_PREFIX: Final = "kafka_connect_mirror_MirrorSourceConnector_"
_TICK_S: Final = 1.0
_READ_EACH_S: Final = 60.0
#: Of a flow that was never verified.
_NOTHING: Final = VerifiedFacts(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
#: The two of what is unverified are of the partitions here, the others are the same on every worker.
_ROWS: Final[Rows[VerifiedFacts]] = (
    (
        "flow_verified_age_ms",
        "Time since a verification of the whole flow last ended; -1 if none did.",
        lambda one, now_ms: age_ms(one.ended_ms, now_ms),
    ),
    (
        "flow_verified_records",
        "Source records compared by verifications since the last full one; -1 if none ended.",
        lambda one, _: one.records,
    ),
    (
        "flow_verified_differences",
        "Differences that verifications found since the last full one; -1 if none ended.",
        lambda one, _: one.differences,
    ),
    (
        "flow_verified_unread_partitions",
        "Partitions that the last verification could not compare; -1 if none ended.",
        lambda one, _: one.unread,
    ),
    (
        "flow_verified_recreated_topics",
        "Topics that were recreated since, at the source or the target; -1 if none ended.",
        lambda one, _: UNKNOWN if one.records < 0 else len(one.recreated),
    ),
    (
        "flow_unverified_offsets",
        "Source offsets copied since the last verification, of partitions here; -1 if none ended.",
        lambda one, _: one.new_offsets,
    ),
    (
        "flow_unverified_partitions",
        "Partitions here with copies of which no verification has compared any; -1 if none ended.",
        lambda one, _: one.new_partitions,
    ),
)


class Watched(Protocol):
    """A connector that this worker watches."""

    settings: MirrorSourceSettings
    parts: FlowParts


async def read_last_runs(host: MirrorHost, watched: Mapping[str, Watched]) -> None:
    """Read what is known of the connectors in ``watched`` into ``host.verified``, without end."""
    due_s: dict[str, float] = {}
    said: dict[str, str] = {}
    while True:
        for name, one in list(watched.items()):
            if time.monotonic() < due_s.get(name, 0.0):
                continue
            due_s[name] = time.monotonic() + _READ_EACH_S
            try:
                source = one.parts.clusters.source if host.contact(name).knows_lag else None
                last = await read_last_run(source, one.parts.store, one.settings)
                if watched.get(name) is one:  # else it was forgotten meanwhile
                    host.verified[name] = one.settings, last
            except HeliographError as error:
                if said.get(name) != str(error):
                    log.warning("%s: what its last verification found cannot be read: %s", name, error)
                said[name] = str(error)
            except Exception as error:  # a bug in the metrics must not stop the copy
                log.error("%s: what its last verification found cannot be read", name, exc_info=error)
        await asyncio.sleep(_TICK_S)


async def verification_metrics(hosts: Sequence[MirrorHost], now_ms: int) -> list[Metric]:
    """Return the metrics of the flows of this process, one value for each flow."""
    families = Families(_PREFIX, ("source", "target"), _ROWS)
    for host in hosts:
        for name, (settings, last) in list(host.verified.items()):
            lags = list(host.seen[name].lags.values()) if name in host.seen else []
            found = _NOTHING if last is None else await last.facts(lags, settings.policy)
            families.add(settings.flow_name, found, now_ms)
    return list(families)
