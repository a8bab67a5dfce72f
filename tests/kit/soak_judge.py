"""One target log against what a reader of its source has seen, record by record, by digests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Seen(NamedTuple):
    """A record as a reader saw it, by digests; ``life``: which of the topics of its name, one after the other."""

    life: int
    offset: int
    key: int
    content: int


class Lost(NamedTuple):
    """A range of offsets that a record of a gap names, both ends included; ``last`` None: up to its end."""

    life: int
    first: int
    last: int | None

    def has(self, seen: Seen) -> bool:
        return seen.life == self.life and self.first <= seen.offset and (self.last is None or seen.offset <= self.last)


@dataclass(slots=True)
class Verdict:
    """Counts of records: ``lost`` are named by gap records, ``superseded`` by a later one of their key."""

    source_records: int = 0
    target_records: int = 0
    lost: int = 0
    superseded: int = 0
    missing: int = 0
    doubled: int = 0
    disorder: int = 0
    strange: int = 0
    wrongly_lost: int = 0
    #: How many may come twice, as the mirror said so, and of how many it counted offsets that it could not look at.
    announced: int = 0
    counted: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.disorder or self.strange or self.is_wrong_of_losses or self.is_doubled)

    @property
    def is_wrong_of_losses(self) -> bool:
        """So many offsets that held no record may have been counted for records that arrived, at most."""
        return self.wrongly_lost > self.announced + self.counted

    @property
    def is_doubled(self) -> bool:
        return self.doubled > self.announced

    def add(self, fault: str, most: int = 3) -> None:
        if len(self.faults) < most:
            self.faults.append(fault)


def judge(
    source: Sequence[Seen],
    target: Sequence[Seen],
    lost: Collection[Lost] = (),
    *,
    compacted: bool = False,
    announced: int = 0,
    counted: int = 0,
) -> Verdict:
    """Whether ``target`` is ``source`` without ``lost``; of ``announced`` and ``counted`` no offsets were known."""
    verdict = Verdict(len(source), len(target), announced=announced, counted=counted)
    index = {seen.content: at for at, seen in enumerate(source)}
    found: set[int] = set()
    highest = -1
    for record in target:
        at = index.get(record.content)
        if at is None:
            verdict.strange += 1
            verdict.add(f"target offset {record.offset} is no record of the source")
        elif at in found:
            verdict.doubled += 1
            if verdict.is_doubled:
                verdict.add(f"target offset {record.offset} is {_words(source[at])} again")
        else:
            if at < highest:
                verdict.disorder += 1
                verdict.add(f"target offset {record.offset} is {_words(source[at])}, behind {_words(source[highest])}")
            found.add(at)
            highest = max(highest, at)
    _judge_missing(source, found, lost, compacted, verdict)
    return verdict


def _judge_missing(
    source: Sequence[Seen], found: set[int], lost: Collection[Lost], compacted: bool, verdict: Verdict
) -> None:
    newest = {seen.key: at for at, seen in enumerate(source)} if compacted else {}
    for at, seen in enumerate(source):
        named = any(each.has(seen) for each in lost)
        if at in found:
            if named:
                verdict.wrongly_lost += 1
                if verdict.is_wrong_of_losses:
                    verdict.add(f"{_words(seen)} is named by a gap record and is at the target")
        elif named:
            verdict.lost += 1
        elif newest.get(seen.key, at) > at:
            verdict.superseded += 1
        else:
            verdict.missing += 1
            verdict.add(f"{_words(seen)} is missing, and no gap record names it")


def _words(seen: Seen) -> str:
    return f"source offset {seen.offset}" + (f" of topic {seen.life + 1} of the name" if seen.life else "")
