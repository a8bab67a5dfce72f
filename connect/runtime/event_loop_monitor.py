"""Detects a blocked event loop and names the code that blocks it.

All of a worker except its heartbeats shares one loop. A plugin that blocks it for longer than
``worker.progress.timeout.ms`` costs the worker all its connectors and tasks. Nothing on the loop can report that
meanwhile, so the lease thread does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from connect.kafka.concurrency import Scope
from connect.kafka.threads import BEAT_S, STILL_S, LeaseThread

log = logging.getLogger(__name__)

_FRAMES: Final = 12
#: Interval of checks, and the delay from which a check records what blocks the loop.
_LOOK_S: Final = BEAT_S / 2
_LATE_S: Final = 0.1
#: The log reports a delay of at least this, and only the longest so far, so that few lines name the worker's worst
#: delays.
_REPORTED_S: Final = 0.25
#: Frames of a stack in one line.
_PLACES: Final = 6
#: Code that calls plugins and is not part of one.
_FRAMEWORK: Final = ("connect.runtime", "connect.cli", "connect.kafka", "connect.core")


#: Thresholds of Python's garbage collection. Scanning 100,000 new objects blocks the loop for up to 20 ms, and scanning
#: all objects of a worker for a tenth of a second or more, and frees hardly anything.
_COLLECTIONS: Final = (10_000, 500, 1000)


def collect_rarely() -> None:
    """Exclude all objects loaded so far from garbage collection, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


class LoopWatch:
    """Checks from the lease thread whether the main loop runs. ``stalls`` and ``stalled_s`` count since the start; a
    frozen process is not a stall. At each new longest delay the log says what the loop did meanwhile, and how much
    processor time it got."""

    def __init__(self, leases: LeaseThread) -> None:
        self.stalls = 0
        self.stalled_s = 0.0
        self.leases = leases
        self._scope = Scope("loop watch")

    def start(self) -> None:
        """Watch the running loop, once the lease thread was started from it."""
        self.leases.call(self._begin, asyncio.get_running_loop(), threading.get_ident())

    def _begin(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        # Ends with the lease thread.
        self._scope.spawn(self._watch(loop, thread), "loop watch")

    async def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        reported_turn_s: float | None = None  # time of the loop's last turn before the stall that was reported
        seen: _Seen | None = None
        reported_late_s, cpu_clock = _REPORTED_S, time.pthread_getcpuclockid(thread)
        cpu_s = time.clock_gettime(cpu_clock)
        while True:
            await asyncio.sleep(_LOOK_S)
            moved_s, still_s = self.leases.moved_s, self.leases.still_s
            if self.leases.longest_stall_s > reported_late_s:
                reported_late_s = self.leases.longest_stall_s
                _report_late(reported_late_s, time.clock_gettime(cpu_clock) - cpu_s, seen)
            if still_s > BEAT_S + _LATE_S:
                if seen is None and (frame := sys._current_frames().get(thread)) is not None:
                    seen = _Seen(_task_name(loop), _places(frame))
            else:
                seen, cpu_s = None, time.clock_gettime(cpu_clock)
            if reported_turn_s is not None and moved_s != reported_turn_s:
                self.stalled_s += moved_s - reported_turn_s
                log.warning("the worker's loop runs again after %.1f s", moved_s - reported_turn_s)
                reported_turn_s = None
            elif reported_turn_s is None and still_s > STILL_S:
                reported_turn_s = moved_s
                self.stalls += 1
                _report(loop, thread, still_s)


def _report(loop: asyncio.AbstractEventLoop, thread: int, still_s: float) -> None:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return
    name = _task_name(loop)  # first, because the task may end any moment
    stack = traceback.extract_stack(frame)[-_FRAMES:]
    log.warning(
        "the worker's loop has been blocked for %.1f s: %s blocks it in %s; run blocking code in a thread\n%s",
        still_s,
        name,
        culprit(_outwards(frame)),
        "".join(traceback.format_list(stack)).rstrip(),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the loop was running: a task, and places in the code, innermost first."""

    task: str
    places: Sequence[str]


def _report_late(late_s: float, used_s: float, seen: _Seen | None) -> None:
    log.info(
        "the worker's loop was %.0f ms late, the longest delay since the start, with %.0f ms of processor time; %s",
        late_s * 1000,
        used_s * 1000,
        "the place is unknown" if seen is None else f"{seen.task} was in {' < '.join(seen.places)}",
    )


def _task_name(loop: asyncio.AbstractEventLoop) -> str:
    task = asyncio.current_task(loop)
    return "something" if task is None else task.get_name()


def culprit(frames: Sequence[tuple[str, str]]) -> str:
    """Return a plugin's innermost function, else the innermost of all; ``frames``: (module, place), innermost first."""
    for module, place in frames:
        if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith(_FRAMEWORK):
            return place
    return frames[0][1]


def _places(frame: FrameType) -> list[str]:
    """Return the innermost places, without those of the import machinery, which would hide what is imported."""
    return [place for module, place in _outwards(frame) if not module.startswith("importlib")][:_PLACES]


def _outwards(frame: FrameType | None) -> list[tuple[str, str]]:
    frames = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        frames.append((module, f"{module}.{frame.f_code.co_qualname} (line {frame.f_lineno})"))
        frame = frame.f_back
    return frames
