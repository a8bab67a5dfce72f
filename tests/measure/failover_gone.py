"""How long 200 groups on 10,000 partitions take to move if the source is dead and 50 ms away. Goal: 60 s."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from connect.embedded import cluster_config
from connect.embedded.brokers import QUICK_JVM
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import committed
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import init_producer_id
from connectors.checkpoint.group_checkpoints import LiveOffsets
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.positions.stored_positions import Commit
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_and_admin, cluster_at
from tests.kit.long_run import begin, end, parser_of, say
from tests.kit.mirror import one_flow, replicated, write_properties
from tests.kit.pipe import Direction
from tests.kit.proxy import FaultProxy, put_before
from tests.kit.topics import make_topics, until_led

_GOAL_S: Final = 60.0
_NODES: Final = 3
#: It leads the partitions that are to be without a leader, and nothing else of the flow.
_VICTIM: Final = 2
_PER_TOPIC: Final = 100
_MADE_AT_ONCE: Final = 5
_TASKS: Final = 8
_RECORDS: Final = 3
#: By which a source offset is larger than that of its copy.
_AHEAD: Final = 100
_MAP_TOPIC: Final = "mm2-offset-map.us.internal"
_CHECKPOINTS: Final = "us.checkpoints.internal"
_COMMAND_DEADLINE_S: Final = 900.0
_SOME_LEFT: Final = 3


class Layout(NamedTuple):
    """Group ``i`` reads partitions from ``i * each`` on; the ``bad`` have a checkpoint behind the end of the copy."""

    partitions: int
    groups: tuple[str, ...]
    stuck: frozenset[int]
    bad: frozenset[str]

    @property
    def each(self) -> int:
        return self.partitions // len(self.groups)

    def group(self, number: int) -> str:
        return self.groups[number // self.each]

    def offset(self, number: int) -> int:
        """Where its group goes on in the copy."""
        return number % (_RECORDS + 1)

    @property
    def blocked(self) -> set[str]:
        return {self.group(one) for one in self.stuck} | self.bad

    def topics(self) -> dict[str, int]:
        count = -(-self.partitions // _PER_TOPIC)
        return {f"t{at:03}": min(_PER_TOPIC, self.partitions - at * _PER_TOPIC) for at in range(count)}


def source_of(number: int) -> TopicPartition:
    return TopicPartition(f"t{number // _PER_TOPIC:03}", number % _PER_TOPIC)


def target_of(number: int) -> tuple[str, int]:
    topic, index = source_of(number)
    return f"us.{topic}", index


def draw(options: argparse.Namespace) -> Layout:
    chance = random.Random(options.seed)
    groups = tuple(f"g-{number:03}" for number in range(options.groups))
    each = options.partitions // options.groups
    stuck = frozenset(one * each for one in chance.sample(range(options.groups), options.stuck))
    others = [name for at, name in enumerate(groups) if at * each not in stuck]
    return Layout(options.partitions, groups, stuck, frozenset(chance.sample(others, options.bad)))


async def _prepare(eu: KafkaCluster, layout: Layout) -> None:
    async with cluster_and_admin(eu.bootstrap, "eu") as (target, admin):
        topics = list(enumerate(layout.topics().items()))
        for at in range(0, len(topics), _MADE_AT_ONCE):
            some = topics[at : at + _MADE_AT_ONCE]
            await asyncio.to_thread(_make_remote_topics, eu.bootstrap, layout, some)
            await until_led(target, {f"us.{name}": count for _, (name, count) in some})
        await make_topics(eu.bootstrap, {_CHECKPOINTS: 1}, replicas=_NODES)
        await _write_records(eu.bootstrap, layout)
        await _store_positions(target, admin, layout)
        await _write_checkpoints(eu.bootstrap, target, layout)


def _make_remote_topics(bootstrap: str, layout: Layout, some: Sequence[tuple[int, tuple[str, int]]]) -> None:
    """Each partition on one broker. Of ``some`` topics their number, name and number of partitions."""
    admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="prepare", request_timeout_ms=120_000)
    topics: list[Any] = []
    for at, (name, count) in some:
        first = at * _PER_TOPIC
        placed = {
            index: [_VICTIM + 1 if first + index in layout.stuck else 1 + index % _VICTIM] for index in range(count)
        }
        topics.append(NewTopic(name=f"us.{name}", replica_assignments=placed))
    try:
        admin.create_topics(topics, timeout_ms=120_000)
    finally:
        admin.close()


async def _write_records(bootstrap: str, layout: Layout) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=50) as producer:
        for number in range(layout.partitions):
            topic, index = target_of(number)
            for at in range(_RECORDS):
                await producer.send(topic, b"%d" % at, partition=index)
        await producer.flush()


async def _store_positions(target: Cluster, admin: Admin, layout: Layout) -> None:
    ids = {
        name: one.topic_id
        for name, one in (await target.topics({f"us.{one}" for one in layout.topics()})).topics.items()
    }
    source_ids = {name: uuid.uuid4() for name in layout.topics()}
    for task in range(_TASKS):
        writer = f"us-mm2-MirrorSourceConnector-{task}"
        identity = await init_producer_id(target, writer)
        place = StoreSettings(
            "MirrorSourceConnector", "us", "mm2-offsets.us.internal", _MAP_TOPIC, f"{writer}-commit", _NODES
        )
        store = MirrorPositionStore(target, admin, place)
        mine = range(task, layout.partitions, _TASKS)
        await store.load([source_of(number) for number in mine])
        commits = []
        for number in mine:
            source, remote = source_of(number), target_of(number)
            position = Position(
                *source,
                source_ids[source.topic],
                _AHEAD + _RECORDS,
                0,
                *remote,
                ids[remote[0]],
                _RECORDS,
                writer,
                *identity,
                _RECORDS,
            )
            commits.append(Commit(position, [(_AHEAD, 0, _RECORDS)]))
        await store.commit(commits)


async def _write_checkpoints(bootstrap: str, target: Cluster, layout: Layout) -> None:
    live = LiveOffsets(target, _MAP_TOPIC, "us->eu")
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for number in range(layout.partitions):
            group, at = layout.group(number), layout.offset(number)
            behind = 1000 if group in layout.bad and not number % layout.each else 0
            one = Checkpoint(group, *target_of(number), _AHEAD + at + behind, at + behind, "")
            await producer.send(_CHECKPOINTS, one.value(), key=one.key())
        await producer.flush()
    for at, group in enumerate(layout.groups):
        mine = range(at * layout.each, (at + 1) * layout.each)
        live.look(group, {TopicPartition(*target_of(number)): None for number in mine}, 0)
    await live.store()


async def _lose_leaders(eu: KafkaCluster, layout: Layout) -> int:
    """Kill the broker that leads them. Return how many partitions of the flow have no leader then."""
    if layout.stuck:
        eu.kill(_VICTIM)
    topics = {f"us.{one}" for one in layout.topics()}
    async with cluster_at(eu.bootstrap) as target:
        async with asyncio.timeout(120):
            while True:
                known = (await target.metadata(topics)).topics
                lost = sum(one.leader < 0 for topic in known.values() for one in topic.partitions.values())
                if lost == len(layout.stuck):
                    return lost
                await asyncio.sleep(0.5)


async def _offsets(eu: KafkaCluster, groups: Sequence[str]) -> dict[str, dict[tuple[str, int], int]]:

    async def of(group: str) -> dict[tuple[str, int], int]:
        return {place: one.offset for place, one in (await committed(target, group)).items()}

    async with cluster_at(eu.bootstrap) as target:
        return dict(zip(groups, await gather_limited(of, groups, 16), strict=True))


def judge(
    layout: Layout, reported: Mapping[str, Any], offsets: Mapping[str, Mapping[tuple[str, int], int]]
) -> list[str]:
    faults = []
    named = {one["group"]: one for one in reported["blocked"]}
    if named.keys() != layout.blocked:
        faults.append(f"blocked are {sorted(named)}, and not {sorted(layout.blocked)}")
    faults += [
        f"{name} is blocked without a remedy" for name, one in named.items() if not (one["why"] and one["remedy"])
    ]
    for at, group in enumerate(layout.groups):
        mine = range(at * layout.each, (at + 1) * layout.each)
        wanted = {} if group in layout.blocked else {target_of(number): layout.offset(number) for number in mine}
        if offsets[group] != wanted:
            faults.append(f"{group} is not where it should be")
    return faults


@contextmanager
def _dead(*, is_silent: bool) -> Iterator[str]:
    """The address of a source that refuses connections or, ``is_silent``, takes them and never answers."""
    if not is_silent:
        yield f"127.0.0.1:{cluster_config.choose(1)[0]}"
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def _run(options: argparse.Namespace, layout: Layout, folder: Path) -> list[str]:
    with ExitStack() as closing:
        proxies: list[FaultProxy] = []
        advertised = put_before(closing, proxies)
        # An index is 10 MB of a map otherwise, and each broker has thousands.
        config = {"log.index.size.max.bytes": "4096"}
        eu = closing.enter_context(
            KafkaCluster.start(
                "eu", nodes=_NODES, config=config, advertised=advertised, jvm_options=(*QUICK_JVM, "-Xmx1g")
            )
        )
        began_s = time.monotonic()
        asyncio.run(_prepare(eu, layout))
        lost = asyncio.run(_lose_leaders(eu, layout))
        say(f"prepared in {time.monotonic() - began_s:.0f} s; {lost} partitions have no leader")
        file = folder / "mm2.properties"
        source = closing.enter_context(_dead(is_silent=options.silent))
        flow = one_flow(source, eu.proxied_bootstrap, "t.*")
        write_properties(file, {**flow, **replicated(_NODES), "groups": "g-.*"})
        for proxy in proxies:
            for direction in Direction:
                proxy.delay(direction, options.round_trip / 2)
        command = ["failover", str(file), "--to", "eu", "--source-gone", "us", "--execute", "--yes", "--json"]
        began_s = time.monotonic()
        done = subprocess.run(
            [str(Path(sys.executable).parent / "heliograph"), *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=_COMMAND_DEADLINE_S,
            stdin=subprocess.DEVNULL,
        )
        took_s = time.monotonic() - began_s
        (folder / "said.txt").write_text(done.stderr)
        requests: Counter[int] = sum((each for proxy in proxies for each in proxy.requests().values()), Counter())
        say(
            f"{took_s:.1f} s, load {os.getloadavg()[0]:.1f}, exit code {done.returncode}, {requests.total()} requests: "
            f"{dict(requests.most_common(8))}"
        )
        if not done.stdout.startswith("{"):
            return [f"it has said: {(done.stdout + done.stderr)[-2000:]}"]
        reported = json.loads(done.stdout)
        faults = judge(layout, reported, asyncio.run(_offsets(eu, layout.groups)))
        say(f"{len(layout.groups) - len(layout.blocked)} groups wanted, {len(reported['ready'])} moved")
        for one in reported["blocked"]:
            say(f"  blocked: {one['group']}: {one['why']}; {one['remedy']}")
    if done.returncode != (_SOME_LEFT if layout.blocked else 0):
        faults.append(f"the exit code is {done.returncode}")
    if took_s > _GOAL_S:
        faults.append(f"it took {took_s:.1f} s, and {_GOAL_S:g} s is the goal")
    return faults


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("failover_gone", __doc__, "which are stuck")
    parser.add_argument("--partitions", type=int, default=10_000, help="of the flow, all not cleanly ended")
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--stuck", type=int, default=5, help="target partitions without a leader, a group each")
    parser.add_argument("--bad", type=int, default=0, help="groups with a checkpoint behind the end of the copy")
    parser.add_argument("--round-trip", type=float, default=50.0, help="to the target, in ms")
    parser.add_argument("--silent", action="store_true", help="the source takes connections, and never answers")
    options = parser.parse_args(arguments)
    folder = begin("failover gone", options.seed)
    return end(_run(options, draw(options), folder), folder)
