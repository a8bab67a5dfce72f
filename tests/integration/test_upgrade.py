"""A mirror of the older version in ``HELIOGRAPH_OLDER`` is ended under load, this one continues it, and goes back."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.kit.processes import wait_until
from tests.kit.stage import Stage

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

DEADLINE_S = 240.0


@pytest.fixture
def older() -> list[str]:
    clone = os.environ.get("HELIOGRAPH_OLDER")
    if not clone:
        pytest.skip("HELIOGRAPH_OLDER names no clone of an older version")
    # Older versions look for their modules in the folder first where they were started.
    return ["/usr/bin/env", "PYTHONSAFEPATH=1", str(Path(clone) / ".venv" / "bin" / "connect-mirror-maker")]


@pytest.mark.kill
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_each_version_continues_exactly_where_the_other_ended(tmp_path: Path, older: list[str], ending: str) -> None:
    with Stage(tmp_path, seed=11, records_per_s=3_000) as stage:
        this_version, stage.mirror.command = stage.mirror.command, older
        assert stage.set_going(DEADLINE_S) == []
        surplus = 0
        for command in (this_version, older, this_version):
            wait_until(partial(_copies, stage, stage.passed_bytes() + 1_000_000), DEADLINE_S, "the mirror copies")
            if ending == "stopped":
                assert stage.mirror.stop() == 0
            else:
                stage.mirror.kill()
            stage.mirror.assert_gone()
            start, stage.mirror.command = stage.mirror.log_end(), command
            stage.mirror.start()
            report = stage.caught_up(DEADLINE_S)
            assert report.is_exact, report.summary()
            resumed = stage.mirror.resumed(start)
            assert not [one.line for one in resumed if one.at_least_once or one.may_double]
            surplus += sum(one.surplus_records for one in resumed)
        end = stage.shut_down()
        assert not end.faults
        assert end.comparison.is_exact, end.comparison.summary()
        assert stage.map_faults() == []
    assert bool(surplus) == (ending == "killed"), "only who is killed leaves records that no position covers"


def _copies(stage: Stage, size: int) -> bool:
    return stage.passed_bytes() >= size
