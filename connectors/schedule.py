"""What a connector does again and again: jobs in order at its start, then each at its own interval, or when asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from connect.core.errors import HeliographError
from connect.kafka.concurrency import Scope

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Job:
    name: str
    run: Callable[[], Awaitable[None]]
    interval_s: float | None
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


class Schedule:
    """Jobs of one connector (Kafka ``connect.mirror.Scheduler``).

    One at a time, so that two never work on the same topics. What fails, or takes longer than ``timeout_s``, is logged
    and comes again at its interval; None where each part of a job has a limit of its own. ``label`` begins every line
    of the log.
    """

    def __init__(self, label: str, timeout_s: float | None) -> None:
        self._label = label
        self._timeout_s = timeout_s
        self._jobs: list[_Job] = []
        self._scope = Scope(f"jobs of {label}")
        self._one_at_a_time = asyncio.Lock()

    def add(self, name: str, run: Callable[[], Awaitable[None]], interval_s: float | None) -> None:
        """A job behind those that were added before; ``interval_s`` None for one that runs when asked only."""
        self._jobs.append(_Job(name, run, interval_s))

    def begin(self) -> None:
        """Let the jobs come, each one interval from now for the first time, or when :meth:`hurry` asks."""
        for job in self._jobs:
            self._scope.spawn(self._repeat(job), f"{job.name} of {self._label}")

    async def run_once(self, name: str) -> bool:
        """Run a job now, as at its interval; whether it succeeded."""
        return await self._run(self._job(name))

    def hurry(self, name: str) -> None:
        """Run a job soon, as something has changed; asked again before it runs, it runs once."""
        self._job(name).wanted.set()

    async def stop(self) -> None:
        """Ends what runs."""
        await self._scope.close()

    def _job(self, name: str) -> _Job:
        return next(job for job in self._jobs if job.name == name)

    async def _repeat(self, job: _Job) -> None:
        clock = asyncio.get_running_loop().time
        due_s = None if job.interval_s is None else clock() + job.interval_s
        while True:
            try:
                async with asyncio.timeout_at(due_s):
                    await job.wanted.wait()
            except TimeoutError:
                assert job.interval_s is not None and due_s is not None
                # At a fixed rate, as Java; turns that were missed are not made up for.
                due_s = max(due_s + job.interval_s, clock())
            job.wanted.clear()
            await self._run(job)

    async def _run(self, job: _Job) -> bool:
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await job.run()
            except TimeoutError:
                log.warning("%s: %s took longer than %g s (admin.timeout.ms)", self._label, job.name, self._timeout_s)
            except HeliographError as error:
                log.warning("%s: %s: %s", self._label, job.name, error)
            except Exception as error:
                log.error("%s: %s failed", self._label, job.name, exc_info=error)
            else:
                return True
            return False
