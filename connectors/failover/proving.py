"""Are the next records of a group the same on both sides? Read with stock consumers, a few of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Partition
from connect.kafka.offsets import EARLIEST, told_offsets
from connect.kafka.topic_configs import describe
from connect.kafka.topiclog import reader, reading
from connectors.comparison import abbreviate
from connectors.failover.model import GroupMove, How, Proof

#: Of which nothing can be said by comparing.
_BY_GUESS: Final = frozenset({How.TIME, How.CHECKPOINT, How.BEGIN, How.MOVED})
_POLL_MS: Final = 200
#: No record for so long, and what was read counts as all there is.
_SILENCE_S: Final = 15.0
_Identity = tuple[Any, ...]
SAME: Final = "same"
DIFFERS: Final = "differs"
NOT_COMPARED: Final = "not compared"


async def prove(
    source: Cluster | None,
    target: Cluster,
    moves: Sequence[GroupMove],
    count: int,
    *,
    read_committed: bool,
    is_changed: bool,
) -> list[Proof]:
    """Compare the next ``count`` records of every move.

    Args:
        read_committed: How the flow reads the source.
        is_changed: Whether the flow changes records on their way; then numbers are all that could be compared.

    Raises as the clusters.
    """
    if source is None or is_changed or not count:
        why = "the source is gone" if source is None else "the flow changes records" if is_changed else "--sample 0"
        return [_proof(one, 0, NOT_COMPARED, why) for one in moves]
    cleaned = await compacted(target, {one.target[0] for one in moves})
    found = [_proof(one, 0, NOT_COMPARED, f"its place is by {one.how}") for one in moves if one.how in _BY_GUESS]
    known = [one for one in moves if one.how not in _BY_GUESS]
    begins, _ = await told_offsets(source, {one.source for one in known}, EARLIEST)
    # A consumer would be reset to what is not the group's next record.
    deleted = [one for one in known if one.source_offset < begins.get(one.source, 0)]
    found += [
        _proof(one, 0, NOT_COMPARED, f"the source begins at {begins[one.source]}: its next record is deleted there")
        for one in deleted
    ]
    for some in _rounds([one for one in known if one not in deleted]):
        ours, theirs = await asyncio.gather(
            _next_records(source, {one.source: one.source_offset for one in some}, count, read_committed),
            _next_records(target, {one.target: one.after for one in some}, count, True),
        )
        found += [
            compare(one, ours[one.source], theirs[one.target], is_compacted=one.target[0] in cleaned) for one in some
        ]
    return sorted(found, key=lambda one: (one.group, one.source))


def compare(move: GroupMove, ours: Sequence[Any], theirs: Sequence[Any], *, is_compacted: bool) -> Proof:
    """Records as aiokafka hands them out (pure). By offset syncs a group may begin earlier, and then meets the source's
    records without a hole. On a compacted topic either side may lack what the other still has: what both have must come
    in the same order, and what the target lacks needs a newer value there."""
    mine, other = [_identity(one) for one in ours], [_identity(one) for one in theirs]
    if not mine:
        more = f"; the target goes on with {len(other)} records or more" if other else ""
        return _proof(move, 0, NOT_COMPARED, f"nothing follows on the source{more}")
    if is_compacted:
        return _compare_cleaned(move, mine, other)
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
            said = f"{abbreviate(ours[at].value)} against {abbreviate(theirs[begin + at].value)}"
            return _proof(move, at, DIFFERS, said)
    if len(mine) > shared:
        return _proof(move, shared, DIFFERS, f"the source goes on with {len(mine) - shared} records or more")
    surplus = len(other) - begin - shared
    return _proof(move, shared, SAME, f"the target goes on with {surplus} records or more" if surplus else "")


def _compare_cleaned(move: GroupMove, mine: list[_Identity], other: list[_Identity]) -> Proof:
    here, there = set(mine), set(other)
    kept, met = [one for one in mine if one in there], [one for one in other if one in here]
    shared = min(len(kept), len(met))
    if kept[:shared] != met[:shared]:
        return _proof(move, 0, DIFFERS, "order")
    newer = {key for key, *_ in other}
    missing = [key for key, *rest in mine if (key, *rest) not in there and key not in newer]
    if missing or not shared:
        why = f"{len(missing)} of the next records are not among those on the target, nor newer ones of their keys"
        return _proof(move, shared, NOT_COMPARED, why if missing else "none of the next records is left on both sides")
    return _proof(move, shared, SAME)


def _proof(move: GroupMove, records: int, outcome: str, why: str = "") -> Proof:
    source, target = (f"{topic}-{partition}" for topic, partition in (move.source, move.target))
    return Proof(move.group, f"{source} at {move.source_offset}", f"{target} at {move.after}", records, outcome, why)


def _identity(record: Any) -> _Identity:
    headers = tuple((name, None if value is None else bytes(value)) for name, value in record.headers)
    return record.key, record.value, headers


def _rounds(moves: Sequence[GroupMove]) -> list[list[GroupMove]]:
    """A consumer stands at one place of a partition: groups take turns."""
    rounds: list[tuple[set[Partition], set[Partition], list[GroupMove]]] = []
    for one in moves:
        free = (each for each in rounds if one.source not in each[0] and one.target not in each[1])
        turn = next(free, None)
        if turn is None:
            turn = (set(), set(), [])
            rounds.append(turn)
        turn[0].add(one.source)
        turn[1].add(one.target)
        turn[2].append(one)
    return [some for _, _, some in rounds]


async def compacted(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Those whose cleaner takes older values, and those that do not tell. Raises as the cluster."""
    found = set()
    for topic, configs in (await describe(cluster, topics)).items():
        policy = None if isinstance(configs, HeliographError) else configs.get("cleanup.policy")
        # Who may not look takes the milder comparison.
        if policy is None or policy.value is None or "compact" in policy.value:
            found.add(topic)
    return found


async def _next_records(
    cluster: Cluster, places: Mapping[Partition, int], count: int, read_committed: bool
) -> dict[Partition, list[Any]]:
    found: dict[Partition, list[Any]] = {one: [] for one in places}
    with reading(cluster, ", ".join(sorted({topic for topic, _ in places}))):
        async with reader(cluster, read_committed=read_committed, auto_offset_reset="earliest") as consumer:
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
                    found[partitions[partition]] += records
                    give_up_s = clock() + _SILENCE_S
                for partition in list(waiting):
                    enough = len(found[partitions[partition]]) >= count
                    if enough or await consumer.position(partition) >= ends[partition]:
                        waiting.discard(partition)
                        consumer.pause(partition)
    return {one: records[:count] for one, records in found.items()}
