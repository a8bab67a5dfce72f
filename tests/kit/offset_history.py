"""What became of the offsets of moved groups, by ``__consumer_offsets``: nothing newer changed, no record skipped."""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from connect.kafka.log.offsets import LATEST, READ_COMMITTED, list_offsets
from tests.kit.clients import cluster_at
from tests.kit.log_reader import reading
from tests.kit.operators import Partition, Ran, Seen

_OFFSETS: Final = "__consumer_offsets"
_OFFSETS_PARTITIONS: Final = 4
_DEADLINE_S: Final = 120.0
Place = tuple[str, str, int]  # group, topic, partition
Records = Mapping[Partition, Sequence[int]]  # offsets: the nth record is the nth on the other cluster


class Change(NamedTuple):
    """``offset`` None: none from then on; ``writer``: the producer of a transaction, None for a consumer."""

    at: int
    offset: int | None
    writer: tuple[int, int] | None

    @property
    def is_of_consumer(self) -> bool:
        return self.offset is not None and self.writer is None


@dataclass(slots=True)
class Moved:
    """What was done in one flow; ``read``: how far consumers have read at the source, with when they began."""

    alias: str
    ran: list[Ran] = field(default_factory=list)
    read: dict[Place, list[tuple[float, int]]] = field(default_factory=dict)


async def read_records(bootstrap: str, topics: Mapping[str, int]) -> Records:
    """The offsets of committed records."""
    found: dict[Partition, list[int]] = {
        (topic, index): [] for topic, count in topics.items() for index in range(count)
    }

    def take(key: Partition, position: int, batch: Any) -> None:
        found[key].extend(one.offset for one in batch if one.offset >= position)

    async with reading(bootstrap, take, topics) as reader:
        await reader.read_to_end()
    return found


