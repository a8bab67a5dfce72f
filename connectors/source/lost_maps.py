"""Finds at a task's start of which partitions the offset map was lost, or never written.

Java's MirrorMaker 2 copied them before, or the map's topic was deleted. Nothing but the logs themselves can tell then
(:mod:`connectors.map_rebuild`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.map_alignment import Side
from connectors.map_rebuild import LogFeed
from connectors.positions import Position
from connectors.source.ledger import Entry
from connectors.source.store import PositionStore

log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5
#: Read at once of where a log begins.
_FIRST_BYTES: Final = 64 * 1024


async def lost_maps(
    clusters: Mapping[Side, Cluster], store: PositionStore, entries: Sequence[Entry], *, read_committed: bool
) -> dict[TopicPartition, int]:
    """At which source offset the map of each begins that lacks what both logs still have. ``read_committed``: how the
    flow reads its source. Errors as ``list_offsets``.

    Offsets alone do not tell: at the beginning of a target a fence may have left a marker, and at the one of a source
    compaction, or transactions that were aborted, may have left nothing.
    """
    begins: dict[TopicPartition, tuple[Entry, int, int]] = {}
    for entry in entries:
        if entry.position is not None and entry.target_log_start is not None:
            upstream, downstream = map_begin(store, entry, entry.position)
            if downstream > entry.target_log_start:
                begins[entry.pair.source] = entry, upstream, downstream
    starts = await list_offsets(clusters[Side.SOURCE], begins, EARLIEST) if begins else {}
    lost = {}
    for partition, (entry, upstream, downstream) in begins.items():
        if upstream > starts[partition]:
            pair, source, target = entry.pair, clusters[Side.SOURCE], clusters[Side.TARGET]
            is_lost = await _has_records(target, pair.target, pair.target_topic_id, downstream, read_committed=True)
            if is_lost and await _has_records(
                source, partition, pair.source_topic_id, upstream, read_committed=read_committed
            ):
                lost[partition] = upstream
    return lost


async def _has_records(
    cluster: Cluster, partition: TopicPartition, topic_id: UUID | None, top: int, *, read_committed: bool
) -> bool:
    """Below ``top``. What cannot be read is taken for lost: whoever reads it for its map says why it cannot."""
    feed = LogFeed(cluster, partition, topic_id, top, read_committed=read_committed, fetch_bytes=_FIRST_BYTES)
    try:
        return await feed.has_records()
    except HeliographError as error:
        log.debug("taken for lost: %s", error)
        return True


def map_begin(store: PositionStore, entry: Entry, position: Position) -> tuple[int, int]:
    """As the store tells, with what is not stored yet."""
    upstream, downstream = store.map_begin(position)
    if entry.runs:  # of an empty map they are the beginning
        first, first_downstream, _ = entry.runs[0]
        upstream, downstream = min(upstream, first), min(downstream, first_downstream)
    return upstream, downstream


def tell(name: str, lost: dict[TopicPartition, int], reach_records: int) -> None:
    """One line. ``reach_records``: how many of either log are read to rebuild them; 0: none."""
    named = ", ".join(f"{partition} (below {begin})" for partition, begin in sorted(lost.items())[:_MOST_NAMED])
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    what = (
        f"both logs are read for it now, {reach_records} records of each at most (offset.map.rebuild.records); "
        "heliograph map mm2.properties --rebuild reads them to their ends"
        if reach_records
        else "heliograph map mm2.properties --rebuild finds out what is known of them, whether the flow runs or not"
    )
    log.warning(
        "%s: the offset map lacks what was copied first of %s%s: such source offsets are not translated; %s",
        name,
        named,
        more,
        what,
    )
