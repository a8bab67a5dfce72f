"""What a process and everything below it costs: CPU seconds and memory, exited children included.

CPU of a tree = over its living processes, own time plus the time of the children they have waited for (Linux
``proc(5)``: utime, stime, cutime, cstime). A child that exits moves from its own line to its parent's, so
nothing is counted twice and nothing is lost while the parent lives. What loses its parent is followed by its id.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process tree. ``at_s`` is ``time.monotonic()``."""

    at_s: float
    cpu_s: float
    pss_bytes: int
    processes: int


@dataclass(slots=True)
class _Seen:
    """The last CPU time of one process and whether its parent, who inherits that time, was seen too."""

    parent: int
    cpu_s: float


@dataclass(slots=True)
class _Ledger:
    """CPU of a tree over time. It never runs backwards, although single processes leave it."""

    living: dict[tuple[int, float], _Seen] = field(default_factory=dict)
    #: Time of processes that ended without a living parent to inherit it.
    orphaned_s: float = 0.0

    def update(self, now: dict[tuple[int, float], _Seen]) -> float:
        """Take a new picture of the tree; the tree's CPU seconds so far."""
        alive = {pid for pid, _ in now}
        for key, seen in self.living.items():
            if key not in now and seen.parent not in alive:
                self.orphaned_s += seen.cpu_s
        self.living = now
        return self.orphaned_s + sum(seen.cpu_s for seen in now.values())


class TreeSampler:
    """Follows a process tree from a thread of its own until ``stop``. CPU is looked at every ``cpu_interval_s``, memory
    (which makes the kernel walk every page table) every ``memory_interval_s``."""

    def __init__(self, pid: int, *, cpu_interval_s: float = 0.1, memory_interval_s: float = 0.5) -> None:
        self._root = psutil.Process(pid)
        self._cpu_interval_s = cpu_interval_s
        self._memory_interval_s = memory_interval_s
        self._known: dict[int, psutil.Process] = {pid: self._root}
        self._ledger = _Ledger()
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-sampler", daemon=True)
        self._memory_due_s = 0.0
        self._pss_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[Sample]:
        """Ends the thread; every sample taken."""
        self._stopped.set()
        self._thread.join()
        return list(self._samples)

    def sample(self) -> Sample:
        """Looks now, on the caller's thread, so that a window can begin and end at an event."""
        with self._lock:
            tree = self._tree()
            cpu_s = self._ledger.update(_cpu_of(tree))
            now_s = time.monotonic()
            if now_s >= self._memory_due_s:
                self._pss_bytes = sum(pss_bytes(process.pid) for process in tree)
                self._memory_due_s = now_s + self._memory_interval_s
            sample = Sample(now_s, cpu_s, self._pss_bytes, len(tree))
            self._samples.append(sample)
            return sample

    def _run(self) -> None:
        while not self._stopped.wait(self._cpu_interval_s):
            self.sample()

    def _tree(self) -> list[psutil.Process]:
        """The root, all below it, and what was below it once and lost its parent since."""
        found: dict[int, psutil.Process] = {}
        for process in list(self._known.values()):
            if process.pid in found or not process.is_running():
                continue
            found[process.pid] = process
            try:
                for child in process.children(recursive=True):
                    found.setdefault(child.pid, self._known.get(child.pid, child))
            except psutil.NoSuchProcess:
                continue
        self._known = found
        return list(found.values())


def _cpu_of(tree: list[psutil.Process]) -> dict[tuple[int, float], _Seen]:
    seen: dict[tuple[int, float], _Seen] = {}
    for process in tree:
        try:
            with process.oneshot():
                times = process.cpu_times()
                total_s = times.user + times.system + times.children_user + times.children_system
                seen[(process.pid, process.create_time())] = _Seen(process.ppid(), total_s)
        except psutil.NoSuchProcess:
            continue
    return seen


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process: shared pages count once, split among their users."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return 0