async def read_history(bootstrap: str) -> dict[Place, list[Change]]:
    """All that was committed of groups, once no transaction is open that hides what lies behind it."""
    changes: dict[Place, list[Change]] = {}

    def take(_: Partition, position: int, batch: Any) -> None:
        writer = (batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
        for record in batch:
            place = _place_of(record.key)
            if record.offset >= position and place is not None:
                value = -1 if record.value is None else struct.unpack_from(">q", record.value, 2)[0]
                offset = None if value < 0 else value
                changes.setdefault(place, []).append(Change(record.offset, offset, writer))

    partitions = [(_OFFSETS, index) for index in range(_OFFSETS_PARTITIONS)]
    async with cluster_at(bootstrap) as cluster:
        async with asyncio.timeout(_DEADLINE_S):
            while await list_offsets(cluster, partitions, LATEST) != await list_offsets(  # noqa: ASYNC110
                cluster, partitions, LATEST, READ_COMMITTED
            ):
                await asyncio.sleep(0.5)
    async with reading(bootstrap, take, {_OFFSETS: _OFFSETS_PARTITIONS}) as reader:
        await reader.read_to_end()
    return changes


def _place_of(key: bytes) -> Place | None:
    """None for what is no offset (Kafka ``OffsetCommitKey``, versions 0 and 1)."""
    if key[:2] not in (b"\0\0", b"\0\1"):
        return None
    names, at = [], 2
    for _ in range(2):
        (size,) = struct.unpack_from(">h", key, at)
        names.append(key[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return names[0], names[1], struct.unpack_from(">i", key, at)[0]


def judge(
    moved: Moved, history: Mapping[Place, Sequence[Change]], source: Records, target: Records
) -> tuple[list[str], Counter[str]]:
    """Faults, and how much there was to judge (pure)."""
    faults = [f"{one.name} ended badly:\n{one.output[-2000:]}" for one in moved.ran if "Traceback" in one.output]
    counts: Counter[str] = Counter(f"{one.command} exit {one.exit_code}" for one in moved.ran)
    counts["suspended"] += sum(one.was_stopped for one in moved.ran)
    of_flow = {place: rows for place, rows in history.items() if (place[1], place[2]) in target}
    for place, changes in of_flow.items():
        for at, one in enumerate(changes):
            if one.is_of_consumer:
                counts["commits of consumers"] += 1
                continue
            known = _who(moved.ran, place, one)
            if known is None:
                faults.append(f"{place}: by none of the operators: {one}")
                continue
            ran, before, _ = known
            counts[f"offsets {'taken away' if one.offset is None else 'moved'} by {ran.command}"] += 1
            found = [*_changed_newer(place, changes, at, ran, before, of_flow)]
            if one.offset is not None:
                read = [_number(target, place, old) for old in changes[:at] if old.is_of_consumer]
                found += _skipped(moved, place, _number(target, place, one), read, known, source)
            faults += [f"{ran.name}: {fault}" for fault in found]
    return faults, counts


def _who(ran: Sequence[Ran], place: Place, change: Change) -> tuple[Ran, Sequence[Seen], float] | None:
    """The operator of a change, its trace before it first asked for that, and when it did."""
    group, partition = place[0], place[1:]
    wanted = change.writer, -1 if change.offset is None else change.offset
    for one in ran:
        for at, seen in enumerate(one.trace):
            is_of_group = seen.kind == "commit" and seen.group == group
            if is_of_group and (seen.identity, seen.offsets.get(partition)) == wanted:
                return one, one.trace[:at], seen.at_s
    return None


def _changed_newer(
    place: Place,
    changes: Sequence[Change],
    at: int,
    ran: Ran,
    before: Sequence[Seen],
    history: Mapping[Place, Sequence[Change]],
) -> Iterator[str]:
    """A commit may be changed by who was told of it; by an undo only if the group has not gone on."""
    new = changes[at].offset
    if ran.command == "undo":
        for other, rows in history.items():
            upto = [one for one in rows if one.at < changes[at].at]
            if other[0] == place[0] and any(one.writer for one in upto) and _has_gone_on(upto):
                yield f"{place} was taken back to {new}, and {other} has gone on to {upto[-1].offset}"
    elif at and changes[at - 1].is_of_consumer and changes[at - 1].offset != new:
        reported = {one.offsets.get(place[1:]) for one in before if one.kind == "told" and one.group == place[0]}
        if changes[at - 1].offset not in reported:
            yield f"{place}: the newer commit {changes[at - 1].offset} was changed to {new}"


def _has_gone_on(changes: Sequence[Change]) -> bool:
    ours = {one.offset for one in changes if one.writer}
    found = {before.offset for before, one in pairwise(changes) if one.writer}
    return changes[-1].is_of_consumer and changes[-1].offset not in ours | found


def _number(target: Records, place: Place, change: Change) -> int:
    """Of the record that who goes on there reads next."""
    return bisect_left(target[place[1:]], change.offset or 0)


def _skipped(
    moved: Moved,
    place: Place,
    number: int,
    read: Sequence[int],
    known: tuple[Ran, Sequence[Seen], float],
    source: Records,
) -> Iterator[str]:
    """A group may not go on beyond what it has ``read``; if the source answers, it goes on at that very record."""
    group, origin = place[0], (place[1].removeprefix(f"{moved.alias}."), place[2])
    ran, before, asked_s = known
    at_source = [offset for at_s, offset in moved.read.get((group, *origin), ()) if at_s <= asked_s]
    upto = max([*read, *(bisect_left(source[origin], offset) for offset in at_source)], default=0)
    if number > upto:
        yield f"{place} goes on at record {number}, and has read up to {upto}"
    if ran.command != "failover" or "--source-gone" in ran.arguments:
        return
    of_group = [one.offsets for one in before if one.kind == "told" and one.group == group]
    reported = {offsets[origin] for offsets in of_group if offsets.get(origin, -1) >= 0}
    if number not in {bisect_left(source[origin], offset) for offset in reported}:
        yield f"{place} goes on at record {number}, and stood at offset {sorted(reported)} at the source"
