"""What the parent of the Python workers loads, and from where."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psutil
import pytest

from connectors.spark.early_daemon import PLACE_VARIABLE, without_archives
from connectors.spark.sessions import spark_home
from tests.kit.processes import wait_until

DEADLINE_S = 60.0

LOADED = """
import sys
from connectors.spark import early_daemon
early_daemon.load()
print("pandas" in sys.modules, sys.modules["pyspark.worker"].__file__)
"""


def archives(home: Path) -> list[str]:
    """What Spark puts in front of the path of its workers."""
    found = [home / "python" / "lib" / "pyspark.zip", *(home / "jars").glob("spark-core*.jar")]
    return [str(path) for path in found]


def test_the_archives_of_the_installed_pyspark_are_left_out(tmp_path: Path) -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    others = [*sys.path, str(tmp_path / "own.zip")]
    assert without_archives([*archives(home), *others]) == others


def test_the_archives_of_another_spark_stay(tmp_path: Path) -> None:
    path = [*archives(tmp_path), *sys.path]
    assert without_archives(path) == path


def test_a_path_without_a_pyspark_stays(tmp_path: Path) -> None:
    assert without_archives([str(tmp_path)]) == [str(tmp_path)]


def test_workers_have_pyspark_from_files_that_are_compiled_and_no_pandas() -> None:
    path = os.pathsep.join(archives(spark_home()))  # as the pyspark that is installed has no other
    answer = subprocess.check_output([sys.executable, "-c", LOADED], text=True, env={**os.environ, "PYTHONPATH": path})
    pandas, file = answer.split()
    assert pandas == "False"
    assert Path(file).is_file()


def start(module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"connectors.spark.{module}", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}, cwd="/"
    )


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
    early = start("early_daemon", **place) if is_early else None
    if early is not None:
        wait_until((short_folder / "place").exists, DEADLINE_S, "the early parent listens")
    spark = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(short_folder)}
    daemon = start("python_daemon", "pyspark.worker", **place, **spark)
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
