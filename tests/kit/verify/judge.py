"""What was planted against what was reported: nothing overlooked, nothing invented, each by its right name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from connectors.verification.report import Difference, DifferenceKind, VerificationResult
from tests.kit.verify.damage import Kind, Planted

_FIELD: Final = {Kind.KEY: "key", Kind.VALUE: "value", Kind.HEADER: "headers", Kind.TIMESTAMP: "timestamp"}
#: How many differences one damage may be reported as.
_MOST: Final = {Kind.SWAPPED: 2}


def judge(planted: Iterable[Planted], result: VerificationResult) -> list[str]:
    """A sentence for each damage not found and each difference not planted; empty if the report is right."""
    reported = [one for part in result.partitions for one in part.differences]
    faults = [f"{part}: unread" for part in result.unread]
    faults += [] if result.is_complete else ["the run is not complete"]
    for damage in planted:
        matches = _matcher(damage)
        found = [one for one in reported if matches(one)]
        if not found:
            near = [one for one in reported if _is_near(damage, one)]
            faults.append(f"not found: {damage}; near it: {near or 'nothing'}")
        elif len(found) > _MOST.get(damage.kind, 1):
            faults.append(f"reported more than once: {damage}: {found}")
        reported = [one for one in reported if one not in found]
    faults += [f"invented: {one}" for one in reported]
    counted = sum(part.differences_total - len(part.differences) for part in result.partitions)
    return faults + ([f"{counted} more differences were counted and not named"] if counted else [])


def _matcher(damage: Planted) -> Callable[[Difference], bool]:
    kind = _kind(damage.kind)
    after = 1 if damage.kind is Kind.SWAPPED else 0

    def matches(one: Difference) -> bool:
        if (one.topic, one.partition) != (damage.topic, damage.partition) or one.kind is not kind:
            return False
        if kind is DifferenceKind.CHANGED and one.fields != (_FIELD[damage.kind],):
            return False
        if damage.kind is Kind.DOUBLED:
            return one.target_offset == damage.target_offset
        if damage.kind is Kind.SWAPPED and one.target_offset is not None:
            return damage.target_offset <= one.target_offset <= damage.target_offset + after
        return one.source_offset == damage.source_offset and (
            damage.kind in (Kind.MISSING, Kind.UNCOPIED) or one.target_offset == damage.target_offset
        )

    return matches


def _kind(kind: Kind) -> DifferenceKind:
    if kind in (Kind.MISSING, Kind.UNCOPIED):
        return DifferenceKind.MISSING
    if kind is Kind.DOUBLED:
        return DifferenceKind.DOUBLED
    return DifferenceKind.ORDER if kind is Kind.SWAPPED else DifferenceKind.CHANGED


def _is_near(damage: Planted, one: Difference) -> bool:
    offsets = (one.source_offset, one.target_offset)
    wanted = (damage.source_offset, damage.target_offset)
    return (one.topic, one.partition) == (damage.topic, damage.partition) and any(
        ours is not None and abs(ours - theirs) <= 1 for ours, theirs in zip(offsets, wanted, strict=True)
    )
