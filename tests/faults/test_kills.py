"""Five seeded blows of the kill run: the mirror is killed, frozen and held under load, and its copy stays exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.kill import run
from tests.kit.processes import Role
from tests.kit.rounds import plan
from tests.kit.stage import Stage

SEED = 3
#: Each once.
VICTIMS = (Role.PYTHON_WORKER, Role.WORKER, Role.SPARK_JVM, Role.SPARK_DRIVER)


@pytest.mark.kill
@pytest.mark.integration
@pytest.mark.slow
def test_five_blows_leave_neither_gap_nor_duplicate_nor_disorder(tmp_path: Path) -> None:
    rounds = plan(SEED, kills=4, stops=1, victims=VICTIMS, load_bytes=(100_000, 1_000_000))
    with Stage(tmp_path, seed=SEED, records_per_s=8_000, properties={"lease.ms": "2000"}) as stage:
        report = run(stage, rounds, seed=SEED, surplus_rounds=1, mapped=())
    assert not report.all_faults, report.markdown()
    assert len(report.rounds) == len(rounds)
