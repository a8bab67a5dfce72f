"""MirrorSource in a group of two workers of ours, made over REST by Java's names, struck under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.follower import Arrivals
from tests.kit.group_stage import DEADLINE_S, SHORT_SESSION, WorkerGroup
from tests.kit.processes import survivors, tree, wait_until
from tests.kit.resumed import Resumed, resumed
from tests.kit.topics import make_topics
from tests.kit.workers import PROGRAMS
from tests.kit.writer import Load, Writer

_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
#: Connector and tasks.
_PARTS: Final = 3


@dataclass(frozen=True)
class Blow:
    """A killed owner: seconds until all of the mirror was RUNNING elsewhere, and until it had caught up."""

    victim: str
    running_s: float
    caught_up_s: float
    resumed: tuple[Resumed, ...]
    comparison: Report
    faults: tuple[str, ...]

    def __str__(self) -> str:
        surplus = sum(found.surplus_records for found in self.resumed)
        parts = [
            f"mirror's owner killed ({self.victim}): RUNNING after {self.running_s:.1f} s",
            f"caught up after {self.caught_up_s:.1f} s",
            f"{surplus} records of surplus in {len(self.resumed)} partitions taken over",
            self.comparison.summary(),
            *self.faults,
        ]
        return f"{'; '.join(parts)} (load {os.getloadavg()[0]:.1f})"


@dataclass(frozen=True)
class Turn:
    """A worker stopped and started again: for how long nothing of any partition came to the target meanwhile."""

    what: str
    worker: str
    stopping_s: float
    joining_s: float
    standstill_s: float
    resumed: tuple[Resumed, ...]
    comparison: Report
    faults: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{self.what} ({self.worker}): longest without a record of any partition {self.standstill_s:.1f} s",
            f"stopped within {self.stopping_s:.1f} s, had its share again {self.joining_s:.1f} s after its start",
            f"{len(self.resumed)} partitions taken over as after a crash",
            self.comparison.summary(),
            *self.faults,
        ]
        return f"{'; '.join(parts)} (load {os.getloadavg()[0]:.1f})"


class MirrorGroup(WorkerGroup):
    """Two clusters, load, two workers on the target's, and a checker; topics and alias are named after ``name``."""

    def __init__(
        self,
        us: KafkaCluster,
        eu: KafkaCluster,
        directory: Path,
        *,
        name: str,
        records_per_s: float,
        programs: Path = PROGRAMS,
    ) -> None:
        changes = {**SHORT_SESSION, "key.converter": _BYTES, "value.converter": _BYTES}
        # Older versions look for their modules in the folder first in which they were started.
        super().__init__(eu.bootstrap, name, directory, "ab", changes, lambda _: {"PYTHONSAFEPATH": "1"}, programs)
        self._us, self._eu, self._name = us.bootstrap, eu.bootstrap, name
        self._records_per_s = records_per_s
        self._loads = (Load(f"{name}-orders", 3, "none", value_bytes=120), Load(f"{name}-clicks", 2, "zstd"))

    def _open(self, exits: contextlib.ExitStack) -> None:
        runner = self._runner = exits.enter_context(asyncio.Runner())
        runner.run(make_topics(self._us, {load.topic: load.partitions for load in self._loads}))
        pairs = [TopicPair(load.topic, f"{self._name}.{load.topic}", load.partitions) for load in self._loads]
        checker = self._checker = Checker(self._us, self._eu, pairs)
        runner.run(checker.__aenter__())
        exits.callback(lambda: runner.run(checker.__aexit__()))
        self._arrivals = exits.enter_context(Arrivals(self._eu, {pair.target: pair.partitions for pair in pairs}))
        self.writer = exits.enter_context(
            Writer(self._us, self._loads, records_per_s=self._records_per_s, seed=len(self._name))
        )

    def set_going(self) -> None:
        config = {
            "connector.class": _CLASS,
            "tasks.max": "2",
            "source.cluster.alias": self._name,
            "target.cluster.alias": "eu",
            "source.cluster.bootstrap.servers": self._us,
            "target.cluster.bootstrap.servers": self._eu,
            "topics": ",".join(load.topic for load in self._loads),
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "heartbeats.replication.enabled": "false",
            "key.converter": _BYTES,
            "value.converter": _BYTES,
        }
        self.rest("b").ask("PUT", f"/connectors/{self._name}/config", config)
        self.settle()
        first = self._caught_up()
        assert first.is_caught_up, f"the mirror did not get going: {first.summary()}"

    def settle(self) -> None:
        def is_settled() -> bool:
            tasks = {part: at for part, at in self.owners("a").items() if part != self._name}
            return len(tasks) == _PARTS - 1 and set(tasks.values()) == set(self.workers)

        wait_until(is_settled, DEADLINE_S, "each worker runs a task of the mirror")

    def kill(self, victim: str) -> Blow:
        """SIGKILL of one worker; the other one takes it all, and catches up."""
        (heir,) = self.workers.keys() - {victim}
        ends = self._log_ends()
        doomed = tree(self.workers[victim].pid)
        self.look_how_late(victim)
        at_s = time.monotonic()
        self.workers[victim].kill()
        wait_until(
            lambda: set(self.owners(heir).values()) == {heir} and len(self.owners(heir)) == _PARTS,
            DEADLINE_S,
            f"the mirror runs on {heir} alone",
        )
        running_s = time.monotonic() - at_s
        comparison = self._caught_up()
        caught_up_s = time.monotonic() - at_s
        found = self._resumed_since(ends, [heir])
        faults = [f"at-least-once fallback: {each.line}" for each in found if each.at_least_once]
        wait_until(lambda: not survivors(doomed), DEADLINE_S, "nothing is left of a killed worker")
        return Blow(victim, running_s, caught_up_s, found, comparison, tuple(faults + comparison.faults))

    def turn(self, name: str, what: str, programs: Path) -> Turn:
        """SIGTERM to one worker, and its start from ``programs``; until each has its share and all has caught up."""
        worker, ends = self.workers[name], self._log_ends()
        began_s = time.time()
        faults = self.stop_worker(name)
        stopped_s = time.time()
        worker.programs = programs
        self.start([name])
        joined_s = time.time()
        comparison = self._caught_up()
        gaps = self._arrivals.longest_gaps(began_s, time.time())
        found = self._resumed_since(ends, self.workers)
        faults += [f"at-least-once fallback: {each.line}" for each in found if each.at_least_once]
        faults += [f"{part} FAILED" for part in self._failed()] + comparison.faults
        times = (stopped_s - began_s, joined_s - stopped_s, max(gaps.values()))
        return Turn(what, name, *times, found, comparison, tuple(faults))

    def bring_back(self, victim: str) -> None:
        self.start([victim])
        self._caught_up()

    def _log_ends(self) -> dict[str, int]:
        return {name: worker.log.stat().st_size for name, worker in self.workers.items() if worker.log.exists()}

    def _resumed_since(self, ends: Mapping[str, int], names: Iterable[str]) -> tuple[Resumed, ...]:
        """What logs of workers say of partitions taken over behind these ends."""
        lines: list[str] = []
        for name in names:
            with self.workers[name].log.open("rb") as log:
                log.seek(ends.get(name, 0))
                lines += log.read().decode(errors="replace").splitlines()
        return tuple(resumed(lines))

    def _failed(self) -> list[str]:
        status = self.rest("a").statuses()[self._name]
        return [str(part) for part in (status["connector"], *status["tasks"]) if part["state"] == "FAILED"]

    def stop(self) -> Sequence[str]:
        self.writer.stop()
        self._caught_up()
        running = {name: worker for name, worker in self.workers.items() if worker.is_running}
        processes = [member for worker in running.values() for member in tree(worker.pid)]
        faults = [fault for name in running for fault in self.stop_worker(name)]
        wait_until(lambda: not survivors(processes), DEADLINE_S, "nothing is left of the workers")
        report = self._runner.run(self._checker.check())
        return faults if report.is_exact else [*faults, report.summary()]

    def _caught_up(self) -> Report:
        return self._runner.run(self._checker.caught_up(DEADLINE_S))
