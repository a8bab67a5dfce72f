"""The run with a thousand connectors (``make many``): ten idle tasks each, on three workers, measured."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil
from aiokafka import AIOKafkaProducer

from bench.processes import pss_bytes
from connect.core.config_topic import connector_record
from connect.core.herder.assignor import IncrementalAssignor, MemberState
from connect.core.herder.membership import NOTHING, Allocation
from connect.core.model import TaskId
from tests.kit import numbers
from tests.kit.brokers import KafkaCluster
from tests.kit.group_stage import SHORT_SESSION
from tests.kit.long_run import begin, end, say
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.workers import OurWorker, worker_properties

_GROUP: Final = "many"
_DEADLINE_S: Final = 900.0
_READY_DEADLINE_S: Final = 300.0
_IDLE_S: Final = 20.0
_REQUESTS: Final = 10
_LEASE_MS: Final = 5_000
_DELAY_MS: Final = 300_000
#: What the issue asks for.
_ANSWER_S: Final = 1.0
_ASSIGNMENT_S: Final = 1.0
_MEMORY_BYTES: Final = 500_000_000


def assignments_s(connectors: int, tasks: int) -> list[float]:
    """How long a leader computes: the first round of three workers, and the one after one of them is lost."""
    names = tuple(f"c{number}" for number in range(connectors))
    configured = Allocation(names, tuple(TaskId(name, task) for name in names for task in range(tasks)))
    assignor = IncrementalAssignor(_DELAY_MS, max_delay_is_set=False)
    members = {name: MemberState(NOTHING, _LEASE_MS) for name in "abc"}
    times = []
    for number in (1, 2):
        begun_s = time.perf_counter()
        outcome = assignor.assign(
            configured, members, last_completed_generation=number - 1, generation=number, now_ms=number
        )
        times.append(time.perf_counter() - begun_s)
        members = {name: MemberState(outcome.members[name].total, _LEASE_MS) for name in "ab"}
    return times


class Many:
    """The workers, and how long things take; lines for people come out of :meth:`play`."""

    def __init__(self, bootstrap: str, directory: Path, connectors: int, tasks: int) -> None:
        self._bootstrap = bootstrap
        self._connectors, self._tasks = connectors, tasks
        self.faults: list[str] = []
        self.workers = {}
        for name in "abc":
            properties = worker_properties(bootstrap, _GROUP, SHORT_SESSION)
            # Not set where it matters what users get.
            del properties["scheduled.rebalance.max.delay.ms"], properties["offset.flush.interval.ms"]
            variables = numbers.environment(directory, name)
            self.workers[name] = OurWorker(properties, directory, name, variables)
        self._first = RestClient(self.workers["a"].url)

    async def prepare(self) -> None:
        """The config topic as a group leaves it behind that has never run: connectors without tasks."""
        topic = f"{_GROUP}-configs"
        await make_topics(self._bootstrap, {topic: 1}, {"cleanup.policy": "compact"})
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap) as producer:
            for number in range(self._connectors):
                name = f"idle-{number:04d}"
                config = {
                    "name": name,
                    "connector.class": numbers.CLASS,
                    "tasks.max": str(self._tasks),
                    "topic": "none",
                    "every.ms": "0",
                }
                key, value = connector_record(name, config)
                await producer.send(topic, value, key.encode(), partition=0)

    def play(self) -> Iterator[str]:
        """Starts the workers, which somebody else ends, and yields lines that say what was measured."""
        computing = assignments_s(self._connectors, self._tasks)
        if max(computing) > _ASSIGNMENT_S:
            self.faults.append(f"an assignment took {max(computing):.2f} s")
        yield f"assignments computed in {', '.join(f'{seconds * 1000:.0f} ms' for seconds in computing)}"
        begun_s = time.monotonic()
        for worker in self.workers.values():
            worker.start()
        for worker in self.workers.values():
            worker.await_ready(_READY_DEADLINE_S)
        yield f"three workers are ready: {time.monotonic() - begun_s:.1f} s"
        self._await_running(3)
        yield f"all connectors and tasks are RUNNING: {time.monotonic() - begun_s:.1f} s from the start of the first"
        yield from self._statuses()
        yield from self._idle()
        victim = self.workers["c"]
        begun_s = time.monotonic()
        victim.kill()
        self._await_running(2)
        yield f"one worker killed: all RUNNING on the other two after {time.monotonic() - begun_s:.1f} s"
        yield from self._memory()
        begun_s = time.monotonic()
        victim.start()
        victim.await_ready(_READY_DEADLINE_S)
        self._await_running(3)
        yield f"it is back: all RUNNING on three after {time.monotonic() - begun_s:.1f} s from its start"
        yield from self._memory()
        begun_s = time.monotonic()
        code = victim.stop()
        yield f"SIGTERM to it: ended after {time.monotonic() - begun_s:.1f} s with exit code {code}"
        self._await_running(2)
        yield f"all RUNNING on the other two {time.monotonic() - begun_s:.1f} s after SIGTERM"

    def _await_running(self, workers: int) -> None:
        parts = self._connectors * (1 + self._tasks)

        def is_running() -> bool:
            owners = self._first.owners()
            return len(owners) == parts and len(set(owners.values())) == workers

        wait_until(is_running, _DEADLINE_S, f"{parts} connectors and tasks run on {workers} workers")

    def _statuses(self) -> Iterator[str]:
        times = []
        for _ in range(_REQUESTS):
            begun_s = time.monotonic()
            self._first.ask("GET", "/connectors?expand=status")
            times.append(time.monotonic() - begun_s)
        if max(times) > _ANSWER_S:
            self.faults.append(f"GET /connectors?expand=status took {max(times):.2f} s")
        yield (
            f"GET /connectors?expand=status, {_REQUESTS} times: median {statistics.median(times):.2f} s, "
            f"longest {max(times):.2f} s"
        )

    def _idle(self) -> Iterator[str]:
        running = [psutil.Process(worker.pid) for worker in self.workers.values()]
        before = [sum(process.cpu_times()[:2]) for process in running]
        time.sleep(_IDLE_S)
        shares = [(sum(p.cpu_times()[:2]) - was) / _IDLE_S for p, was in zip(running, before, strict=True)]
        yield f"idle for {_IDLE_S:.0f} s: CPU {', '.join(f'{share:.1%}' for share in shares)} of a core"
        yield from self._memory()

    def _memory(self) -> Iterator[str]:
        sizes = {name: pss_bytes(worker.pid) for name, worker in self.workers.items() if worker.is_running}
        self.faults += [
            f"worker {name} needs {size / 1e6:.0f} MB" for name, size in sizes.items() if size > _MEMORY_BYTES
        ]
        yield f"memory (PSS) of the workers: {', '.join(f'{size / 1e6:.0f} MB' for size in sizes.values())}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make many", description=__doc__)
    parser.add_argument("--connectors", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=10, help="of each connector")
    options = parser.parse_args(arguments)
    directory = begin("many")
    with ExitStack() as exits:
        cluster = exits.enter_context(KafkaCluster.start("us"))
        many = Many(cluster.bootstrap, directory, options.connectors, options.tasks)
        for worker in many.workers.values():
            # Ends the process, whoever started it.
            exits.push(worker.__exit__)
        asyncio.run(many.prepare())
        for line in many.play():
            say(f"{line} (load {os.getloadavg()[0]:.1f})")
    return end(many.faults, directory)


if __name__ == "__main__":
    sys.exit(main())
