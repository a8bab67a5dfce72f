"""``heliograph demo`` as its user runs it, with fewer records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
