"""Sparks that the mirror does not start itself, on executors where nobody installed this project."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

import psutil

from connect.cli.daemons.spark import with_archive
from connect.embedded.cluster_config import HOST, choose
from connect.embedded.java import find_java
from connect.embedded.processes import Keeper
from connectors.spark.config import INSECURE, PROTECTION, SparkSettings
from tests.kit.checker import Checker, TopicPair
from tests.kit.mirror import Mirror
from tests.kit.processes import Member, Role, slices, tree, wait_until
from tests.kit.writer import Writer

_START_DEADLINE_S: Final = 180.0
_END_DEADLINE_S: Final = 120.0
_MASTER: Final = "master"
_SERVER: Final = "server"
_ROLES: Final = {_MASTER: Role.OTHER, "worker": Role.CLUSTER_WORKER, _SERVER: Role.SPARK_JVM}
#: More than two tasks need, so that one worker can take over what the other had.
_CORES: Final = 4


def bare_python(folder: Path, *, without: str = "") -> Path:
    """A Python with the project's dependencies and not the project; ``without`` names a module that it lacks too."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if without:
        (packages / f"{without}.py").write_text(f'raise ModuleNotFoundError("No module named {without!r}")\n')
    return python


class Spark:
    """Processes of one Spark; use as a context manager. None outlives the harness."""

    daemon_memory = "256m"

    def __init__(self, python: Path) -> None:
        home = find_spec("pyspark")
        assert home is not None and home.origin is not None
        self._home = Path(home.origin).parent
        self._python = python
        self.folder = Path(tempfile.mkdtemp(prefix="heliograph-cluster-"))
        self._keeper = Keeper(self.folder)
        self._pids: dict[str, int] = {}

    @property
    def properties(self) -> dict[str, str]:
        """Of a mirror that copies there."""
        raise NotImplementedError

    def members(self) -> list[Member]:
        return [
            Member(_ROLES[name.rstrip("0123456789")], member.process) if member.pid == pid else member
            for name, pid in self._pids.items()
            for member in tree(pid)
        ]

    def find(self, role: Role) -> list[Member]:
        return [member for member in self.members() if member.role is role]

    def slices(self, target_ports: Sequence[int]) -> list[Member]:
        return [member for pid in self._pids.values() for member in slices(pid, target_ports)]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def signal(self, name: str, number: signal.Signals) -> None:
        self._keeper.signal(name, number)

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_DAEMON_MEMORY": self.daemon_memory,
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "PYSPARK_PYTHON": str(self._python),
            **(environment or {}),
        }
        self._pids[name] = self._keeper.spawn(name, command, variables, self.folder / f"{name}.log")

    def _until_said(self, name: str, words: str, since: int = 0) -> None:
        wait_until(lambda: words in self.log(name)[since:] or self._ended(name), _START_DEADLINE_S, f"{name}: {words}")
        assert not self._ended(name), self.log(name)

    def _ended(self, name: str) -> bool:
        return self._keeper.poll(name) is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        members = self.members()
        self._keeper.close()
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process.kill()
        wait_until(lambda: not self.members(), _END_DEADLINE_S, "nothing is left of Spark")


def java_options() -> str:
    """Of JVMs that start fast: with the archive of the worker's own, where one was recorded."""
    archive = with_archive(SparkSettings(find_java().home)).java_options
    return f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {archive}".strip()


