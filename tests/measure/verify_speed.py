"""How fast ``heliograph verify`` compares records of 1 KB, with one Spark task and with two."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.kit.processes import Role, tree
from tests.kit.verify.data import Topic
from tests.kit.verify.scenarios import run_watched
from tests.kit.verify.scene import FULL, SPARKS, Scene, verifying_on

_CONTROLLER: Final = Path("/sys/fs/cgroup/cpu")
_PERIOD_US: Final = 10_000
_GOAL_MB_S: Final = 100.0  # of one core
_TOPICS: Final = (Topic("orders"), Topic("payments"))


@contextmanager
def cpu_share(name: str, pids: Iterable[int], cores: float) -> Iterator[None]:
    """Let these processes use ``cores`` of a core together; OSError without root and cgroup v1."""
    group = _CONTROLLER / f"heliograph-{name}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(round(cores * _PERIOD_US)))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (_CONTROLLER / "cgroup.procs").write_text(left)
        group.rmdir()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make measure ARGS='verify_speed'", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", choices=SPARKS[:2], default=SPARKS[0], help="where it compares")
    parser.add_argument("--share", type=float, metavar="CORES", help="of each executor, with --spark standalone")
    parser.add_argument("--merged", action="store_true", help="let the mirror merge batches")
    options = parser.parse_args(arguments)
    speeds, cpu_of_mb = [], []
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-verify-") as directory,
        Scene(
            Path(directory), seed=options.seed, megabytes=options.megabytes, merged=options.merged, topics=_TOPICS
        ) as scene,
        contextlib.ExitStack() as exits,
    ):
        scene.copy()
        spark = exits.enter_context(verifying_on(options.spark, Path(directory), scene))
        if options.share is not None:
            assert spark is not None, "--share needs --spark standalone"
            for worker in spark.find(Role.CLUSTER_WORKER):
                exits.enter_context(cpu_share(f"worker-{worker.pid}", [worker.pid], options.share))
        for tasks in (1, 2):
            # On a cluster the command and its driver compare nothing, and here one process of each task does.
            members = tree if spark is None else lambda _: spark.members()
            result, memory, cpus_s = run_watched(scene, FULL, "--tasks", str(tasks), members=members)
            cpu_s = sum(cpus_s[:tasks])
            assert result.is_equal and not result.unread, result
            same = sum(part.same_bytes for part in result.partitions) / result.read_bytes
            speeds.append(result.read_bytes / result.read_s / 1e6)
            cpu_of_mb.append(cpu_s / (result.read_bytes / 1e6))
            print(
                f"{tasks} tasks: {result.read_bytes / 1e6:.0f} MB of the source in {result.read_s:.1f} s, "
                f"{speeds[-1]:.0f} MB/s, {cpu_s:.1f} s of CPU in their processes "
                f"({1000 * cpu_of_mb[-1]:.1f} ms a MB), {memory / 1e6:.0f} MB in one process at most, "
                f"{same:.0%} compared as bytes; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    print(f"two tasks are {speeds[1] / speeds[0]:.2f} times as fast as one", flush=True)
    print(f"two tasks use {cpu_of_mb[1] / cpu_of_mb[0]:.2f} times the CPU of one for a MB", flush=True)
    return 0 if speeds[0] >= _GOAL_MB_S * min(options.share or 1.0, 1.0) else 1
