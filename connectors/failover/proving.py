"""Are the next records of a group the same on both sides? Read with stock consumers, a few of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Partition
from connect.kafka.offsets import EARLIEST, told_offsets
from connect.kafka.topic_configs import describe
from connect.kafka.topiclog import reader, reading
from connectors.comparison import abbreviate
from connectors.failover.around import settle
from connectors.failover.cleaned import CREATE_TIME, Identity, Sample, Verdict, identity
from connectors.failover.model import DIFFERS, NOT_COMPARED, SAME, GroupMove, How, Proof
from connectors.failover.unchanged import Unchanged

#: Of which nothing can be said by comparing.
_BY_GUESS: Final = frozenset({How.TIME, How.CHECKPOINT, How.BEGIN, How.MOVED})
_POLL_MS: Final = 200
#: No record for so long, and what was not read to its end or its count is not compared.
_SILENCE_S: Final = 15.0
#: Of one fetch of a partition; one batch comes, however large. Of so many partitions at once it is kept in memory.
_FETCH_BYTES: Final = 64 << 10
_AT_ONCE: Final = 200
_POSITION_S: Final = 0.05
#: So long, all in all, targets are read around places that their samples do not settle.
_LOOK_S: Final = 60.0


async def prove(
    source: Cluster | None,
    target: Cluster,
    moves: Sequence[GroupMove],
    count: int,
    *,
    read_committed: bool,
    unchanged: Unchanged,
) -> list[Proof]:
    """Compare the next ``count`` records of every move, as far as they are ``unchanged``.

    Args:
        read_committed: How the flow reads the source.

    Raises as the clusters.
    """
    if source is None or not count:
        return [_proof(one, 0, NOT_COMPARED, "--sample 0" if source else "the source is gone") for one in moves]
    await unchanged.begin()
    cleaned = await compacted(target, {one.target[0] for one in moves})
    cleaned_there = await compacted(source, {one.source[0] for one in moves}, in_doubt=False)
    found = [_proof(one, 0, NOT_COMPARED, f"its place is by {one.how}") for one in moves if one.how in _BY_GUESS]
    known = [one for one in moves if one.how not in _BY_GUESS]
    begins, _ = await told_offsets(source, {one.source for one in known}, EARLIEST)
    # A consumer would be reset to what is not the group's next record.
    deleted = [one for one in known if one.source_offset < begins.get(one.source, 0)]
    found += [
        _proof(one, 0, NOT_COMPARED, f"the source begins at {begins[one.source]}: its next record is deleted there")
        for one in deleted
    ]
    clock = asyncio.get_running_loop().time
    left_s = _LOOK_S
    for some in _rounds([one for one in known if one not in deleted]):
        ours, theirs = await asyncio.gather(
            _next_records(source, {one.source: one.source_offset for one in some}, count, read_committed),
            _next_records(target, {one.target: one.after for one in some}, count, True),
        )
        until_s = clock() + left_s
        for one in some:
            if why := _not_read(one, ours, theirs):
                found.append(_proof(one, 0, NOT_COMPARED, why))
                continue
            is_compacted = one.target[0] in cleaned or one.source[0] in cleaned_there
            mine, other, why = await _comparable(unchanged, one, ours[one.source], theirs[one.target], is_compacted)
            if why or not mine:
                found.append(_proof(one, 0, NOT_COMPARED, why or _nothing_follows(other)))
            elif is_compacted:
                found.append(await _compare_cleaned(target, one, mine, other, until_s))
            else:
                found.append(compare(one, mine, other))
        left_s = until_s - clock()
    return sorted(found, key=lambda one: (one.group, one.source))


async def _comparable(
    unchanged: Unchanged, move: GroupMove, ours: list[Any], theirs: list[Any], is_compacted: bool
) -> tuple[list[Any], list[Any], str]:
    """Those of both sides that no flow has changed, or why there are none."""
    if move.third is not None:
        return ours, theirs, move.third.changed_by
    by = unchanged.changed_by(move)
    if not by or not ours:
        return ours, theirs, ""
    mine = await unchanged.of_source(move, ours)
    if is_compacted:
        return mine, theirs, "" if mine else by
    other = await unchanged.of_target(move, theirs)
    # One side ends at what a flow has changed, and so the other: but what the target lacks is missing there.
    if len(mine) < len(ours):
        other = other[: len(mine)]
    if len(other) < len(theirs):
        mine = mine[: len(other)]
    return mine, other, "" if mine else by


def compare(move: GroupMove, ours: Sequence[Any], theirs: Sequence[Any]) -> Proof:
    """Records as aiokafka hands them out, some of the source's (pure). By offset syncs a group may begin earlier, and
    then meets the source's records without a hole."""
    mine, other = _identities(ours, theirs)
    begin = 0
    if move.how is How.SYNCS:
        if not set(mine) & set(other):
            return _proof(move, 0, NOT_COMPARED, "none of the next records is among those on the target: see --sample")
        if mine[0] not in other:
            return _proof(move, 0, DIFFERS, f"{abbreviate(ours[0].value)} is passed over")
        begin = other.index(mine[0])
        mine = mine[: len(other) - begin]  # behind the sample
    shared = min(len(mine), len(other) - begin)
    for at in range(shared):
        if mine[at] != other[begin + at]:
            return _proof(move, at, DIFFERS, _difference(ours[at], theirs[begin + at]))
    if len(mine) > shared and move.third is not None:
        return _proof(
            move, shared, SAME if shared else NOT_COMPARED, f"{move.third.flow} has still to copy what follows"
        )
    if len(mine) > shared:
        return _proof(move, shared, DIFFERS, f"the source goes on with {len(mine) - shared} records or more")
    surplus = len(other) - begin - shared
    return _proof(move, shared, SAME, f"the target goes on with {surplus} records or more" if surplus else "")


