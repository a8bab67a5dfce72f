"""The mirror as users start it: ``connect-mirror-maker mm2.properties`` in a process of its own, its log in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self, TypeVar

import psutil

from connect.embedded import cluster_config
from connect.embedded.processes import Keeper
from tests.kit.members import until
from tests.kit.processes import Member, survivors, tree, wait_until
from tests.kit.resumed import Resumed, resumed

#: Of a mirror between single brokers: one copy of everything, no heartbeats, no checkpoints, no settings kept in step,
#: and a member that is killed is missed after six seconds instead of ten.
SMALL: Final[Mapping[str, str]] = {
    "replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "emit.checkpoints.enabled": "false",
    "emit.heartbeats.enabled": "false",
    "heartbeats.replication.enabled": "false",
    # Tests give topics of the target settings of their own.
    "sync.topic.configs.enabled": "false",
    "eu.session.timeout.ms": "6000",
    "eu.heartbeat.interval.ms": "1000",
}

#: Behind :data:`SMALL` where no worker is killed: a machine that stands still for seconds costs nobody the membership
#: or a slice, and adds no take-over with a fence's marker, and no count or position that begins anew.
CALM: Final[Mapping[str, str]] = {"eu.session.timeout.ms": "60000", "eu.worker.lease.ms": "40000", "lease.ms": "60000"}

#: The same where a worker is killed once: its successor waits for the end of its session.
PATIENT: Final[Mapping[str, str]] = {
    "eu.session.timeout.ms": "20000",
    "eu.worker.lease.ms": "15000",
    "lease.ms": "30000",
}

#: In the file of a flow whose groups are moved at the target within a second or two.
FOLLOWED_GROUPS: Final[Mapping[str, str]] = {
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
}

#: In the file of a long run: epochs that end under load, so that slices hand over.
HANDOVERS: Final[Mapping[str, str]] = {"copy.epoch.ms": "30000"}

#: Records and their positions in the same transactions, on the way from us to eu.
EXACTLY_ONCE: Final[Mapping[str, str]] = {
    "eu.exactly.once.source.support": "enabled",
    "us->eu.consumer.isolation.level": "read_committed",
}


def replicated(target_nodes: int) -> dict[str, str]:
    """Return :data:`SMALL` for a target of so many brokers: three replicas of everything there, if there are three."""
    replicas = str(min(3, target_nodes))
    at_source = "offset-syncs.topic.replication.factor"
    return {
        key: replicas if key.endswith("replication.factor") and key != at_source else value
        for key, value in SMALL.items()
    }


def one_flow(us: str, eu: str, topics: str, alias: str = "us", *, tasks: int = 2) -> dict[str, str]:
    """The file of a flow to the brokers ``eu`` from the brokers ``us``, which it calls ``alias``; :data:`SMALL`."""
    return {
        "clusters": f"{alias}, eu",
        f"{alias}.bootstrap.servers": us,
        "eu.bootstrap.servers": eu,
        f"{alias}->eu.enabled": "true",
        f"{alias}->eu.topics": topics,
        **SMALL,
        "tasks.max": str(tasks),
    }


def with_rest() -> dict[str, str]:
    """Return what gives a mirror its REST API, on a free port; its address is the value of ``listeners``."""
    (port,) = cluster_config.choose(1)
    return {"dedicated.mode.enable.public.rest": "true", "listeners": f"http://{cluster_config.HOST}:{port}"}


def in_sync(target_nodes: int) -> dict[str, str]:
    """Return the brokers' setting of a target on which a write needs two replicas, if there are two."""
    return {"min.insync.replicas": str(min(2, target_nodes))}


def write_properties(file: Path, properties: Mapping[str, str]) -> None:
    file.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()))


T = TypeVar("T")
_WORKER: Final = "worker"
#: Users are promised less; here a machine may be very busy.
STOP_DEADLINE_S: Final = 120.0
_KILL_DEADLINE_S: Final = 120.0
#: Spark's Python daemon ends by itself, once its JVM has: a moment behind the worker.
_GONE_DEADLINE_S: Final = 120.0


