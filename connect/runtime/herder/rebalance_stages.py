"""Names the stages of a rebalance, delays the first join, and measures rebalances.

* Stages have Java's sentences, for users whose request waits too long (Kafka's ``TemporaryStage``).
* Before a worker joins a group with other members, it starts the engine that its work needs. A joining worker gets work
  at once, taken from other workers, and without an engine that work would pause. If the group has no members, the
  worker does not wait.
* Metrics are those of Kafka's ``WorkerRebalanceMetrics``. Times are in milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.core.metrics import Windowed


class Stages:
    """The current stage of one worker's loop. ``now_ms`` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._what: str | None = None
        self._began_ms = 0
        self._ended_ms: int | None = None

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Set the stage; ``what`` completes «the worker is currently ...». An inner stage hides it until it ends."""
        outer = (self._what, self._began_ms, self._ended_ms)
        self._what, self._began_ms, self._ended_ms = what, self._now_ms(), None
        try:
            yield
        finally:
            if outer[0] is not None and outer[2] is None:
                self._what, self._began_ms, self._ended_ms = outer
            else:
                self._ended_ms = self._now_ms()

    def sentence(self) -> str | None:
        """Describe the current stage, or the last one; None before the first."""
        if self._what is None:
            return None
        if self._ended_ms is None:
            return f"The worker is currently {self._what}, which began at {_instant(self._began_ms)}."
        return (
            f"The last operation the worker completed was {self._what}, which began at {_instant(self._began_ms)} "
            f"and completed at {_instant(self._ended_ms)}."
        )


def _instant(ms: int) -> str:
    """Format a time as Java's ``Instant``."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


log = logging.getLogger(__name__)

#: Longest wait for the engine before the join.
WITHIN_S: Final = 30.0


class Engine(Protocol):
    """An engine on which the tasks of some connectors run."""

    def is_for(self, connector_class: str) -> bool: ...

    async def ready(self) -> None:
        """Start the engine; return once it accepts work. Raises HeliographError if it cannot start."""


async def prepare(
    name: str,
    engine: Engine | None,
    classes: Iterable[str],
    members: Callable[[], Awaitable[Sized]],
    stages: Stages,
    within_s: float = WITHIN_S,
) -> None:
    """Wait until the group may be joined; raises nothing. ``name``: prefix of log lines. ``classes``: classes of the
    group's connectors. ``members``: returns the group's members."""
    if engine is None or not any(map(engine.is_for, classes)):
        return
    try:
        count = len(await members())
    except (RetriableError, SecurityError) as error:
        log.debug("%s: joining the group at once, because its members are unknown: %s", name, error)
        return
    if not count:
        return
    log.info("%s: the group has %d members; joining it once the engine of its connectors has started", name, count)
    try:
        with stages.doing("waiting for the engine of the group's connectors before it joins"):
            async with asyncio.timeout(within_s):
                await engine.ready()
    except TimeoutError:
        log.warning("%s: the engine has not started after %g s; joining the group without it", name, within_s)
    except HeliographError as error:
        log.warning("%s: the engine did not start; joining the group without it: %s", name, error)


@dataclass(slots=True)
class Rebalances:
    """Rebalances since the worker's start. ``began_ms``: start of the current one; None if there is none."""

    completed: int = 0
    began_ms: int | None = None
    ended_ms: int | None = None
    took_ms: Windowed = field(default_factory=Windowed)

    def begin(self, now_ms: int) -> None:
        if self.began_ms is None:
            self.began_ms = now_ms

    def end(self, now_ms: int) -> None:
        if self.began_ms is not None:
            self.took_ms.record(now_ms - self.began_ms, now_ms)
        self.completed += 1
        self.began_ms, self.ended_ms = None, now_ms
