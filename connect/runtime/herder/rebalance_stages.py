"""Names the stages of a rebalance, delays the first join, and measures rounds of the group.

* Stages have Java's sentences, for users whose request waits too long (Kafka's ``TemporaryStage``).
* Before a worker joins a group that has members, it starts what its work will need. A joining worker gets work at once
  and takes it from other workers; if its engine were still starting, that work would pause until the engine is up. If
  the group has no members, the worker does not wait.
* Metrics are those of Kafka's ``WorkerRebalanceMetrics``. Times are in milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.core.metrics import Windowed


class Stages:
    """The stage of one worker's loop. ``now_ms`` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._what: str | None = None
        self._began_ms = 0
        self._ended_ms: int | None = None

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """``what`` completes «the worker is currently ...». Stages within a stage hide it until they end."""
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
        """What is done now, or was done last; None where nothing was yet."""
        if self._what is None:
            return None
        if self._ended_ms is None:
            return f"The worker is currently {self._what}, which began at {_instant(self._began_ms)}."
        return (
            f"The last operation the worker completed was {self._what}, which began at {_instant(self._began_ms)} "
            f"and completed at {_instant(self._ended_ms)}."
        )


def _instant(ms: int) -> str:
    """As Java's ``Instant`` prints itself."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


log = logging.getLogger(__name__)

#: An engine that is not up by then keeps nobody out of the group.
WITHIN_S: Final = 30.0


class Engine(Protocol):
    """What the tasks of some connectors run on."""

    def is_for(self, connector_class: str) -> bool: ...

    async def ready(self) -> None:
        """Begins it, and returns once it takes work; raises what stands in its way."""
        ...


async def prepare(
    name: str,
    engine: Engine | None,
    classes: Iterable[str],
    others: Callable[[], Awaitable[int]],
    stages: Stages,
    within_s: float = WITHIN_S,
) -> None:
    """Returns when the group may be joined, and raises nothing.

    Args:
        name: What lines of the log begin with.
        classes: Of the connectors that the group has.
        others: How many members it has.
    """
    if engine is None or not any(map(engine.is_for, classes)):
        return
    try:
        count = await others()
    except (RetriableError, SecurityError) as error:
        log.debug("%s: who is in the group is not known, so it is joined at once: %s", name, error)
        return
    if not count:
        return
    log.info("%s: the group has %d members; it is joined once the engine of its connectors is up", name, count)
    try:
        with stages.doing("waiting for the engine of the group's connectors before it joins"):
            async with asyncio.timeout(within_s):
                await engine.ready()
    except TimeoutError:
        log.warning("%s: the engine is not up after %g s; the group is joined without it", name, within_s)
    except HeliographError as error:
        log.warning("%s: the engine does not come up; the group is joined without it: %s", name, error)


@dataclass(slots=True)
class Rebalances:
    """Rounds since the worker began. ``began_ms``: of the round that is under way; None where none is."""

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
