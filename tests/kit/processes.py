"""The processes of a mirror by role, found below the worker's pid, and what can be done to them."""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import psutil

_POLL_S: Final = 0.03
_LONGEST_POLL_S: Final = 0.2
#: Spark's own daemon of Python workers, and ours in its place (``spark.python.daemon.module``); and those of versions
#: before, which upgrade runs start.
_DAEMONS: Final = (
    "pyspark.daemon",
    "connectors.spark.python_daemon",
    "connectors.spark.early_daemon",
    "connectors.dataplane.daemon",
)
_DRIVERS: Final = ("connectors.spark.driver_process", "connectors.dataplane.spark")
T = TypeVar("T")


class DeadlinePassed(AssertionError):
    """What a test waited for did not come."""


def wait_until(condition: Callable[[], T], deadline_s: float, what: str) -> T:
    """The first true answer of ``condition``; :class:`DeadlinePassed` saying ``what`` and the last answer."""
    first_s = time.monotonic()
    while True:
        began_s = time.monotonic()
        answer = condition()
        if answer:
            return answer
        now_s = time.monotonic()
        if now_s > first_s + deadline_s:
            raise DeadlinePassed(f"waited {deadline_s:g} s in vain until {what} (last answer: {answer!r:.200})")
        # Half of a core at most is spent on looks, because what is waited for needs it; a long wait has fewer.
        time.sleep(max(_POLL_S, min(max(now_s - began_s, (now_s - first_s) / 10), _LONGEST_POLL_S)))


def soonest_s(succeeds: Callable[[], object]) -> float:
    """Return the least time that five calls take, which must succeed; others say how busy the machine is."""
    took_s = []
    for _ in range(5):
        began_s = time.monotonic()
        assert succeeds()
        took_s.append(time.monotonic() - began_s)
    return min(took_s)


class Role(enum.Enum):
    WORKER = "worker"
    SPARK_DRIVER = "spark driver child"
    SPARK_JVM = "spark jvm"
    PYTHON_DAEMON = "python daemon"
    PYTHON_WORKER = "python worker"
    CLUSTER_WORKER = "standalone worker"
    EXECUTOR = "executor jvm"
    OTHER = "other"


@dataclass(frozen=True)
class Member:
    """A process of the tree as it was found."""

    role: Role
    process: psutil.Process

    @property
    def pid(self) -> int:
        return self.process.pid


def tree(worker_pid: int) -> list[Member]:
    """The worker and all below it, parents first; empty when it is gone."""
    try:
        worker = psutil.Process(worker_pid)
        below = worker.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    members = [Member(Role.WORKER, worker)]
    roles = {worker.pid: Role.WORKER}
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            role = _role(process.cmdline(), roles.get(process.ppid(), Role.OTHER))
            roles[process.pid] = role
            members.append(Member(role, process))
    return members


def _role(command: list[str], parent: Role) -> Role:
    """By the command line; a Python worker is forked by its daemon and shares its command line."""
    if any(part in _DAEMONS for part in command):
        return Role.PYTHON_WORKER if parent in (Role.PYTHON_DAEMON, Role.PYTHON_WORKER) else Role.PYTHON_DAEMON
    if any(part.startswith("org.apache.spark.deploy.SparkSubmit") for part in command):
        return Role.SPARK_JVM
    if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
        return Role.EXECUTOR
    if any(part.startswith(_DRIVERS) for part in command):
        return Role.SPARK_DRIVER
    return Role.OTHER


def find(worker_pid: int, role: Role) -> list[Member]:
    return [member for member in tree(worker_pid) if member.role is role]


def local_ports(process: psutil.Process) -> set[int]:
    """The local ports of a process's established TCP connections; empty when it is gone."""
    try:
        connections = process.net_connections("tcp")
    except psutil.NoSuchProcess:
        return set()
    return {found.laddr.port for found in connections if found.status == psutil.CONN_ESTABLISHED}


def slices(worker_pid: int, target_ports: Iterable[int]) -> list[Member]:
    """The Python workers that hold a connection to one of the target's (or its proxies') ports: they copy."""
    ports = set(target_ports)
    return [member for member in find(worker_pid, Role.PYTHON_WORKER) if ports & _remote_ports(member.process)]


def _remote_ports(process: psutil.Process) -> set[int]:
    try:
        connections = process.net_connections("tcp")
    except psutil.NoSuchProcess:
        return set()
    return {found.raddr.port for found in connections if found.status == psutil.CONN_ESTABLISHED}


def gone(members: Iterable[Member]) -> bool:
    """Whether none of these processes runs any more; a zombie that nobody has reaped counts as gone."""
    return not survivors(members)


def survivors(members: Iterable[Member]) -> list[Member]:
    left = []
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            if member.process.is_running() and member.process.status() != psutil.STATUS_ZOMBIE:
                left.append(member)
    return left
