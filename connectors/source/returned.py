"""Topics that were gone and are there again: what stopped their partitions is another thing from then on.

A topic is gone when no broker knows it for some seconds. What makes it again later, a person or the connector's own
refresh, makes another topic: the partition's verdict is that of a topic made anew, and ``on.topic.recreated`` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.dataplane.plan import TopicPartition
from connectors.dataplane.verdicts import Verdict
from connectors.gaps import GapKind
from connectors.source.ledger import Entry
from connectors.source.standing import judge
from connectors.source.takeover import Clusters

_LOOK_S: Final = 5.0
_GONE: Final = (GapKind.SOURCE_DELETED, GapKind.TARGET_DELETED)


def is_gone(entry: Entry) -> bool:
    """Whether it stopped as its topic was gone, so that another look may tell more."""
    return entry.is_stopped and entry.gap is not None and entry.gap.kind in _GONE and entry.position is not None


async def look_for_returned(
    clusters: Clusters, entries: Callable[[], Collection[Entry]], stopped: Callable[[Entry], None]
) -> None:
    """Until cancelled; an entry whose verdict has changed is told to ``stopped``."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(RetriableError):
            for entry, verdict in await returned(clusters.source, clusters.target, entries()):
                # While the clusters answered, it may have left, or a take-over may have begun.
                if is_gone(entry) and any(entry is one for one in entries()):
                    entry.stop(verdict.reason, gap=verdict.gap)
                    stopped(entry)


async def returned(source: Cluster, target: Cluster, entries: Collection[Entry]) -> Sequence[tuple[Entry, Verdict]]:
    """Those of ``entries`` whose topics are there again, with what is to be said of them now. Raises RetriableError
    where a cluster does not answer."""
    gone = [entry for entry in entries if is_gone(entry)]
    here, there = await asyncio.gather(
        _topics(source, {_partition(entry).topic for entry in gone if _is_of_source(entry)}),
        _topics(target, {_partition(entry).topic for entry in gone if not _is_of_source(entry)}),
    )
    found = []
    for entry in gone:
        topics = here if _is_of_source(entry) else there
        if (verdict := judged(entry, topics.get(_partition(entry).topic))) is not None:
            found.append((entry, verdict))
    return found


async def _topics(cluster: Cluster, names: Collection[str]) -> Mapping[str, TopicMetadata]:
    return (await cluster.metadata(names)).topics if names else {}


def judged(entry: Entry, topic: TopicMetadata | None) -> Verdict | None:
    """What stops an entry whose topic was gone and is this one now; None if that says nothing new."""
    position, partition = entry.position, _partition(entry)
    if position is None or topic is None or partition.partition not in topic.partitions:
        return None
    return judge("source" if _is_of_source(entry) else "target", entry, position, topic)


def _is_of_source(entry: Entry) -> bool:
    return entry.gap is not None and entry.gap.is_of_source


def _partition(entry: Entry) -> TopicPartition:
    return entry.pair.source if _is_of_source(entry) else entry.pair.target
