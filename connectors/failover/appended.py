"""What was appended to the new primary of what only the old one held, as headers there say."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final, NamedTuple

from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, list_offset
from connectors.dataplane.plan import TopicPartition
from connectors.failover.own import Range, merged, read_ranges

#: On an appended record: where it came from, such as ``us/orders-0@41``.
HEADER: Final = "heliograph.appended"


class Appended(NamedTuple):
    """Of one partition of the source. ``ranges`` are source offsets and ascend; ``is_cut``: the target has deleted some
    of where they may lie."""

    ranges: tuple[Range, ...] = ()
    is_cut: bool = False

    @property
    def end(self) -> int:
        """Behind the last; 0 for none."""
        return self.ranges[-1][1] if self.ranges else 0

    def with_all_before(self) -> Appended:
        """What lies before the first of them counts as appended too."""
        return Appended(tuple(merged([(0, self.ranges[0][0]), *self.ranges]))) if self.ranges else self


def where(alias: str, log: TopicPartition, offset: int) -> str:
    """What the header of a record says."""
    return f"{_of(alias, log)}{offset}"


async def read_appended(
    cluster: Cluster, target: TopicPartition, begin: int, alias: str, log: TopicPartition
) -> Appended:
    """Of ``log`` of the cluster ``alias``, from offset ``begin`` of ``target`` on. Each by its own header: the last one
    does not say that those before it are there. Raises as the cluster."""
    first = await list_offset(cluster, target, EARLIEST)
    span = max(begin, first), await list_offset(cluster, target, LATEST)
    of_log = _of(alias, log).encode()
    found: list[Range] = []
    async with aclosing(read_ranges(cluster, target, [span] if span[0] < span[1] else [])) as records:
        async for record in records:
            for name, value in record.headers:
                if name == HEADER and value is not None and value.startswith(of_log):
                    _take(found, int(value[len(of_log) :]))
    return Appended(tuple(merged(found)), is_cut=first > begin)


def _take(found: list[Range], offset: int) -> None:
    """They come in order, but for what was appended later or twice."""
    if found and found[-1][1] == offset:
        found[-1] = (found[-1][0], offset + 1)
    else:
        found.append((offset, offset + 1))


def _of(alias: str, log: TopicPartition) -> str:
    return f"{alias}/{log.topic}-{log.partition}@"
