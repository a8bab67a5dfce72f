"""What the mirror's log says about resumed partitions: one line each, beginning with ``resumed``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"\bresumed (?P<flow>\S+->\S+) (?P<partition>\S+-\d+): (?P<rest>.*)$")
_SURPLUS: Final = re.compile(r"\bsurplus(?:_records)?[ =:]+(\d+)")
_FALLBACK: Final = re.compile(r"at.least.once", re.IGNORECASE)


@dataclass(frozen=True)
class Resumed:
    """One partition taken over: records found beyond the stored position, and how many at most appear twice."""

    flow: str
    partition: str
    surplus_records: int
    at_least_once: bool
    may_double: int
    line: str


def resumed(lines: Iterable[str]) -> Iterator[Resumed]:
    for line in lines:
        found = _LINE.search(line)
        if found:
            rest = found["rest"]
            surplus = _SURPLUS.search(rest)
            yield Resumed(
                flow=found["flow"],
                partition=found["partition"],
                surplus_records=int(surplus[1]) if surplus else 0,
                at_least_once=bool(_FALLBACK.search(rest)),
                may_double=_number("may_double", rest),
                line=line.strip(),
            )


def _number(name: str, rest: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", rest)
    return int(found[1]) if found else 0
