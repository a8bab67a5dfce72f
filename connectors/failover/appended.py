"""What was appended to the new primary of what only the old one held, as headers there say."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final, NamedTuple
from uuid import UUID

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offset, list_offsets
from connect.kafka.topiclog import open_in
from connectors.dataplane.plan import TopicPartition
from connectors.failover.own import Range, merged, read_ranges

#: On an appended record: where it came from, such as ``us/orders-0@41``.
HEADER: Final = "heliograph.appended"
#: Beside it, where the source tells: the id of the topic, for one that is made anew has the same offsets again.
TOPIC_HEADER: Final = "heliograph.appended.topic"
#: An application's transactions end within moments; one that does not is waited for no longer.
_OPEN_S: Final = 15.0
_LOOK_S: Final = 0.25


class Appended(NamedTuple):
    """Of one partition of the source. ``ranges`` are source offsets and ascend; ``is_cut``: the target has deleted some
    of where more may lie, and nobody knows whether there were any; ``unclear``: a header that somebody has written and
    that names no offset, and where it is; ``log_begin``: of the target, and ``first_at``: where the first of
    them lies in it."""

    ranges: tuple[Range, ...] = ()
    is_cut: bool = False
    unclear: str = ""
    log_begin: int = 0
    first_at: int | None = None

    @property
    def end(self) -> int:
        """Behind the last; 0 for none."""
        return self.ranges[-1][1] if self.ranges else 0

    def may_hold(self, offset: int) -> bool:
        """Whether it may have been appended, though no header is left that says so: what is deleted was appended before
        what is there."""
        return self.is_cut and bool(self.ranges) and offset < self.ranges[0][0]


def where(alias: str, log: TopicPartition, offset: int) -> str:
    """What the header of a record says."""
    return f"{_of(alias, log)}{offset}"


def headers_of(alias: str, log: TopicPartition, topic_id: UUID | None, offset: int) -> list[tuple[str, bytes]]:
    """What a record is appended with (pure)."""
    found = [(HEADER, where(alias, log, offset).encode())]
    return found if topic_id is None else [*found, (TOPIC_HEADER, str(topic_id).encode())]


async def read_appended(
    cluster: Cluster,
    target: TopicPartition,
    begin: int,
    alias: str,
    log: TopicPartition,
    *,
    topic_id: UUID | None = None,
    waits: bool = True,
) -> Appended:
    """Of ``log`` of the cluster ``alias``, from offset ``begin`` of ``target`` on. Each by its own header: the last one
    does not say that those before it are there. Those of another topic than ``topic_id``, which was there before, do
    not count.

    ``waits``: for the end of transactions that are open now, which hide what lies behind their beginning from who reads
    what is committed. Without, that counts as not there.

    Raises RetriableError where one stays open, and as the cluster.
    """
    first = await list_offset(cluster, target, EARLIEST)
    end = await list_offset(cluster, target, LATEST)
    if waits:
        await _decided(cluster, target, end)
    span = max(begin, first), end
    of_log = _of(alias, log).encode()
    found: list[Range] = []
    unclear, first_at = "", None
    async with aclosing(read_ranges(cluster, target, [span] if span[0] < span[1] else [])) as records:
        async for record in records:
            if _is_of_another(record, topic_id):
                continue
            for name, value in record.headers:
                if name != HEADER or value is None or not value.startswith(of_log):
                    continue
                first_at = record.offset if first_at is None else first_at
                if (offset := bytes(value[len(of_log) :])).isdigit():
                    _take(found, int(offset))
                else:
                    unclear = unclear or f"{value.decode(errors='replace')!r} at offset {record.offset} of {target}"
    log_begin = await list_offset(cluster, target, EARLIEST)  # what is deleted meanwhile was not read
    return Appended(tuple(merged(found)), log_begin > begin, unclear, log_begin, first_at)


def _is_of_another(record: Any, topic_id: UUID | None) -> bool:
    """Who writes by hand need not say of which topic it is."""
    said = {value for name, value in record.headers if name == TOPIC_HEADER}
    return topic_id is not None and bool(said) and str(topic_id).encode() not in said


async def _decided(cluster: Cluster, target: TopicPartition, end: int) -> None:
    """Wait until it is decided of all before ``end`` whether it counts; what is begun since does not matter."""
    clock = asyncio.get_running_loop().time
    give_up_s = clock() + _OPEN_S
    while (await list_offsets(cluster, [target], LATEST, READ_COMMITTED))[target] < end:
        if clock() > give_up_s:
            raise RetriableError(
                f"cluster {cluster.name}: a transaction is open in {target}, and hides whether records were appended "
                f"behind its beginning: run this again when it has ended; {await open_in(cluster, target.topic)}"
            )
        await asyncio.sleep(_LOOK_S)


def _take(found: list[Range], offset: int) -> None:
    """They come in order, but for what was appended later or twice."""
    if found and found[-1][1] == offset:
        found[-1] = (found[-1][0], offset + 1)
    else:
        found.append((offset, offset + 1))


def _of(alias: str, log: TopicPartition) -> str:
    return f"{alias}/{log.topic}-{log.partition}@"
