"""Roles in a process tree of the mirror's shape; nothing of Spark runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.processes import DeadlinePassed, Role, find, gone, survivors, tree, wait_until

DEADLINE_S = 60.0
#: Starts the next name of the chain below itself, as its first argument; ends with its input.
LINK = """
import os, subprocess, sys
first, _, rest = os.environ["CHAIN"].partition(" ")
command = [sys.executable, __file__, first]
child = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "CHAIN": rest}) if first else None
sys.stdin.read()
if child:
    child.communicate()
"""
CHAIN = "connectors.spark.driver_process org.apache.spark.deploy.SparkSubmit {daemon} {daemon} other"


@pytest.fixture(params=["pyspark.daemon", "connectors.spark.python_daemon"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    script = tmp_path / "link.py"
    script.write_text(LINK)
    command = [sys.executable, str(script), "connect-mirror-maker"]
    chain = CHAIN.format(daemon=request.param)
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "CHAIN": chain}) as process:
        # A process that was forked just now still bears the command line of the one before.
        wait_until(
            lambda: [member.role for member in tree(process.pid)][5:] == [Role.OTHER],
            DEADLINE_S,
            "the chain of processes is there",
        )
        yield process.pid
        process.communicate()


def test_each_process_has_its_role(worker: int) -> None:
    roles = "WORKER SPARK_DRIVER SPARK_JVM PYTHON_DAEMON PYTHON_WORKER OTHER"
    assert [member.role.name for member in tree(worker)] == roles.split()
    (jvm,) = find(worker, Role.SPARK_JVM)
    assert jvm.process.parent() == find(worker, Role.SPARK_DRIVER)[0].process


def test_who_is_gone_is_told_from_who_is_not(worker: int) -> None:
    members = tree(worker)
    (last,) = find(worker, Role.OTHER)
    last.process.kill()
    wait_until(lambda: gone([last]), DEADLINE_S, "the killed process is gone")
    assert survivors(members) == members[:-1]
    assert not gone(members)


def test_a_deadline_says_what_was_awaited() -> None:
    with pytest.raises(DeadlinePassed, match="until pigs fly"):
        wait_until(lambda: 0, 0, "pigs fly")
