"""The kill run finds a copier out that trusts the target's end; and proxy and brokers do what its rounds rest on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.kill import run
from tests.kit.processes import Role
from tests.kit.rounds import Moment, Round
from tests.kit.rounds import Path as PathFault
from tests.kit.stage import Stage
from tests.kit.writer import Load

pytestmark = [pytest.mark.integration, pytest.mark.long]

NAIVE = [sys.executable, "-m", "tests.kit.naive_mirror"]
LOADS = (Load("orders", 2), Load("clicks", 1, "lz4"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, seed=1, loads=LOADS, records_per_s=4000, command=NAIVE) as opened:
        yield opened


def a_round(number: int, victim: Role, path: PathFault, release: Moment = Moment.ASKED, *, stop: bool = False) -> Round:
    return Round(number, victim, stop=stop, path=path, release=release, load_bytes=50_000)


def test_plain_kills_do_not_find_the_naive_copier_but_held_bytes_do(stage: Stage) -> None:
    rounds = [a_round(1, Role.PYTHON_WORKER, PathFault.PLAIN), a_round(2, Role.WORKER, PathFault.HELD, Moment.COPYING)]
    report = run(stage, rounds, seed=1, surplus_rounds=0)
    assert [bool(played.faults) for played in report.rounds] == [False, True], report.markdown()
    assert report.rounds[1].kept_bytes
    assert "duplicates" in report.rounds[1].faults[0]
    assert report.exit_code == 0