class Mirror:
    """One mirror over its restarts, which never outlives its context; ``started`` counts the mirrors, not restarts."""

    started: ClassVar[int] = 0

    def __init__(self, properties: Mapping[str, str], directory: Path, command: Sequence[str] = ()) -> None:
        self.properties_file = directory / "mm2.properties"
        self.configure(properties)
        self.log_file = directory / "mirror.log"
        self.log_file.touch()
        self.command = [*(command or [str(Path(sys.executable).parent / "connect-mirror-maker")])]
        self._keeper = Keeper(Path(tempfile.mkdtemp(prefix="heliograph-mirror-")))
        self._pid = 0
        self._members: dict[int, Member] = {}

    @property
    def pid(self) -> int:
        return self._pid

    def configure(self, properties: Mapping[str, str]) -> None:
        write_properties(self.properties_file, properties)

    def start(self) -> None:
        Mirror.started += not self._pid
        self._pid = self._keeper.spawn(_WORKER, [*self.command, str(self.properties_file)], os.environ, self.log_file)

    @property
    def is_running(self) -> bool:
        return bool(self._pid) and self._keeper.poll(_WORKER) is None

    def members(self) -> list[Member]:
        """The process tree now; each process ever seen is remembered for :meth:`leftovers`."""
        found = tree(self.pid)
        self._members.update((member.pid, member) for member in found)
        return found

    def leftovers(self) -> list[Member]:
        return survivors(self._members.values())

    def assert_gone(self) -> None:
        """An ``AssertionError`` if any process of this mirror stays; its Spark's ends a moment behind the worker."""
        wait_until(lambda: not self.leftovers(), _GONE_DEADLINE_S, "no process of the mirror is left")

    def stop(self, within_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM; the exit code. An ``AssertionError`` if it takes longer than ``within_s``."""
        self.members()
        self._keeper.signal(_WORKER, signal.SIGTERM)
        if not self._keeper.wait(_WORKER, within_s):
            raise AssertionError(f"the mirror did not stop within {within_s:g} s of SIGTERM")
        exit_code = self._keeper.poll(_WORKER)
        assert exit_code is not None, "it has ended"
        return exit_code

    def kill(self) -> None:
        """SIGKILL of the worker; returns when it has ended."""
        self.members()
        self._keeper.signal(_WORKER, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        assert self._keeper.wait(_WORKER, _KILL_DEADLINE_S), "a killed process ends"

    def log_lines(self, start: int = 0) -> list[str]:
        """The log's whole lines from byte ``start`` on."""
        with self.log_file.open("rb") as log:
            log.seek(start)
            text = log.read()
        return text[: text.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()

    def await_line(self, start: int, parts: Sequence[str], deadline_s: float) -> str:
        """The first line of the log behind byte ``start`` that has all ``parts``."""

        def found() -> str:
            return next((line for line in self.log_lines(start) if all(part in line for part in parts)), "")

        return self.wait_until(found, f"the log says {parts}", deadline_s)

    def wait_until(self, ask: Callable[[], T], what: str, deadline_s: float) -> T:
        """The first true answer, as long as the mirror runs."""

        def answer() -> T:
            assert self.is_running, self.log_lines()[-20:]
            return ask()

        return wait_until(answer, deadline_s, what)

    async def until(self, ask: Callable[[], Awaitable[object]], what: str, deadline_s: float = 200.0) -> None:
        """The same for who asks in a loop."""

        async def answer() -> object:
            assert self.is_running, self.log_lines()[-20:]
            return await ask()

        await until(answer, what, deadline_s)

    def log_end(self) -> int:
        return self.log_file.stat().st_size

    def resumed(self, start: int = 0) -> list[Resumed]:
        return list(resumed(self.log_lines(start)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            self.members()
        self._keeper.close()
        for member in self.leftovers():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process.kill()
        wait_until(lambda: not self.leftovers(), _KILL_DEADLINE_S, "the mirror's processes are gone")
