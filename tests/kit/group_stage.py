"""A Connect group under load for kills and freezes: workers of ours, connectors that count, and who sees it all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
_TASKS: Final = 2


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


class WorkerGroup(ABC):
    """Workers of one group by name; as a context manager it starts them, and ends whatever was started."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        directory: Path,
        names: str,
        settings: Mapping[str, str],
        variables: Callable[[str], Mapping[str, str]],
        programs: Path,
    ) -> None:
        """``variables`` are those of a worker's process, by its name, a letter of ``names``."""
        self._exits = contextlib.ExitStack()
        self.lateness = Lateness()
        self.workers: dict[str, OurWorker] = {}
        for name in names:
            properties = worker_properties(bootstrap, group, settings)
            del properties[_UNSET]
            self.workers[name] = OurWorker(properties, directory, f"{group}-{name}", variables(name), programs)
        self._netlocs = {RestClient(worker.url).netloc: name for name, worker in self.workers.items()}

    @abstractmethod
    def _open(self, exits: contextlib.ExitStack) -> None:
        """What has to be there before the workers start."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all workers have their share."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            self._open(exits)
            for worker in self.workers.values():
                exits.enter_context(worker)
            for worker in self.workers.values():
                worker.await_ready(DEADLINE_S)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def rest(self, worker: str) -> RestClient:
        return RestClient(self.workers[worker].url)

    def owners(self, asked: str) -> dict[str, str]:
        return {part: self._netlocs.get(at, at) for part, at in self.rest(asked).owners().items()}

    def look_how_late(self, name: str) -> None:
        """Ask a worker how late it was in its life, which is about to end."""
        self.lateness.look(self.workers[name].url, self.workers[name].log)

    def start(self, names: Collection[str]) -> None:
        for name in names:
            self.workers[name].start()
        for name in names:
            self.workers[name].await_ready(DEADLINE_S)
        self.settle()

    def stop_worker(self, name: str) -> list[str]:
        """SIGTERM; what was wrong with that."""
        self.look_how_late(name)
        code = self.workers[name].stop()
        return [f"worker {name} ended with exit code {code} after SIGTERM"] if code else []


class GroupStage(WorkerGroup):
    """Three workers ("a", "b", "c") and three connectors of two tasks, each to the topic of its name."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        directory: Path,
        *,
        settings: Mapping[str, str] = SHORT_SESSION,
        programs: Path = PROGRAMS,
    ) -> None:
        variables = partial(numbers.environment, directory)
        super().__init__(bootstrap, group, directory, "abc", settings, variables, programs)
        self._bootstrap = bootstrap
        self._group = group
        self.connectors = [f"{group}-{number}" for number in range(3)]
        #: Parts that can be RUNNING: connectors and tasks.
        self.parts = len(self.connectors) * (1 + _TASKS)
        self.watch = NumberWatch(bootstrap, dict.fromkeys(self.connectors, _TASKS))

    def _open(self, exits: contextlib.ExitStack) -> None:
        asyncio.run(make_topics(self._bootstrap, dict.fromkeys(self.connectors, _TASKS)))
        exits.enter_context(self.watch)

    def create(self) -> None:
        names = list(self.workers)
        for index, connector in enumerate(self.connectors):
            config = {"connector.class": numbers.CLASS, "tasks.max": str(_TASKS), "topic": connector, "every.ms": "50"}
            self.rest(names[index % len(names)]).ask("PUT", f"/connectors/{connector}/config", config)
        self.settle()

    def settle(self) -> None:
        wait_until(self._is_settled, DEADLINE_S, f"all workers of {self._group} have their share")

    def _is_settled(self) -> bool:
        first, *others = [self.owners(name) for name in self.workers]
        tasks = Counter(worker for part, worker in first.items() if part not in self.connectors)
        fair = len(self.connectors) * _TASKS // len(self.workers)
        is_fair = tasks.keys() == self.workers.keys() and set(tasks.values()) <= {fair, fair + 1}
        return is_fair and len(first) == self.parts and all(each == first for each in others)

    def leader(self) -> str:
        """The one that does not say that it has to ask another."""

        def found() -> str:
            return next((name for name in self.workers if self._leads(name)), "")

        return wait_until(found, DEADLINE_S, f"{self._group} has a leader")

    def _leads(self, name: str) -> bool:
        status, _ = self.rest(name).try_once("DELETE", "/connectors/nobody?forward=false")
        return status == _NOT_FOUND

    def kill(self, names: Collection[str]) -> float:
        for name in names:
            self.look_how_late(name)
        at_s = time.time()
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self.workers[name].kill(), names))
        return at_s

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
            faults += self.stop_worker(name)
        self.watch.drain()
        return faults + self.watch.faults()
