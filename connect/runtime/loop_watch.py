"""Notices that the loop of a process stands still, and says who holds it up.

Everything of a worker shares one loop. A plugin that blocks it for longer than the lease costs the worker all its work,
and nothing on the loop can say so meanwhile: a thread does.
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
from types import FrameType
from typing import Final

log = logging.getLogger(__name__)

_STILL_S: Final = 1.0
_BEAT_S: Final = 0.25
_STOP_S: Final = 2.0
_FRAMES: Final = 12
#: Code that calls plugins and is none.
_FRAMEWORK: Final = ("connect.runtime", "connect.cli", "connect.kafka", "connect.core")


#: When Python looks for rings of objects, by generation: a look at all that a worker holds stops the loop for a tenth
#: of a second and more while the machine is busy, and finds next to nothing.
_COLLECTIONS: Final = (100_000, 50, 1000)


def collect_rarely() -> None:
    """Leave what the process has loaded out of garbage collection, and let the rest of it come seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


class LoopWatch:
    """A timer on the running loop, and a thread that sees whether it fires. Costs four timers a second.

    ``stalls`` and ``stalled_s`` count since the start. What freezes the whole process is no stall.
    """

    def __init__(self) -> None:
        self.stalls = 0
        self.stalled_s = 0.0
        self._beats = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running loop."""
        loop = asyncio.get_running_loop()
        self._beat(loop)
        self._thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="loop watch", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """End the thread."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_S)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beats += 1
        self._timer = loop.call_later(_BEAT_S, self._beat, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        beats, since_s, told = self._beats, time.monotonic(), False
        looked_s = since_s
        while not self._over.wait(_BEAT_S):
            now_s = time.monotonic()
            # Where this thread did not run either, the process or the machine was frozen.
            frozen, looked_s = now_s - looked_s > _STILL_S, now_s
            if beats != self._beats or frozen:
                if told:
                    self.stalled_s += now_s - since_s
                    log.warning("the worker's loop runs again after %.1f s", now_s - since_s)
                beats, since_s, told = self._beats, now_s, False
            elif not told and now_s - since_s > _STILL_S:
                told = True
                self.stalls += 1
                _tell(loop, thread, now_s - since_s)


def _tell(loop: asyncio.AbstractEventLoop, thread: int, still_s: float) -> None:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return
    task = asyncio.current_task(loop)
    stack = traceback.extract_stack(frame)[-_FRAMES:]
    log.warning(
        "the worker's loop has stood still for %.1f s: %s holds it up in %s; whatever blocks belongs into a thread\n%s",
        still_s,
        "something" if task is None else task.get_name(),
        culprit(_outwards(frame)),
        "".join(traceback.format_list(stack)).rstrip(),
    )


def culprit(frames: Sequence[tuple[str, str]]) -> str:
    """The innermost function that is a plugin's, else the innermost of all; ``frames`` are module and place of each,
    the innermost first."""
    for module, place in frames:
        if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith(_FRAMEWORK):
            return place
    return frames[0][1]


def _outwards(frame: FrameType | None) -> list[tuple[str, str]]:
    frames = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        frames.append((module, f"{module}.{frame.f_code.co_qualname} (line {frame.f_lineno})"))
        frame = frame.f_back
    return frames
