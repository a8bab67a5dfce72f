"""Random schedules of consumers and struck operators on real brokers. Goal: no newer commit changed, none skipped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from connect.embedded.brokers import KafkaCluster
from connectors.formats.mirror_records import Checkpoint
from tests.kit.log_reader import reading
from tests.kit.long_run import begin, end, parser_of, say
from tests.kit.mirror import CALM, SMALL, Mirror, with_rest
from tests.kit.offset_history import Moved, judge, read_history, read_records
from tests.kit.operators import Partition, run
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics

_GROUPS: Final = 3
_RECORDS: Final = 300
_MORE: Final = 20
_PARTITIONS: Final = {"plain": 2, "atomic": 1}
#: Of one command too: on a machine with a load of 40 its start alone took minutes.
_DEADLINE_S: Final = 900.0
_SESSION_S: Final = 60.0
_CONFIG: Final = {
    # No consumer joins, commits and leaves in less, as with Kafka's default.
    "group.initial.rebalance.delay.ms": "3000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
_COMMITS: Final = ("TxnOffsetCommitRequest", "EndTxnRequest", "ProduceRequest")


class Lane:
    """A flow of its own, with topics and groups of its own."""

    def __init__(self, stage: Stage, alias: str) -> None:
        self._stage = stage
        self.topics = {f"{kind}-{alias}": count for kind, count in _PARTITIONS.items()}
        self.moved = Moved(alias)

    async def write(self, records: int) -> None:
        """So many to each partition; those in transactions lie between others that are aborted."""
        plain, atomic = self.topics
        address = self._stage.us.bootstrap
        async with (
            AIOKafkaProducer(bootstrap_servers=address) as producer,
            AIOKafkaProducer(bootstrap_servers=address, transactional_id=atomic) as transactional,
        ):
            for first in range(0, records, 10):
                for index in range(_PARTITIONS["plain"]):
                    for number in range(first, first + 10):
                        await producer.send(plain, b"%d" % number, partition=index)
                for aborts in (False, True):
                    await transactional.begin_transaction()
                    for number in range(first, first + 10):
                        await transactional.send(atomic, b"%d" % number, partition=0)
                    await (transactional.abort_transaction() if aborts else transactional.commit_transaction())

    async def play(self, number: int, seed: int) -> str:
        """One schedule; return what was played."""
        chance, alias, stage = random.Random(seed), self.moved.alias, self._stage
        groups = [f"{alias}-{number}-{at}" for at in range(_GROUPS)]
        is_gone = chance.random() < 0.4
        for connector in ("MirrorSourceConnector", "MirrorCheckpointConnector"):
            await asyncio.to_thread(stage.rest.ask, "PUT", f"/{alias}/eu/connectors/{connector}/resume")
        await self.write(_MORE)
        await asyncio.gather(*(self._read(True, one, chance.randrange(20, 250), 0) for one in groups))
        if is_gone:
            await stage.await_checkpoints(alias, groups)
        tasks = [self._read(True, chance.choice(groups), chance.randrange(40), chance.uniform(0, 15)) for _ in range(2)]
        tasks += [
            self._read(False, chance.choice(groups), chance.randrange(1, 40), chance.uniform(0, 45)) for _ in range(6)
        ]
        commands = [("failover", chance.uniform(0, 3))]
        commands.append((chance.choice(["failover", "failover", "undo"]), chance.uniform(2, 35)))
        if chance.random() < 0.6:
            commands.append((chance.choice(["failover", "undo", "undo"]), chance.uniform(10, 45)))
        for at, (command, after_s) in enumerate(commands):
            arguments = [command, str(stage.file), "--from", alias, "--to", "eu", "--rest", stage.url]
            if command == "failover":
                arguments += ["--group", f"{alias}-{number}-[0-9]", "--timeout", "90"]
                arguments += ["--source-gone", alias] if is_gone else []
            arguments += ["--execute", "--yes"]
            strike = draw_strike(chance, command)
            busy = chance.sample(groups, 2)
            pause_s = chance.choice([0.2, 0.8, 1.0]) * stage.pause_s
            tasks.append(self._operate(f"{seed}-{alias}-{at}", after_s, arguments, strike, (pause_s, busy)))
        ended = [one for one in await asyncio.gather(*tasks) if one]
        return f"seed {seed} in {alias}{', source gone' * is_gone}: {', '.join(ended)}"

    async def _operate(
        self,
        name: str,
        after_s: float,
        arguments: Sequence[str],
        strike: tuple[str, str],
        pause: tuple[float, Sequence[str]],
    ) -> str:
        """``pause``: for how many seconds at least it is suspended, and which groups are used at the target then."""

        async def suspended() -> None:
            await asyncio.gather(asyncio.sleep(pause[0]), *(self._read(False, one, 10, 0) for one in pause[1]))

        await asyncio.sleep(after_s)
        trace = self._stage.folder / f"{name}.jsonl"
        done = await run(trace, strike, arguments, suspended, _DEADLINE_S)
        self.moved.ran.append(done)
        return f"{done.command} {done.exit_code}{' suspended' * done.was_stopped}"

    async def _read(self, is_source: bool, group: str, count: int, after_s: float) -> str:
        await asyncio.sleep(after_s)
        at_s = time.time()
        if not is_source:
            await _consume(self._stage.eu.bootstrap, [f"{self.moved.alias}.{one}" for one in self.topics], group, count)
            return ""
        for partition, offset in (await _consume(self._stage.us.bootstrap, [*self.topics], group, count)).items():
            self.moved.read.setdefault((group, *partition), []).append((at_s, offset))
        return ""


def draw_strike(chance: random.Random, command: str) -> tuple[str, str]:
    """At which act an operator is struck, and how."""
    kind = chance.choice(["", "SIGKILL", "SIGSTOP"])
    by_name = f"{chance.choice(_COMMITS)}:{chance.randrange(1, 4 if command == 'undo' else 14)}"
    by_number = str(chance.randrange(1, 45))
    if not kind:
        return "-", "-"
    return chance.choice([by_name, by_number]), kind


async def _consume(bootstrap: str, topics: Sequence[str], group: str, count: int) -> dict[Partition, int]:
    """Join, read some records of each partition, ``count`` at most, commit and leave. Return what was read up to."""
    places: dict[Any, int] = {}
    # Others of the group join and leave meanwhile.
    with contextlib.suppress(KafkaError, TimeoutError):
        async with (
            asyncio.timeout(_SESSION_S),
            AIOKafkaConsumer(
                *topics,
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
        ):
            while not consumer.assignment():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            for at, one in enumerate(sorted(consumer.assignment()), 1):
                if count // at:
                    await consumer.getmany(one, timeout_ms=1500, max_records=count // at)
                places[one] = await consumer.position(one)
            await consumer.commit(places)
    return {(one.topic, one.partition): offset for one, offset in places.items()}


@dataclass(slots=True)
class Stage:
    """Both clusters, the mirror's file and its REST API."""

    us: KafkaCluster
    eu: KafkaCluster
    file: Path
    url: str
    folder: Path
    pause_s: float

    @property
    def rest(self) -> RestClient:
        return RestClient(self.url)

    def answers(self, alias: str) -> bool:
        try:
            return self.rest.try_once("GET", f"/{alias}/eu/connectors/MirrorSourceConnector/status")[0] == 200
        except (OSError, ValueError):  # while they start
            return False

    async def await_checkpoints(self, alias: str, groups: Sequence[str]) -> None:
        missing = set(groups)

        def take(_: Partition, __: int, batch: Any) -> None:
            missing.difference_update(Checkpoint.decode(one.key, one.value).group for one in batch)

        async with (
            asyncio.timeout(_DEADLINE_S),
            reading(self.eu.bootstrap, take, {f"{alias}.checkpoints.internal": 1}) as reader,
        ):
            while missing:
                await asyncio.sleep(0.5)
                await reader.read_to_end()


