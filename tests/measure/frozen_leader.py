"""Freeze leaders, thaw them once replaced, and judge the copy. Goal: nothing lost, doubled, reordered or reported."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from connect.core.errors import RetriableError
from connect.kafka.cluster import PartitionMetadata
from connectors.formats.gap import STATES
from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, TopicPair
from tests.kit.clients import cluster_at
from tests.kit.mirror import HANDOVERS, Mirror, one_flow
from tests.kit.processes import DeadlinePassed
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

_NODES: Final = 3
_LOADS: Final = (
    Load("orders", 6, "none", value_bytes=120, batch_records=60),
    Load("clicks", 3, "lz4", value_bytes=80, batch_records=100),
)
_DEADLINE_S: Final = 600.0
_POLL_S: Final = 0.1
#: How long a leader stays frozen after another was elected: in one round of four past the mirror's time-outs, so that
#: the mirror has moved to the new leader, else a moment.
_LONGER_S: Final = ((0.0, 3.0), (0.0, 3.0), (0.0, 3.0), (10.0, 45.0))
#: What the mirror's log must not say of any partition here.
_FALSE: Final = re.compile(rf"truncated|diverg|QUARANTINED|\b(?:{'|'.join(sorted(STATES))})\b")


@dataclass(frozen=True, slots=True)
class Blow:
    """One frozen broker: how long it took to elect another leader, and how many partitions it led."""

    side: str
    node: int
    led: int
    frozen_s: float


class _Side:
    def __init__(self, name: str) -> None:
        self.name = name
        config = {"min.insync.replicas": "2", "default.replication.factor": "3"}
        self.kafka = KafkaCluster.start(name, nodes=_NODES, config=config)

    async def partitions(self, witness: int) -> dict[tuple[str, int], PartitionMetadata]:
        """Every partition, as the broker with this index reports it."""
        port = self.kafka.nodes[witness].port
        async with cluster_at(f"127.0.0.1:{port}") as cluster:
            topics = (await cluster.metadata(None)).topics
        return {(name, index): row for name, topic in topics.items() for index, row in topic.partitions.items()}


class FrozenLeader:
    """The whole run; use as an async context manager, then :meth:`play` the rounds."""

    def __init__(self, directory: Path, *, seed: int, records_per_s: float) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._seed = seed
        self._records_per_s = records_per_s
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._exits as exits:
            with ThreadPoolExecutor(2) as pool:
                self._us, self._eu = pool.map(_Side, ("us", "eu"))
            for side in (self._us, self._eu):
                exits.enter_context(side.kafka)
            await make_topics(self._us.kafka.bootstrap, {load.topic: load.partitions for load in _LOADS}, replicas=3)
            pairs = [TopicPair(load.topic, f"us.{load.topic}", load.partitions) for load in _LOADS]
            self.checker = Checker(self._us.kafka.bootstrap, self._eu.kafka.bootstrap, pairs)
            await exits.enter_async_context(self.checker)
            self.writer = exits.enter_context(
                Writer(self._us.kafka.bootstrap, _LOADS, records_per_s=self._records_per_s, seed=self._seed)
            )
            self.mirror = exits.enter_context(Mirror(self._properties(), self._directory))
            self.mirror.start()
            await self._caught_up()
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    def _properties(self) -> dict[str, str]:
        topics = ", ".join(load.topic for load in _LOADS)
        flow = one_flow(self._us.kafka.bootstrap, self._eu.kafka.bootstrap, topics)
        return {**flow, **{key: "3" for key in flow if key.endswith("replication.factor")}, **HANDOVERS}

    async def play(self) -> Blow:
        """One round: freeze, wait for an election, thaw, wait until all replicas are in sync and the copy caught up."""
        side = self._chance.choice((self._us, self._eu))
        prefix = "" if side is self._us else "us."
        load = self._chance.choice(_LOADS)
        partition = f"{prefix}{load.topic}", self._chance.randrange(load.partitions)
        rows = await side.partitions(0)
        victim = rows[partition].leader - 1
        led = {at for at, row in rows.items() if row.leader == victim + 1}
        witness = (victim + 1) % _NODES
        began_s = time.monotonic()
        side.kafka.freeze(victim)
        try:
            await self._until(lambda: self._has_moved(side, witness, victim, led), f"{side.name} elected other leaders")
            await asyncio.sleep(self._chance.uniform(*self._chance.choice(_LONGER_S)))
        finally:
            side.kafka.thaw(victim)
        frozen_s = time.monotonic() - began_s
        await self._until(lambda: self._is_whole(side), f"all replicas of {side.name} are in sync")
        await self._caught_up()
        return Blow(side.name, victim + 1, len(led & _copied(prefix)), frozen_s)

    async def _has_moved(self, side: _Side, witness: int, victim: int, led: set[tuple[str, int]]) -> bool:
        rows = await side.partitions(witness)
        return all(rows[at].leader not in (-1, victim + 1) for at in led)

    async def _is_whole(self, side: _Side) -> bool:
        for witness in range(_NODES):
            rows = (await side.partitions(witness)).values()
            if not all(row.leader >= 0 and len(row.in_sync) == len(row.replicas) for row in rows):
                return False
        return True

    async def _caught_up(self) -> None:
        async def is_caught_up() -> bool:
            assert self.mirror.is_running, f"the mirror ended by itself: {self.mirror.log_lines()[-1:]}"
            report = await self.checker.caught_up(1.0)
            return report.is_caught_up and report.total("source_records") > 0

        await self._until(is_caught_up, "the mirror caught up")

    async def _until(self, ask: Callable[[], Awaitable[bool]], what: str) -> None:
        end_s = time.monotonic() + _DEADLINE_S
        while True:
            with contextlib.suppress(RetriableError):
                if await ask():
                    return
            if time.monotonic() > end_s:
                raise DeadlinePassed(f"waited {_DEADLINE_S:g} s in vain until {what}")
            await asyncio.sleep(_POLL_S)

    def false_reports(self, start: int = 0) -> list[str]:
        """Lines of the mirror's log from byte ``start`` on that report a truncation or a stopped partition."""
        return [line for line in self.mirror.log_lines(start) if _FALSE.search(line)]


