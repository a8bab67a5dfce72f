"""What the parent of the Python workers loads, and how one that is ready takes the place of one just started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psutil
import pytest

from connectors.spark.python_daemon import PLACE_VARIABLE, exec_early_daemon, without_archives
from connectors.spark.sessions import spark_home
from tests.kit.processes import wait_until

DEADLINE_S = 60.0

LOADED = """
import sys
from connectors.spark import python_daemon
python_daemon.load()
print("pandas" in sys.modules, sys.modules["pyspark.worker"].__file__)
"""


def archives(home: Path) -> list[str]:
    """What Spark puts in front of the path of its workers."""
    found = [home / "python" / "lib" / "pyspark.zip", *(home / "jars").glob("spark-core*.jar")]
    return [str(path) for path in found]


def test_the_archives_of_the_installed_pyspark_are_left_out(tmp_path: Path) -> None:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    others = [*sys.path, str(tmp_path / "own.zip")]
    assert without_archives([*archives(home), *others]) == others


@pytest.mark.parametrize("has_archives", [True, False])
def test_the_archives_of_another_spark_stay_and_so_does_a_path_without(tmp_path: Path, has_archives: bool) -> None:
    path = [*archives(tmp_path), *sys.path] if has_archives else [str(tmp_path)]
    assert without_archives(path) == path


def test_workers_have_pyspark_from_files_that_are_compiled_and_no_pandas() -> None:
    path = os.pathsep.join(archives(spark_home()))  # as the pyspark that is installed has no other
    answer = subprocess.check_output([sys.executable, "-c", LOADED], text=True, env={**os.environ, "PYTHONPATH": path})
    pandas, file = answer.split()
    assert pandas == "False"
    assert Path(file).is_file()


def start_daemon(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "connectors.spark.python_daemon", *arguments]
    pipe, environment = subprocess.PIPE, {**os.environ, **environment}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd="/")


def text(stream: IO[bytes] | None) -> str:
    """A text behind its length, as Spark and its Python processes write them."""
    assert stream is not None
    return stream.read(int.from_bytes(stream.read(4), "big")).decode()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a socket has 107 bytes at most, and pytest's folders are long."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("is_early", [True, False], ids=["early one", "none"])
def test_workers_are_children_of_the_early_parent_if_there_is_one(short_folder: Path, is_early: bool) -> None:
    """What a JVM does: it starts the daemon, reads where it listens, and gets a worker for each connection."""
    place = {PLACE_VARIABLE: str(short_folder / "place")}
    early = start_daemon(**place) if is_early else None
    if early is not None:
        wait_until((short_folder / "place").exists, DEADLINE_S, "the early parent listens")
    spark = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(short_folder)}
    daemon = start_daemon("pyspark.worker", **place, **spark)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(text(daemon.stdout))
            with connection.makefile("rb") as stream:
                worker = psutil.Process(int.from_bytes(stream.read(4), "big"))
            parent = daemon if early is None else early
            assert worker.ppid() == parent.pid
            assert os.getpgid(worker.pid) == parent.pid != os.getpgid(0), "a group that ends without the driver's"
        assert daemon.stdin is not None
        daemon.stdin.close()  # as the end of a JVM does
        daemon.wait(DEADLINE_S)
        parent.wait(DEADLINE_S)
        wait_until(lambda: not worker.is_running(), DEADLINE_S, "the worker has ended")
    finally:
        for process in filter(None, (daemon, early)):
            process.kill()
            with process:  # which closes its pipes
                pass


#: Says what it has taken, forks a child that lives until the input is closed, echoes a word, and ends with another.
TAKER = """
import os, select, sys
from connectors.spark.python_daemon import Taker
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
from connectors.spark.python_daemon import exec_early_daemon
path = sys.argv.pop(1)
sys.exit(0 if exec_early_daemon(path) else 3)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-c", code, *arguments], subprocess.PIPE
        environment = {**os.environ, **more}
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
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
    assert giver.stdout is not None and giver.stdin is not None
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
