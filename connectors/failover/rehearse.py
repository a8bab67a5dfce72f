"""A failover rehearsed: everything but what changes anything, with the time that it takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from connectors.failover.collect import Wish, collect
from connectors.failover.places import where
from connectors.failover.plan import Plan, differing, plan
from connectors.failover.proving import first_records, prove
from connectors.failover.site import Site
from connectors.failover.snapshot import Finding, Proof, Rule

#: Of each partition of a group.
_RECORDS = 1


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """``plan`` blocks what a failover would leave. ``took_s``: how long each step took, in seconds; ``read`` target
    offsets were read from."""

    plan: Plan
    proofs: tuple[Proof, ...]
    took_s: Mapping[str, float]
    read: int

    @property
    def rto_s(self) -> float:
        """What a failover takes beside the drain and the stop of the flow, in seconds."""
        return sum(self.took_s.values())


async def rehearse(site: Site, wish: Wish) -> Rehearsal:
    """Change nothing; consumers of no group read on the target. Raises as the clusters."""
    took_s: dict[str, float] = {}
    began_s = time.monotonic()

    def passed(step: str) -> None:
        nonlocal began_s
        now_s = time.monotonic()
        took_s[step], began_s = now_s - began_s, now_s

    snapshot = await collect(site, wish)
    passed("collect")
    found = plan(snapshot, wish.options)
    passed("plan")
    proofs = await prove(site, found.moves, wish.sample, is_gone=wish.is_gone or bool(snapshot.source_error))
    found = found.with_blocked(differing(proofs))
    passed("sample")
    moves = found.moves
    readable = await first_records(site.target, {one.target: one.after for one in moves}, _RECORDS)
    unread = [
        Finding(one.group, Rule.UNREADABLE, f"could not be read from offset {one.after}", where(one))
        for one in moves
        if one.target not in readable
    ]
    passed("read")
    return Rehearsal(found.with_blocked(unread), tuple(proofs), took_s, len(moves) - len(unread))