class StandaloneSpark(Spark):
    """A master and workers of one executor each, of ``bin/spark-class``. ``protected``: with a secret."""

    def __init__(self, python: Path, *, workers: int = 2, cores: int = _CORES, protected: bool = True) -> None:
        super().__init__(python)
        self._protection = {"spark.authenticate.secret": secrets.token_hex(16)} if protected else {INSECURE: "true"}
        conf = {**PROTECTION, "spark.network.crypto.cipher": "AES/GCM/NoPadding", **self._protection}
        self._conf = self.folder / "protection.conf"
        self._conf.write_text("".join(f"{key} {value}\n" for key, value in conf.items()) if protected else "")
        self._cores = cores
        self._workers = [f"worker{index}" for index in range(workers)]
        command = [*self._class("org.apache.spark.deploy.master.Master"), "--host", HOST]
        # It says which port it took: a chosen one may be taken meanwhile, and Spark would then try the next.
        self._spawn(_MASTER, [*command, "--port", "0", "--webui-port", "0"])
        try:
            self._until_said(_MASTER, "Starting Spark master at ")
            (self.master,) = re.findall(r"Starting Spark master at (spark://[\w.:]+)", self.log(_MASTER))
            for index in range(workers):
                self._spawn_worker(index)
            for name in self._workers:
                self._until_said(name, "Successfully registered with master")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def properties(self) -> dict[str, str]:
        """The link's listener is on loopback as it is by default, and so is all of this."""
        return {
            **self._protection,
            "spark.master": self.master,
            "spark.pyspark.python": str(self._python),
            "spark.driver.host": HOST,
            "spark.executor.memory": "512m",
        }

    def replace_worker(self, pid: int) -> None:
        """Start a worker that was killed again."""
        (index,) = (index for index, name in enumerate(self._workers) if self._pids[name] == pid)
        assert self._keeper.wait(self._workers[index], _END_DEADLINE_S), "the killed worker has ended"
        said = len(self.log(self._workers[index]))
        self._spawn_worker(index)
        self._until_said(self._workers[index], "Successfully registered with master", said)

    def _spawn_worker(self, index: int) -> None:
        command = [*self._class("org.apache.spark.deploy.worker.Worker"), "--host", HOST, "--cores", str(self._cores)]
        place = ["--memory", "2g", "--work-dir", str(self.folder / f"work{index}"), "--webui-port", "0"]
        self._spawn(self._workers[index], [*command, *place, self.master])

    def _class(self, name: str) -> list[str]:
        return [str(self._home / "bin" / "spark-class"), name, "--properties-file", str(self._conf)]


class ConnectServer(Spark):
    #: Of the server, which runs the tasks' JVM part as well; Spark takes no less.
    daemon_memory = "512m"

    def __init__(self, python: Path, *, slots: int = 8) -> None:
        super().__init__(python)
        (self._port,) = choose(1)
        self._slots = slots
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def remote(self) -> str:
        return f"sc://{HOST}:{self._port}"

    @property
    def properties(self) -> dict[str, str]:
        return {"spark.remote": self.remote}

    def start(self) -> None:
        if _SERVER in self._pids:
            assert self._keeper.wait(_SERVER, _END_DEADLINE_S), "the killed server has ended"
        conf = {
            "spark.master": f"local[{self._slots},4]",
            "spark.driver.host": HOST,
            "spark.driver.extraJavaOptions": java_options(),
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            **PROTECTION,
        }
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._spawn(_SERVER, [str(self._home / "bin" / "spark-submit"), *options, *server])
        wait_until(lambda: self._listens() or self._ended(_SERVER), _START_DEADLINE_S, "the Connect server listens")
        assert not self._ended(_SERVER), self.log(_SERVER)

    def kill(self) -> None:
        self.signal(_SERVER, signal.SIGKILL)

    def _listens(self) -> bool:
        time.sleep(0.1)
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


async def compare_under_load(
    mirror: Mirror, writer: Writer, source: str, target: str, pair: TopicPair, deadline_s: float
) -> None:
    """More is written, and nothing is missing, doubled or out of order once the mirror has caught up."""

    def written() -> int:
        return sum(count for counts in writer.acknowledged().values() for count in counts.values())

    before = written()
    wait_until(lambda: written() > before, deadline_s, "records are written")
    writer.pause()
    async with Checker(source, target, [pair]) as checker:
        report = await checker.caught_up(deadline_s)
    assert report.is_exact, "\n".join([report.summary(), *mirror.log_lines()[-30:]])
    writer.resume()
