"""Freeze leaders, thaw them once replaced, and judge the copy. Goal: nothing lost, doubled, reordered or reported."""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import PartitionMetadata
from connectors.formats.gap import STATES
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.long_run import begin, end, parser_of, say
from tests.kit.mirror import HANDOVERS
from tests.kit.processes import DeadlinePassed, wait_until
from tests.kit.stage import Stage
from tests.kit.writer import Load

_NODES: Final = 3
_LOADS: Final = (
    Load("orders", 6, "none", value_bytes=120, batch_records=60),
    Load("clicks", 3, "lz4", value_bytes=80, batch_records=100),
)
#: All replicas of the source's topics move with its leaders.
_PROPERTIES: Final = {**HANDOVERS, "offset-syncs.topic.replication.factor": str(_NODES)}
_DEADLINE_S: Final = 600.0
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

    def __str__(self) -> str:
        return f"{self.side} node {self.node}, leader of {self.led} copied partitions, frozen for {self.frozen_s:.1f} s"


def _partitions(kafka: KafkaCluster, witness: int) -> dict[tuple[str, int], PartitionMetadata]:
    """Every partition, as the broker with this index reports it; none where it does not answer yet."""

    async def asked() -> dict[tuple[str, int], PartitionMetadata]:
        async with cluster_at(f"127.0.0.1:{kafka.nodes[witness].port}") as cluster:
            topics = (await cluster.metadata(None)).topics
        return {(name, index): row for name, topic in topics.items() for index, row in topic.partitions.items()}

    try:
        return asyncio.run(asked())
    except RetriableError:
        return {}


def _is_whole(kafka: KafkaCluster) -> bool:
    every = [_partitions(kafka, witness) for witness in range(_NODES)]
    return all(every) and all(
        row.leader >= 0 and len(row.in_sync) == len(row.replicas) for rows in every for row in rows.values()
    )


def _strike(stage: Stage, chance: random.Random) -> Blow:
    """Freeze a leader, wait for an election, thaw it, wait until all replicas are in sync."""
    kafka = chance.choice((stage.us, stage.eu))
    prefix = "" if kafka is stage.us else "us."
    load = chance.choice(_LOADS)
    rows = wait_until(lambda: _partitions(kafka, 0), _DEADLINE_S, f"{kafka.name} tells its partitions")
    victim = rows[f"{prefix}{load.topic}", chance.randrange(load.partitions)].leader - 1
    led = {at for at, row in rows.items() if row.leader == victim + 1}

    def has_moved() -> bool:
        now = _partitions(kafka, (victim + 1) % _NODES)
        return bool(now) and all(now[at].leader not in (-1, victim + 1) for at in led)

    began_s = time.monotonic()
    kafka.freeze(victim)
    try:
        wait_until(has_moved, _DEADLINE_S, f"{kafka.name} has elected other leaders")
        time.sleep(chance.uniform(*chance.choice(_LONGER_S)))
    finally:
        kafka.thaw(victim)
    frozen_s = time.monotonic() - began_s
    wait_until(lambda: _is_whole(kafka), _DEADLINE_S, f"all replicas of {kafka.name} are in sync")
    copied = {(f"{prefix}{load.topic}", index) for load in _LOADS for index in range(load.partitions)}
    return Blow(kafka.name, victim + 1, len(led & copied), frozen_s)


def _round(stage: Stage, chance: random.Random) -> Iterator[str]:
    """The faults of a round."""
    start = stage.mirror.log_end()
    try:
        say(f"  {_strike(stage, chance)}")
    except DeadlinePassed as error:
        yield str(error)
    report = stage.caught_up(_DEADLINE_S)
    if not report.is_caught_up:
        yield f"the mirror has not caught up: {report.summary()}"
    if found := [line for line in stage.mirror.log_lines(start) if _FALSE.search(line)]:
        yield f"{len(found)} lines report a truncation or a stop: {found[:3]}"


def _run(options: argparse.Namespace, directory: Path) -> list[str]:
    chance = random.Random(options.seed)
    with Stage(
        directory,
        seed=options.seed,
        loads=_LOADS,
        records_per_s=options.rate,
        source_nodes=_NODES,
        target_nodes=_NODES,
        properties=_PROPERTIES,
    ) as stage:
        faults = stage.set_going(_DEADLINE_S)
        for number in range(1, options.rounds + 1):
            if faults and not options.keep_going:
                break
            say(f"round {number}/{options.rounds}")
            faults += [f"round {number}: {fault}" for fault in _round(stage, chance)]
        stage.writer.pause()
        stage.caught_up(_DEADLINE_S)
        ending = stage.shut_down()
        resumed = stage.mirror.resumed()
    say(ending.comparison.summary())
    say(
        f"partitions resumed {len(resumed)}, surplus records found {sum(one.surplus_records for one in resumed)}, "
        f"duplicates announced {sum(one.may_double for one in resumed)}"
    )
    faults += [*ending.faults, *ending.comparison.faults]
    if ending.comparison.total("source_records") != ending.comparison.total("target_records"):
        faults.append("source and target have different numbers of records")
    return faults


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("frozen_leader", __doc__, "of sides and leaders")
    parser.add_argument("--rounds", type=int, default=100, help="frozen leaders (default 100)")
    parser.add_argument("--rate", type=float, default=1_000, help="records a second (default 1000)")
    parser.add_argument("--keep-going", action="store_true", help="play on after a fault")
    options = parser.parse_args(arguments)
    directory = begin("frozen leader", options.seed)
    return end(_run(options, directory), directory)
