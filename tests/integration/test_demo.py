"""``heliograph demo`` as its user runs it, with fewer records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kit.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_COMMAND = [str(Path(sys.executable).with_name("heliograph")), "demo", "--rate", "500"]


def test_the_demo_kills_its_mirror_loses_nothing_and_moves_a_group(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    ended = subprocess.run(
        [*_COMMAND, "--dir", str(tmp_path), "--svg", str(picture)],
        capture_output=True, text=True, timeout=900, check=False, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "of a core  latency" in ended.stdout
    assert " s after SIGKILL; " in ended.stdout
    assert ": 0 lost, 0 duplicated\n" in ended.stdout
    assert "6 of 6 partitions continue at the exact record\n" in ended.stdout
    shown = {line.split(" is order ")[1] for line in ended.stdout.splitlines() if " is order " in line}
    assert len(shown) == 1, "the next record on us is the first on eu"
    assert all(len(line) <= 80 for line in ended.stdout.splitlines() if not line.startswith("  $ "))
    assert "duplicated" in picture.read_text("utf-8")


#: What the demo says as a stage begins.
_STAGES = ("Two Kafka clusters", "1. Mirror", "2. Kill", "3. Stop", "4. Move")


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "number"),
    [*((stage, signal.SIGINT) for stage in _STAGES), *((stage, signal.SIGKILL) for stage in _STAGES[1:])],
)
def test_a_demo_that_ends_at_any_stage_leaves_no_process(tmp_path: Path, stage: str, number: signal.Signals) -> None:
    with (tmp_path / "out").open("wb") as out:
        running = subprocess.Popen([*_COMMAND, "--dir", str(tmp_path)], stdout=out, stderr=out, start_new_session=True)
    seen: set[psutil.Process] = set()

    def begun() -> bool:
        assert running.poll() is None, (tmp_path / "out").read_text()
        seen.update(psutil.Process(running.pid).children(recursive=True))
        return stage in (tmp_path / "out").read_text() and len(seen) > 1

    wait_until(begun, 600.0, f"the demo is at {stage}")
    seen.update(psutil.Process(running.pid).children(recursive=True))
    running.send_signal(number)
    running.wait(60)
    wait_until(lambda: not any(one.is_running() for one in seen), 30.0, "no process is left")
