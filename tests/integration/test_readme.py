"""The quick start of the front page, run line by line as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connect.embedded import cluster_config
from tests.kit.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_README = Path(__file__).parents[2] / "README.md"
_DEADLINE_S = 300.0


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    """Commands of terminals of their own; they end in reverse order."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for each in reversed(started):
        each.terminate()
        each.communicate(timeout=60)


def lines() -> list[str]:
    block = _README.read_text("utf-8").partition("## Quick start")[2].partition("\n##")[0]
    return re.findall(r"^    (heliograph .+)$", block, re.MULTILINE)


def two_ports() -> tuple[int, int]:
    while True:
        (port,) = cluster_config.choose(1)
        if cluster_config.is_free(port + 1):
            return port, port + 1


def test_the_quick_start_ends_in_a_running_flow(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    assert len(lines()) == 6
    us, eu = two_ports()

    def words(line: str) -> list[str]:
        command, *arguments = shlex.split(line.replace("19092", str(us)).replace("19093", str(eu)))
        return [str(Path(sys.executable).with_name(command)), *arguments]

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words(line), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )

    def begin(line: str) -> None:
        with (tmp_path / f"{len(running)}.txt").open("w") as out:
            running.append(subprocess.Popen(words(line), cwd=tmp_path, stdout=out, stderr=out, text=True))

    dev, init, check, plan, mirror, status = lines()
    begin(dev)
    wait_until(lambda: "# Ctrl-C" in (tmp_path / "0.txt").read_text(), _DEADLINE_S, "clusters run")
    for line, code in ((init, 0), (check, 0), (plan, 2)):
        ended = run(line)
        assert ended.returncode == code, (line, ended.stdout, ended.stderr)
    begin(mirror)
    wait_until(lambda: run(status).returncode == 0, _DEADLINE_S, "the flow runs")
    assert any(row.split()[:2] == ["us->eu", "running"] for row in run(status).stdout.splitlines())
