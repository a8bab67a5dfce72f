"""What the mirror's log says about resumed partitions: one line each, beginning with ``resumed``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"\bresumed (?P<flow>\S+->\S+) (?P<partition>\S+-\d+): (?P<rest>.*)$")
_SURPLUS: Final = re.compile(r"\bsurplus(?:_records)?[ =:]+(\d+)")
#: More than a test ever copies.
ANY: Final = 2**62
_FALLBACK: Final = re.compile(r"at.least.once", re.IGNORECASE)


@dataclass(frozen=True)
class Resumed:
    """One partition taken over: how many records were found at the target beyond the stored position, how many at most
    come twice (:data:`ANY` where the log does not know), and how many at most are named as lost and are there."""

    flow: str
    partition: str
    surplus_records: int
    at_least_once: bool
    may_double: int
    may_be_there: int
    line: str


def resumed(lines: Iterable[str]) -> Iterator[Resumed]:
    """The resumed partitions that log lines tell of, in order."""
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
                may_be_there=_number("may_be_there", rest),
                line=line.strip(),
            )


def _number(name: str, rest: str) -> int:
    found = re.search(rf"\b{name}=(\d+|unknown)", rest)
    if found is None:
        return 0
    return ANY if found[1] == "unknown" else int(found[1])
