"""A process that is ready takes the place of one that was just started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.spark.early_daemon import exec_early_daemon
from tests.kit.processes import wait_until

DEADLINE_S = 60.0
#: Says what it has taken, forks a child that lives until the input is closed, echoes a word, and ends with another.
TAKER = """
import os, select, sys
from connectors.spark.early_daemon import Taker
taker = Taker(sys.argv[1])
open(sys.argv[1] + ".ready", "w").close()
if taker.take():
    print(os.environ["ITS_OWN"], "OURS" in os.environ, sys.argv[1:], flush=True)
    if not os.fork():
        closed = select.poll()
        closed.register(0, 0)
        closed.poll()
        os._exit(0)
    os.write(1, os.read(0, 64))
    print("an end", file=sys.stderr, flush=True)
"""
GIVER = """
import sys
from connectors.spark.early_daemon import exec_early_daemon
path = sys.argv.pop(1)
sys.exit(0 if exec_early_daemon(path) else 3)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={**os.environ, **more},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "place")


def ready(start: Start, path: str) -> subprocess.Popen[str]:
    taker = start(TAKER, path, OURS="yes")
    wait_until(Path(path + ".ready").exists, DEADLINE_S, "the taker listens")
    return taker


def test_the_taker_has_input_output_environment_and_arguments_of_the_giver(start: Start, path: str) -> None:
    taker = ready(start, path)
    giver = start(GIVER, path, "pyspark.worker", ITS_OWN="word")
    assert giver.stdout is not None
    assert giver.stdin is not None
    assert giver.stdout.readline() == "word False ['pyspark.worker']\n"
    giver.stdin.write("some")
    output, errors = giver.communicate(timeout=DEADLINE_S)
    assert (output, errors, giver.returncode) == ("some", "an end\n", 0)
    assert taker.wait(DEADLINE_S) == 0


def test_the_giver_ends_with_the_taker_whatever_that_has_forked(start: Start, path: str) -> None:
    taker = ready(start, path)
    giver = start(GIVER, path, ITS_OWN="word")
    assert giver.stdout is not None
    giver.stdout.readline()
    taker.send_signal(signal.SIGKILL)
    assert giver.wait(DEADLINE_S) == 0, "its input is open, so what was forked is alive"


def test_the_taker_ends_when_nothing_wants_its_place(start: Start, path: str) -> None:
    taker = ready(start, path)
    assert taker.communicate(timeout=DEADLINE_S) == ("", "")
    assert not Path(path).exists()
    assert start(GIVER, path).wait(DEADLINE_S) == 3


def test_only_one_gives_its_place(start: Start, path: str) -> None:
    ready(start, path)
    first = start(GIVER, path, ITS_OWN="word")
    assert first.stdout is not None
    first.stdout.readline()
    assert start(GIVER, path).wait(DEADLINE_S) == 3


def test_a_taker_that_was_killed_leaves_the_giver_its_place(start: Start, path: str) -> None:
    taker = ready(start, path)
    taker.kill()
    taker.wait(DEADLINE_S)
    assert start(GIVER, path).wait(DEADLINE_S) == 3
    following = ready(start, path)
    assert following.poll() is None, "what the other left does not keep it from listening"


@pytest.mark.parametrize("path", ["", "/" + 200 * "x"], ids=["no path", "a path that is too long"])
def test_without_a_way_to_a_taker_the_place_is_kept(path: str) -> None:
    assert not exec_early_daemon(path)
