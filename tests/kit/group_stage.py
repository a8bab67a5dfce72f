"""A Connect group under load for kills and freezes: workers of ours, connectors that count, and who sees it all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.kit import numbers
from tests.kit.lateness import Lateness
from tests.kit.number_watch import NumberWatch
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.workers import PROGRAMS, OurWorker, worker_properties

_NOT_FOUND: Final = 404
#: Longer than any machine takes; what is promised is judged by the times that were measured.
DEADLINE_S: Final = 120.0
#: A lost member is missed after six seconds, as Java's smallest session is.
SHORT_SESSION: Final = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
#: What nobody sets: lost work under a lease of ours does not wait only there.
_UNSET: Final = "scheduled.rebalance.max.delay.ms"


@dataclass(frozen=True)
class Recovery:
    """Seconds from a blow: until all is RUNNING on living workers by their REST, and until every task has written."""

    running_s: float
    writing_s: float

    @property
    def whole_s(self) -> float:
        return max(self.running_s, self.writing_s)

    def __str__(self) -> str:
        return f"RUNNING after {self.running_s:.1f} s, records of every task after {self.writing_s:.1f} s"


class GroupStage:
    """Workers by name ("a", "b", "c"), each with connectors' tasks; every connector writes to the topic of its name."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        directory: Path,
        *,
        workers: int = 3,
        connectors: int = 3,
        tasks: int = 2,
        settings: Mapping[str, str] = SHORT_SESSION,
        programs: Path = PROGRAMS,
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._tasks = tasks
        self._exits = contextlib.ExitStack()
        self.connectors = [f"{group}-{number}" for number in range(connectors)]
        #: Parts that can be RUNNING: connectors and tasks.
        self.parts = connectors * (1 + tasks)
        self.workers: dict[str, OurWorker] = {}
        for name in "abcdefgh"[:workers]:
            properties = worker_properties(bootstrap, group, settings)
            if _UNSET not in settings:
                del properties[_UNSET]
            variables = numbers.environment(directory, name)
            self.workers[name] = OurWorker(properties, directory, f"{group}-{name}", variables, programs)
        self._netlocs = {RestClient(worker.url).netloc: name for name, worker in self.workers.items()}
        self.lateness = Lateness()
        self.watch = NumberWatch(bootstrap, dict.fromkeys(self.connectors, tasks))

    def __enter__(self) -> Self:
        asyncio.run(make_topics(self._bootstrap, dict.fromkeys(self.connectors, self._tasks)))
        with contextlib.ExitStack() as exits:
            for worker in self.workers.values():
                exits.enter_context(worker)
            exits.enter_context(self.watch)
            for worker in self.workers.values():
                worker.await_ready(DEADLINE_S)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def rest(self, worker: str) -> RestClient:
        return RestClient(self.workers[worker].url)

    def create(self) -> None:
        names = list(self.workers)
        for index, connector in enumerate(self.connectors):
            config = {
                "connector.class": numbers.CLASS,
                "tasks.max": str(self._tasks),
                "topic": connector,
                "every.ms": "50",
            }
            self.rest(names[index % len(names)]).ask("PUT", f"/connectors/{connector}/config", config)
        self.settle()

    def settle(self) -> None:
        wait_until(self._is_settled, DEADLINE_S, f"all workers of {self._group} have their share")

    def _is_settled(self) -> bool:
        first, *others = [self.owners(name) for name in self.workers]
        tasks = Counter(worker for part, worker in first.items() if part not in self.connectors)
        fair = len(self.connectors) * self._tasks // len(self.workers)
        is_fair = tasks.keys() == self.workers.keys() and set(tasks.values()) <= {fair, fair + 1}
        return is_fair and len(first) == self.parts and all(each == first for each in others)

    def owners(self, asked: str) -> dict[str, str]:
        return {part: self._netlocs.get(at, at) for part, at in self.rest(asked).owners().items()}

    def leader(self) -> str:
        """The one that does not say that it has to ask another."""

        def found() -> str:
            return next((name for name in self.workers if self._leads(name)), "")

        return wait_until(found, DEADLINE_S, f"{self._group} has a leader")

    def _leads(self, name: str) -> bool:
        status, _ = self.rest(name).try_once("DELETE", "/connectors/nobody?forward=false")
        return status == _NOT_FOUND

    def look_how_late(self, name: str) -> None:
        """Ask a worker how late it was in its life, which is about to end."""
        self.lateness.look(self.workers[name].url, self.workers[name].log)

    def kill(self, names: Collection[str]) -> float:
        for name in names:
            self.look_how_late(name)
        at_s = time.time()
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self.workers[name].kill(), names))
        return at_s

    def start(self, names: Collection[str]) -> None:
        for name in names:
            self.workers[name].start()
        for name in names:
            self.workers[name].await_ready(DEADLINE_S)
        self.settle()

    def recovery(self, since_s: float, gone: Collection[str]) -> Recovery:
        """Until all parts run on the others and all tasks have written a record there after ``since_s``."""
        living = [name for name in self.workers if name not in gone]
        running_s = writing_s = 0.0

        def is_whole() -> bool:
            nonlocal running_s, writing_s
            if not running_s:
                owners = self.owners(living[0])
                if len(owners) == self.parts and set(owners.values()) <= set(living):
                    running_s = time.time() - since_s
            if not writing_s:
                first = self.watch.first_made_after(since_s, set(living))
                if all(first.values()):
                    writing_s = max(stamp.came_s for stamp in first.values() if stamp) - since_s
            return bool(running_s and writing_s)

        wait_until(is_whole, DEADLINE_S, f"everything runs without {sorted(gone)}")
        return Recovery(running_s, writing_s)

    def stop(self) -> list[str]:
        """SIGTERM to all; what was wrong with that, and with what was written, all of which must have come."""
        faults = []
        for name, worker in self.workers.items():
            if not worker.is_running:
                faults.append(f"worker {name} had ended by itself: {worker.tail()[-500:]}")
                continue
            self.look_how_late(name)
            if code := worker.stop():
                faults.append(f"worker {name} ended with exit code {code} after SIGTERM")
        self.watch.drain()
        return faults + self.watch.faults()