def _identities(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[list[Identity], list[Identity]]:
    """With their times, which a copy has of its record, and without which heartbeats and counters are all alike; unless
    a log has stamped any itself, or has none."""
    both = [[identity(one) for one in some] for some in (ours, theirs)]
    if all(one.timestamp_type == CREATE_TIME and one.timestamp >= 0 for some in (ours, theirs) for one in some):
        both = [
            [(*what, one.timestamp) for what, one in zip(identities, some, strict=True)]
            for identities, some in zip(both, (ours, theirs), strict=True)
        ]
    return both[0], both[1]


def _difference(ours: Any, theirs: Any) -> str:
    if identity(ours) == identity(theirs):
        return f"{abbreviate(ours.value)} of {ours.timestamp} against the same of {theirs.timestamp}, in ms"
    return f"{abbreviate(ours.value)} against {abbreviate(theirs.value)}"


async def _compare_cleaned(
    target: Cluster, move: GroupMove, ours: Sequence[Any], theirs: Sequence[Any], until_s: float
) -> Proof:
    """The same of a compacted topic: see :mod:`connectors.failover.cleaned`. Raises as the target."""
    try:
        async with asyncio.timeout_at(until_s):
            verdict = await settle(target, move, Sample(ours, theirs))
    except TimeoutError:
        verdict = Verdict(0, NOT_COMPARED, "the target could not be read around the place in time")
    return _proof(move, *verdict)


def _not_read(move: GroupMove, ours: Collection[Partition], theirs: Collection[Partition]) -> str:
    """Some of what a side has says neither that it ends there nor that they differ."""
    if move.source not in ours:
        return "the source could not be read in time"
    return "" if move.target in theirs else "the target could not be read in time"


def _nothing_follows(theirs: Sequence[Any]) -> str:
    more = f"; the target goes on with {len(theirs)} records or more" if theirs else ""
    return f"nothing follows on the source{more}"


def _proof(move: GroupMove, records: int, outcome: str, why: str = "") -> Proof:
    source, target = (f"{topic}-{partition}" for topic, partition in (move.source, move.target))
    return Proof(move.group, f"{source} at {move.source_offset}", f"{target} at {move.after}", records, outcome, why)


def _rounds(moves: Sequence[GroupMove]) -> list[list[GroupMove]]:
    """A consumer stands at one place of a partition: groups take turns, as do more than a few hundred partitions."""
    rounds: list[tuple[set[Partition], set[Partition], list[GroupMove]]] = []
    for one in moves:
        free = (
            each
            for each in rounds
            if len(each[2]) < _AT_ONCE and one.source not in each[0] and one.target not in each[1]
        )
        turn = next(free, None)
        if turn is None:
            turn = (set(), set(), [])
            rounds.append(turn)
        turn[0].add(one.source)
        turn[1].add(one.target)
        turn[2].append(one)
    return [some for _, _, some in rounds]


async def compacted(cluster: Cluster, topics: Collection[str], *, in_doubt: bool = True) -> set[str]:
    """Those whose cleaner takes older values and, ``in_doubt``, those that do not tell. Raises as the cluster."""
    found = set()
    for topic, configs in (await describe(cluster, topics)).items():
        policy = None if isinstance(configs, HeliographError) else configs.get("cleanup.policy")
        # Who may not look takes the milder comparison.
        if in_doubt if policy is None or policy.value is None else "compact" in policy.value:
            found.add(topic)
    return found


async def _next_records(
    cluster: Cluster, places: Mapping[Partition, int], count: int, read_committed: bool
) -> dict[Partition, list[Any]]:
    """Without those that could not be read in time."""
    found: dict[Partition, list[Any]] = {one: [] for one in places}
    with reading(cluster, ", ".join(sorted({topic for topic, _ in places}))):
        async with reader(
            cluster,
            read_committed=read_committed,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
        ) as consumer:
            partitions = {TopicPartition(*one): one for one in places}
            consumer.assign(list(partitions))
            ends = await consumer.end_offsets(list(partitions))
            for partition, one in partitions.items():
                consumer.seek(partition, places[one])
            waiting = set(partitions)
            clock = asyncio.get_running_loop().time
            give_up_s = clock() + _SILENCE_S
            while waiting and clock() < give_up_s:
                for partition, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
                    kept = found[partitions[partition]]
                    kept += records[: count - len(kept)]
                    give_up_s = clock() + _SILENCE_S
                for partition in list(waiting):
                    enough = len(found[partitions[partition]]) >= count
                    if enough or await _is_at(consumer, partition, ends[partition]):
                        waiting.discard(partition)
                        consumer.pause(partition)
    stalled = {partitions[partition] for partition in waiting}
    return {one: records for one, records in found.items() if one not in stalled}


async def _is_at(consumer: AIOKafkaConsumer, partition: TopicPartition, end: int) -> bool:
    """One that has no position, for its log was cut, would be waited for as long as it has none."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_POSITION_S):
            return bool(await consumer.position(partition) >= end)
    return False
