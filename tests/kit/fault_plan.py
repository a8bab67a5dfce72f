"""The plan of a fault run, from a seed: every kind comes at each side, in each direction, before any comes again."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.kit.pipe import Direction


class Side(enum.Enum):
    SOURCE = "source"
    TARGET = "target"


class Kind(enum.Enum):
    CUT = "cut"
    UNANSWERED = "cut behind the broker's work, before its answer arrives"
    HOLD = "held and let go later"
    STALL = "stalled"
    HALF_CLOSE = "half-closed"
    DELAY = "delayed"
    LIMIT = "limited"


#: After these a client has to come on another connection.
BREAKING: Final = (Kind.CUT, Kind.UNANSWERED, Kind.HALF_CLOSE)
#: These befall every connection, later ones too.
WEATHER: Final = (Kind.DELAY, Kind.LIMIT)
#: What has an end ends before a request is given up, or after.
_LASTING_S: Final = (0.2, 5.0)
_DELAY_MS: Final = (20.0, 400.0)
#: Mostly inside a request or an answer that carries records; sometimes between two of those that carry none.
_WITHIN_RECORD_BYTES: Final = 300_000
_WITHIN_OTHER_BYTES: Final = 1_500
_RECORD_BYTES_PER_S: Final = (20_000.0, 400_000.0)
_OTHER_BYTES_PER_S: Final = (200.0, 4_000.0)
#: Where records travel.
_RECORDS: Final = {Side.SOURCE: Direction.ANSWERS, Side.TARGET: Direction.REQUESTS}


@dataclass(frozen=True)
class Fault:
    """One fault. ``copying``: it befalls the connections that copy only, else whatever speaks to that cluster."""

    number: int
    kind: Kind
    side: Side
    direction: Direction
    copying: bool
    after_bytes: int
    lasting_s: float
    delay_ms: float
    bytes_per_s: float

    def __str__(self) -> str:
        which = "copying connections" if self.copying else "all connections"
        where = f"{self.direction.value} of {which} to the {self.side.value}"
        match self.kind:
            case Kind.DELAY:
                return f"{where} {self.kind.value} by {self.delay_ms:.0f} ms for {self.lasting_s:.1f} s"
            case Kind.LIMIT:
                return f"{where} {self.kind.value} to {self.bytes_per_s:.0f} bytes/s for {self.lasting_s:.1f} s"
            case Kind.HOLD | Kind.STALL:
                return f"{where} {self.kind.value} after {self.after_bytes} bytes for {self.lasting_s:.1f} s"
            case _:
                return f"{where} {self.kind.value} after {self.after_bytes} bytes"


def plan(seed: int, rounds: int) -> list[Fault]:
    """So many faults; 28 have every kind at each side in each direction."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < rounds:
        one_way = {(kind, side): chance.choice(tuple(Direction)) for kind in Kind for side in Side}
        other_way = {key: _other(direction) for key, direction in one_way.items()}
        for directions in (one_way, other_way):
            turns = list(directions.items())
            chance.shuffle(turns)
            faults += [_fault(chance, len(faults) + number, *turn) for number, turn in enumerate(turns, 1)]
    return faults[:rounds]


def wanted(faults: Iterable[Fault]) -> Iterator[tuple[Kind, Side]]:
    """What a run of these has to have made, each once."""
    yield from dict.fromkeys((fault.kind, fault.side) for fault in faults)


def _fault(chance: random.Random, number: int, what: tuple[Kind, Side], direction: Direction) -> Fault:
    kind, side = what
    if kind is Kind.UNANSWERED:
        direction = Direction.ANSWERS
    carries_records = direction is _RECORDS[side]
    return Fault(
        number=number,
        kind=kind,
        side=side,
        direction=direction,
        copying=kind not in WEATHER and chance.random() < 0.7,
        after_bytes=chance.randint(1, _WITHIN_RECORD_BYTES if carries_records else _WITHIN_OTHER_BYTES),
        lasting_s=round(chance.uniform(*_LASTING_S), 1),
        delay_ms=round(chance.uniform(*_DELAY_MS)),
        bytes_per_s=round(chance.uniform(*(_RECORD_BYTES_PER_S if carries_records else _OTHER_BYTES_PER_S))),
    )


def _other(direction: Direction) -> Direction:
    return Direction.ANSWERS if direction is Direction.REQUESTS else Direction.REQUESTS