async def _play_all(lanes: Sequence[Lane], seeds: Sequence[int], until_s: float) -> None:
    """None is begun after ``until_s``, by the monotonic clock."""
    waiting = list(enumerate(seeds))
    done = 0

    async def play(lane: Lane) -> None:
        nonlocal done
        while waiting and time.monotonic() < until_s:
            said = await lane.play(*waiting.pop(0))
            done += 1
            say(f"{done} of {len(seeds)}: {said}")

    await asyncio.gather(*map(play, lanes))


async def _run(stage: Stage, lanes: Sequence[Lane], seeds: Sequence[int], minutes: float) -> list[str]:
    until_s = time.monotonic() + 60 * minutes
    for lane in lanes:
        await lane.write(_RECORDS)
        up = f"the flow of {lane.moved.alias} answers"
        await asyncio.to_thread(wait_until, lambda lane=lane: stage.answers(lane.moved.alias), _DEADLINE_S, up)
    await _play_all(lanes, seeds, until_s)
    history = await read_history(stage.eu.bootstrap)
    faults: list[str] = []
    counts: Counter[str] = Counter()
    for lane in lanes:
        remote = {f"{lane.moved.alias}.{topic}": count for topic, count in lane.topics.items()}
        records = await read_records(stage.us.bootstrap, lane.topics), await read_records(stage.eu.bootstrap, remote)
        found, so_many = judge(lane.moved, history, *records)
        faults += found
        counts += so_many
    for what, count in sorted(counts.items()):
        say(f"  {what}: {count}")
    if counts["offsets moved by failover"] < len(seeds):
        faults.append("too little was moved to say anything")
    return faults