def _copied(prefix: str) -> set[tuple[str, int]]:
    return {(f"{prefix}{load.topic}", index) for load in _LOADS for index in range(load.partitions)}


async def _run(options: argparse.Namespace, directory: Path) -> list[str]:
    faults: list[str] = []
    async with FrozenLeader(directory, seed=options.seed, records_per_s=options.rate) as run:
        for number in range(1, options.rounds + 1):
            start = run.mirror.log_end()
            try:
                blow = await run.play()
                _say(
                    f"round {number}/{options.rounds}: {blow.side} node {blow.node}, leader of {blow.led} copied "
                    f"partitions, frozen for {blow.frozen_s:.1f} s"
                )
            except DeadlinePassed as error:
                faults.append(f"round {number}: {error}")
            found = run.false_reports(start)
            for line in found[:3]:
                _say(f"  {line}")
            faults += [f"round {number}: {len(found)} lines report a truncation or a stop"] if found else []
            if faults and not options.keep_going:
                break
        await asyncio.to_thread(run.writer.stop)
        await run.checker.caught_up(_DEADLINE_S)
        exit_code = await asyncio.to_thread(run.mirror.stop)
        report = await run.checker.check()
        resumed = run.mirror.resumed()
        _say(report.summary())
        _say(
            f"partitions resumed {len(resumed)}, surplus records found {sum(one.surplus_records for one in resumed)}, "
            f"duplicates announced {sum(one.may_double for one in resumed)}"
        )
        faults += [f"{one.target}-{one.partition}: {one.fault}" for one in report.partitions if not one.is_exact]
        if report.total("source_records") != report.total("target_records"):
            faults.append("source and target have different numbers of records")
        faults += [f"the mirror's exit code is {exit_code}"] if exit_code else []
    return faults


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="frozen_leader", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="frozen leaders (default 100)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of sides and leaders")
    parser.add_argument("--rate", type=float, default=1_000, help="records a second (default 1000)")
    parser.add_argument("--keep-going", action="store_true", help="play on after a fault")
    options = parser.parse_args(arguments)
    _say(f"frozen leader, seed {options.seed}")
    directory = Path(tempfile.mkdtemp(prefix="heliograph-frozen-leader-"))
    faults = asyncio.run(_run(options, directory))
    if faults:
        _say("\n".join(["faults:", *faults]))
        print(f"the mirror's file and log are in {directory}", file=sys.stderr)
        return 1
    _say("0 truncations, 0 partitions stopped, 0 lost, 0 duplicates, 0 reordered")
    shutil.rmtree(directory, ignore_errors=True)
    return 0
