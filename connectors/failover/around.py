"""What the target holds around a place that a sample does not settle: read just before it, and on behind it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

from connect.kafka.cluster import Cluster
from connect.kafka.offsets import LATEST, READ_COMMITTED, told_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.failover.cleaned import FAR, Sample, Verdict
from connectors.failover.model import GroupMove
from connectors.failover.own import read_ranges

_END: Final = 2**63 - 1


async def settle(target: Cluster, move: GroupMove, sample: Sample) -> Verdict:
    """Nothing is read where the sample tells all. Raises as the target."""
    lying = await _lying(target, move, sample) if sample.unfound else []
    is_whole = False
    if lying or sample.missing:
        is_whole = await _search(target, move, sample, lying)
        lying = [one for one in lying if one in sample.unfound]
    if lying:
        # A cleaner may have taken both of them meanwhile.
        lying = await _lying(target, move, sample)
    return sample.verdict(lying, is_whole=is_whole)


async def _lying(target: Cluster, move: GroupMove, sample: Sample) -> list[Any]:
    found: list[Any] = []
    before = (max(move.after - FAR, 0), move.after)
    async with aclosing(read_ranges(target, TopicPartition(*move.target), [before])) as records:
        async for record in records:
            found += sample.like(record)
    return found


async def _search(target: Cluster, move: GroupMove, sample: Sample, lying: list[Any]) -> bool:
    """Read on until nothing is looked for any more. Whether that was the end: what a transaction has left open, and
    all behind it, is not known."""
    ends, _ = await told_offsets(target, [move.target], LATEST)
    decided, _ = await told_offsets(target, [move.target], LATEST, READ_COMMITTED)
    read = 0
    async with aclosing(read_ranges(target, TopicPartition(*move.target), [(move.after, _END)])) as records:
        async for record in records:
            is_settled = sample.take(record) and not (sample.missing or any(one in sample.unfound for one in lying))
            read += 1
            if is_settled or read >= FAR:
                return False
    return move.target in ends and ends.get(move.target) == decided.get(move.target)
