"""Give processes no more than a share of a core, so that what they are measured with has the rest of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CONTROLLER: Final = Path("/sys/fs/cgroup/cpu")
_PERIOD_US: Final = 10_000


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
