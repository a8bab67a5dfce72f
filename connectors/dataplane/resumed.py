"""How a partition goes on after an unclean end: what a slice tells the worker. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from connectors.dataplane.placing import Place
from connectors.dataplane.plan import PartitionPlan, Run
from connectors.dataplane.resume import Surplus, pair_runs
from connectors.dataplane.survivors import Survivors


@dataclass(frozen=True, slots=True)
class Resumed:
    """How one partition goes on: the plan to copy from, and the story for the log.

    ``fallback`` names why an exact place was not found: the copy goes on where nothing can be lost and may double
    ``may_double`` of ``surplus_records`` records, None where nobody knows how many had arrived; ``may_be_there`` of
    them may be named as lost though they are not, of a source that was cut. ``left_out`` source records among them are
    not in the target.
    ``refusal``: why it may not go on at all, in a sentence; ``later``: why it could not be told now. The plan then is
    as it was.
    """

    plan: PartitionPlan
    runs: tuple[Run, ...]
    surplus_records: int
    verified: bool
    fallback: str = ""
    refusal: str = ""
    left_out: int = 0
    later: str = ""
    may_double: int | None = 0
    may_be_there: int = 0

    def to_wire(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_wire(),
            "runs": [list(run) for run in self.runs],
            "surplus_records": self.surplus_records,
            "verified": self.verified,
            "fallback": self.fallback,
            "refusal": self.refusal,
            "left_out": self.left_out,
            "later": self.later,
            "may_double": self.may_double,
            "may_be_there": self.may_be_there,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Resumed:
        return cls(
            PartitionPlan.from_wire(data["plan"]),
            tuple((up, down, count) for up, down, count in data["runs"]),
            data["surplus_records"],
            data["verified"],
            data["fallback"],
            data["refusal"],
            data["left_out"],
            data["later"],
            data["may_double"],
            data["may_be_there"],
        )


def fallback(plan: PartitionPlan, end: int, surplus: Surplus, reason: str, *, at: int | None = None) -> Resumed:
    """At the stored position, or at an offset behind it up to which the source is as it was: what had arrived may come
    again. The stored leader epoch stays, for by it the copy sees what the source lost."""
    known = surplus.records
    may_double = known or None  # with a doubt, and nothing in the log
    offset = plan.next_source_offset if at is None else at
    found = replace(plan, next_source_offset=offset, target_end=end, proof=None)
    return Resumed(found, (), known, False, reason, may_double=may_double)


def counted_off(plan: PartitionPlan, surplus: Surplus, end: int, reason: str) -> Resumed:
    """Behind as many offsets as records had arrived, all before the end of the stored leader epoch; ``reason``: why
    some from further on may come again, else all of these offsets held one."""
    reached = plan.next_source_offset + surplus.records
    found = replace(plan, next_source_offset=reached, target_end=end, proof=None)
    if reason:
        return Resumed(found, (), surplus.records, False, reason, may_double=surplus.records)
    runs = pair_runs([(plan.next_source_offset, surplus.records)], surplus.segments)
    return Resumed(found, tuple(runs), surplus.records, True)


def survived(
    plan: PartitionPlan,
    place: Place,
    walk: Survivors,
    surplus: Surplus,
    end: int,
    *,
    kept_before: int,
    may_differ: bool,
) -> Resumed:
    """Where ``walk`` ended, as far as ``place`` trusts it; ``may_differ`` as for that. The leader epoch there is not
    known but up to ``kept_before``: what is before may be gone, and with it the epoch that it was of."""
    epoch = plan.last_source_epoch if place.offset <= kept_before else -1
    found = replace(plan, next_source_offset=place.offset, last_source_epoch=epoch, target_end=end, proof=None)
    return Resumed(
        found,
        tuple(walk.runs(place.offset, with_gone=not may_differ)),
        surplus.records,
        place.is_exact,
        place.reason,
        may_double=place.may_double,
        may_be_there=place.may_be_there,
    )
