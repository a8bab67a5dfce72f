"""Lets go of what the offset map tells of target records that are gone.

Where the targets' logs begin is asked at long intervals, one request a leader, and goes along with the next commit of
each partition: a partition at rest has a map that does not grow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.offsets import EARLIEST, list_offsets
from connectors.source.ledger import Entry, Ledger, Pair

log = logging.getLogger(__name__)

#: Brokers look for what retention takes every five minutes (``log.retention.check.interval.ms``).
_INTERVAL_S: Final = 300.0
#: How soon it is asked once something is copied, or again where it could not be.
_SOON_S: Final = 2.0


async def trim_forever(target: Cluster, ledger: Callable[[], Ledger], name: str) -> NoReturn:
    """Tell the ledger, over and over; what cannot be asked now is asked later."""
    while True:
        asked = False
        try:
            entries = ledger().going()
            asked = bool(entries) and await note_log_starts(target, entries)
        except HeliographError as error:
            log.info("%s: where the target's logs begin is not known now: %s", name, error)
        await asyncio.sleep(_INTERVAL_S if asked else _SOON_S)


async def note_log_starts(target: Cluster, entries: list[Entry]) -> bool:
    """Ask where the target partitions of ``entries`` begin; False where there was nothing to ask.

    A topic may be made anew at any time, and then begins elsewhere: what is told counts only where it was the pair's
    own both before and after. Errors as those of the cluster.
    """
    copied = [(entry, entry.pair) for entry in entries if entry.position is not None]
    before = await _metadata(target, [pair for _, pair in copied])
    asked = [(entry, pair) for entry, pair in copied if _is_its_own(before, pair)]
    if not asked:
        return False
    starts = await list_offsets(target, {pair.target for _, pair in asked}, EARLIEST)
    after = await _metadata(target, [pair for _, pair in asked])
    for entry, pair in asked:
        position, start = entry.position, starts[pair.target]
        if entry.pair is pair and _is_its_own(after, pair) and position and start <= position.target_end:
            entry.target_log_start = start
    return True


async def _metadata(target: Cluster, pairs: list[Pair]) -> ClusterMetadata:
    return await target.metadata({pair.target.topic for pair in pairs})


def _is_its_own(metadata: ClusterMetadata, pair: Pair) -> bool:
    topic, index = pair.target
    known = metadata.topics.get(topic)
    return known is not None and known.topic_id == pair.target_topic_id and metadata.leader(topic, index) is not None
