"""A failover rehearsed: everything but what changes anything, with the time that it takes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.kafka.group_offsets import committed, listed_group
from connectors.failover.collect import collect
from connectors.failover.draining import LOOK_S
from connectors.failover.lease import LANES
from connectors.failover.plan import Plan, Wish, differing, plan
from connectors.failover.proving import first_records, prove
from connectors.failover.site import Site
from connectors.failover.snapshot import Proof, Rule, Snapshot
from connectors.failover.target_offsets import about
from connectors.lag import together

#: Of each partition of a group.
_RECORDS: Final = 1
#: Groups whose round trips are measured.
_MEASURED: Final = 5
#: Requests of a move: the transaction's partitions and group, its offsets, its record, two looks at the group, its end.
_REQUESTS: Final = 8
_MEASURED_REQUESTS: Final = 2


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """``plan`` blocks what a failover would leave. In seconds by step: ``took_s`` is measured, ``estimated_s`` what was
    not done. ``read`` target offsets were read from."""

    plan: Plan
    proofs: tuple[Proof, ...]
    took_s: Mapping[str, float]
    estimated_s: Mapping[str, float]
    read: int

    @property
    def rto_s(self) -> float:
        """How long a failover takes, in seconds."""
        return sum(self.took_s.values()) + sum(self.estimated_s.values())


async def rehearse(site: Site, wish: Wish) -> Rehearsal:
    """Change nothing; what reads on the target has a group of its own, and commits nothing. Raises as the clusters."""
    took_s: dict[str, float] = {}
    began_s = time.monotonic()

    def passed(step: str) -> None:
        nonlocal began_s
        now_s = time.monotonic()
        took_s[step], began_s = now_s - began_s, now_s

    snapshot = await collect(site, wish)
    passed("collect")
    found = plan(snapshot, wish)
    passed("plan")
    proofs = await prove(site, found.moves, wish.sample, is_gone=wish.is_gone or bool(snapshot.source_error))
    found = found.with_blocked(differing(proofs))
    passed("sample")
    estimated_s = await _estimate(site, snapshot, found)
    moves = found.moves
    group = f"heliograph-rehearse-{uuid.uuid4().hex[:8]}"
    readable = await first_records(site.target, {one.target: one.after for one in moves}, _RECORDS, group)
    unread = [
        about(one, Rule.UNREADABLE, f"could not be read from offset {one.after}")
        for one in moves
        if one.target not in readable
    ]
    return Rehearsal(found.with_blocked(unread), tuple(proofs), took_s, estimated_s, len(moves) - len(unread))


async def _estimate(site: Site, snapshot: Snapshot, found: Plan) -> dict[str, float]:
    """Of the drain: the age of the oldest record that waits; of the stop: two looks; of the moves: by the round trips
    of some groups."""
    some, began_s = found.ready[:_MEASURED], time.monotonic()
    for one in some:
        await listed_group(site.target, one.group)
        await committed(site.target, one.group)
    request_s = (time.monotonic() - began_s) / max(len(some) * _MEASURED_REQUESTS, 1)
    turns = -(-len(found.ready) // LANES)
    waits = {} if snapshot.lag is None else {"drain": max(together(snapshot.lag.partitions).ms, 0) / 1000}
    return {**waits, "stop": 2 * LOOK_S, "moves": turns * _REQUESTS * request_s}
