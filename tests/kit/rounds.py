"""The plan of a kill run, from a seed: who dies or freezes in which round, and what happens to the target's path."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.kit.processes import Role


class Path(enum.Enum):
    """What befalls the path to the target around the kill."""

    PLAIN = "plain"
    HELD = "requests held on the path"
    UNANSWERED = "answers held on the path"
    FROZEN = "broker frozen"


class Moment(enum.Enum):
    """When held bytes are let go: at the latest when the successor writes, at the earliest when it has asked."""

    ASKED = "the successor has asked"
    RESUMED = "the successor has resumed"
    COPYING = "the successor copies"


@dataclass(frozen=True)
class Round:
    """One round, after ``load_bytes``; ``stop``: the victim is stopped past its lease and continued, not killed."""

    number: int
    victim: Role
    stop: bool
    path: Path
    release: Moment
    load_bytes: int

    def __str__(self) -> str:
        frozen = "a slice" if self.victim is Role.PYTHON_WORKER else f"the {self.victim.value} and its slices"
        blow = f"SIGSTOP of {frozen}" if self.stop else f"SIGKILL of the {self.victim.value}"
        if self.path is Path.PLAIN:
            return f"{blow} after {self.load_bytes} bytes"
        return f"{blow} after {self.load_bytes} bytes, {self.path.value} until {self.release.value}"


KILLED: Final = (Role.WORKER, Role.SPARK_DRIVER, Role.SPARK_JVM, Role.PYTHON_WORKER)
#: On a standalone cluster there are others to kill, and an executor to freeze as its machine would.
KILLED_ON_CLUSTER: Final = (*KILLED, Role.EXECUTOR, Role.CLUSTER_WORKER)
FROZEN: Final = (Role.PYTHON_WORKER,)
FROZEN_ON_CLUSTER: Final = (Role.PYTHON_WORKER, Role.EXECUTOR)
HOLDING: Final = (Path.HELD, Path.UNANSWERED)
_LOAD_BYTES: Final = (200_000, 3_000_000)


def plan(
    seed: int,
    kills: int,
    stops: int,
    victims: Sequence[Role] = KILLED,
    frozen: Sequence[Role] = FROZEN,
    load_bytes: tuple[int, int] = _LOAD_BYTES,
) -> list[Round]:
    """Every victim in turn, in an order of chance; a frozen broker lets nothing resume, so its moment is ``ASKED``."""
    chance = random.Random(seed)
    turns = [(victim, False) for victim, _ in zip(itertools.cycle(victims), range(kills), strict=False)]
    turns += [(victim, True) for victim, _ in zip(itertools.cycle(frozen), range(stops), strict=False)]
    paths = [*_paths(kills, len(victims)), *_paths(stops, max(stops, 1))]
    blows = list(zip(turns, paths, strict=True))
    chance.shuffle(blows)
    return [
        Round(
            number=number,
            victim=victim,
            stop=stop,
            path=path,
            release=chance.choice((Moment.RESUMED, Moment.COPYING)) if path in HOLDING else Moment.ASKED,
            load_bytes=chance.randint(*load_bytes),
        )
        for number, ((victim, stop), path) in enumerate(blows, 1)
    ]


def _paths(count: int, group: int) -> list[Path]:
    """All kinds in turn, shifted by one after each ``group``, so that no victim keeps one kind."""
    order = (Path.PLAIN, Path.HELD, Path.UNANSWERED, Path.FROZEN)
    return [order[(index + index // group) % len(order)] for index in range(count)]
