"""One direction of a proxied connection: bytes that a fault delays, keeps or ends, and never reorders."""

from __future__ import annotations

import asyncio
import enum
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Bytes one direction of one connection may keep before its sender is no longer read. More than a producer's window
#: (requests in flight), so that what a killed client had handed to its kernel is kept whole.
KEPT_BYTES_LIMIT = 128 * 1024 * 1024
#: With a rate limit, the seconds' worth of bytes that pass at once.
_RATE_STEP_S = 0.02
#: What a rate-limited link queues before it pushes back on its sender.
_SLOW_LINK_BYTES = 64 * 1024
#: A timer that fires late on a busy machine must not make the link slower; more than this is not made up for.
_LATE_S = 1.0


class Direction(enum.Enum):
    """Seen from the client, as Kafka's words are: requests go up to the broker, answers come down."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@dataclass(slots=True)
class Weather:
    """What befalls the bytes of one direction, on every connection; milliseconds and bytes a second."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    bytes_per_s: float | None = None


class Pipe:
    """Chunks from source to target socket; invariant: bytes in = passed + kept + dropped by a cut."""

    def __init__(
        self,
        direction: Direction,
        weather: Weather,
        chance: random.Random,
        allowance: Callable[[Pipe, int], int],
        on_passed: Callable[[Pipe, int], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.direction = direction
        self._loop = asyncio.get_running_loop()
        self._weather = weather
        self._chance = chance
        self._allowance = allowance
        self._on_passed = on_passed
        self._on_ended = on_ended
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._next_free_at = 0.0
        self._last_due = 0.0
        self._ending = False
        self._reading = True
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None
        self.target_writable = True
        self.held = False
        self.stalled = False
        self.ended = False
        self.kept_bytes = 0
        self.passed_bytes = 0
        self.dropped_bytes = 0

    def feed(self, data: bytes) -> None:
        if self.ended:
            self.dropped_bytes += len(data)
            return
        delay_s = (self._weather.delay_ms + self._weather.jitter_ms * self._chance.random()) / 1000
        self._last_due = max(self._last_due, self._loop.time() + delay_s)  # jitter never reorders
        self._queue.append((self._last_due, data))
        self.kept_bytes += len(data)
        self.pump()

    def finish(self) -> None:
        """The source will send no more; the target learns it behind the last byte, never before."""
        self._ending = True
        self.pump()

    def break_off(self) -> None:
        """End the stream here and now, in an orderly way for its target: what is kept is lost, and what still comes."""
        self.drop()
        self.end_target()
        self._on_ended()

    def drop(self) -> None:
        self.ended = True
        self._queue.clear()
        self.dropped_bytes += self.kept_bytes
        self.kept_bytes = 0
        self._cancel_timer()
        self._regulate_source()

    def pump(self) -> None:
        self._cancel_timer()
        while self._queue and self._may_pass():
            due = max(self._queue[0][0], self._next_free_at)
            now = self._loop.time()
            if due > now:
                self._timer = self._loop.call_at(due, self.pump)
                break
            self._pass_head(now)
        self._regulate_source()
        if self._ending and not self._queue and self._may_pass():
            self.ended = True
            self.end_target()
            self._on_ended()

    def end_target(self) -> None:
        if self.target is None or self.target.is_closing():
            return
        try:
            self.target.write_eof()
        except OSError:
            self.target.abort()  # reset by its peer, unseen since nothing was read or written there any more

    def _may_pass(self) -> bool:
        return not self.held and self.target is not None and self.target_writable and not self.ended

    def _pass_head(self, now: float) -> None:
        """Pass as much of the head as rate and allowance let through at once; the rest stays at the front."""
        due, data = self._queue.popleft()
        rate = self._weather.bytes_per_s
        step = len(data) if rate is None else max(1, int(rate * _RATE_STEP_S))
        count = self._allowance(self, min(step, len(data)))
        if count < len(data):
            self._queue.appendleft((due, data[count:]))
            data = data[:count]
        if rate is not None:
            self._next_free_at = max(self._next_free_at, due, now - _LATE_S) + count / rate
        self.kept_bytes -= count
        self.passed_bytes += count
        if self.target is not None and not self.target.is_closing():
            self.target.write(data)
        self._on_passed(self, count)

    def _regulate_source(self) -> None:
        """Read the source unless stalled or full, so that a slow target pushes back; what is not awaited is dropped."""
        source = self.source
        if source is None or source.is_closing():
            return
        wanted = not self.stalled and self.kept_bytes < self._bound_bytes() and (self.held or self.target_writable)
        if wanted and not self._reading:
            source.resume_reading()
        elif not wanted and self._reading:
            source.pause_reading()
        self._reading = wanted

    def _bound_bytes(self) -> int:
        rate = self._weather.bytes_per_s
        if rate is None or self.held:
            return KEPT_BYTES_LIMIT
        return max(_SLOW_LINK_BYTES, int(rate * _RATE_STEP_S))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