def _properties(aliases: Sequence[str], us: KafkaCluster, eu: KafkaCluster) -> Mapping[str, str]:
    return {
        **SMALL,
        **CALM,
        **with_rest(),
        "clusters": ", ".join([*aliases, "eu"]),
        **{f"{alias}.bootstrap.servers": us.bootstrap for alias in aliases},
        **{f"{alias}.consumer.isolation.level": "read_committed" for alias in aliases},
        **{f"{alias}->eu.enabled": "true" for alias in aliases},
        **{f"{alias}->eu.topics": f".*-{alias}" for alias in aliases},
        **{f"{alias}->eu.groups": f"{alias}-.*" for alias in aliases},
        "eu.bootstrap.servers": eu.bootstrap,
        "emit.checkpoints.enabled": "true",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
    }


def main(arguments: Sequence[str]) -> int:
    """Return 0 if there was no fault."""
    parser = parser_of("failover_schedules", __doc__, "of the first; then + 1")
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=120.0, help="no schedule is begun after so many")
    parser.add_argument("--lanes", type=int, default=5, help="schedules at a time")
    parser.add_argument(
        "--pause", type=float, default=30.0, help="an operator is suspended for so many seconds, or a third"
    )
    options = parser.parse_args(arguments)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of each member that comes and goes
    folder, began_s = begin("failover schedules", options.seed), time.monotonic()
    say(f"{options.schedules} schedules, load {os.getloadavg()[0]:.1f}")
    aliases = [f"us{at}" for at in range(options.lanes)]
    with KafkaCluster.start("us") as us, KafkaCluster.start("eu", config=_CONFIG) as eu:
        properties = _properties(aliases, us, eu)
        with Mirror(properties, folder) as mirror:
            stage = Stage(us, eu, mirror.properties_file, properties["listeners"], folder, options.pause)
            lanes = [Lane(stage, alias) for alias in aliases]
            for lane in lanes:
                asyncio.run(make_topics(us.bootstrap, lane.topics))
            mirror.start()
            faults = asyncio.run(
                _run(stage, lanes, range(options.seed, options.seed + options.schedules), options.minutes)
            )
    say(f"{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}, {len(faults)} faults")
    return end(faults, folder)
