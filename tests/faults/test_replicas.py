"""Three brokers, two in sync at least: killed, starved, led by others, cut by an unclean election; copied both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest

from connect.core.errors import ClusterUnreachable, RetriableError
from connectors.verification.direct import compare_topics
from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, TopicPair
from tests.kit.clients import settings_of
from tests.kit.direct import Broker, Replicas
from tests.kit.mirror import SMALL, Mirror
from tests.kit.processes import slices, wait_until
from tests.kit.stored import stored_positions
from tests.kit.topics import make_topics
from tests.kit.writer import Acknowledged, Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEED = 17
DEADLINE_S = 240.0
#: Kafka's node ids are one above the indexes.
FIRST, SECOND, THIRD = 1, 2, 3
#: Into the three brokers: one topic that goes on with two of them, one that needs all.
ORDERS, STARVED = Load("replicated-orders", 3), Load("replicated-starved", 1, value_bytes=50)
#: Out of them.
RETURNS = Load("replicated-returns", 2, "lz4")
#: Of two replicas, the one in and the other out.
CUT, TORN = "us.replicated-cut", "replicated-torn"


@dataclass
class World:
    """``solo`` has one broker, ``trio`` three; aliases in the mirror's file are the same."""

    solo: KafkaCluster
    trio: KafkaCluster
    mirror: Mirror
    writers: tuple[Writer, Writer]

    def broker(self, node_id: int) -> Broker:
        return Broker(self.trio, node_id - 1)

    def compare(self) -> None:
        """The copy goes on under load, catches up and is exact; nobody was started anew or took a guess."""
        before = [writer.acknowledged() for writer in self.writers]
        for writer, counts in zip(self.writers, before, strict=True):
            wait_until(partial(has_written_since, writer, counts), DEADLINE_S, "all partitions are written to")
            writer.pause()
        try:
            asyncio.run(self._compare())
        finally:
            for writer in self.writers:
                writer.resume()

    async def _compare(self) -> None:
        for source, target, loads in ((self.solo, self.trio, (ORDERS, STARVED)), (self.trio, self.solo, (RETURNS,))):
            pairs = [TopicPair(load.topic, f"{source.name}.{load.topic}", load.partitions) for load in loads]
            async with Checker(source.bootstrap, target.bootstrap, pairs) as checker:
                report = await checker.caught_up(DEADLINE_S)
            assert report.is_exact, "\n".join(report.faults) + "\n".join(self.mirror.log_lines()[-20:])

    async def compare_one(self, topic: str, remote: str, records: int) -> None:
        sides = settings_of(self.solo.bootstrap), settings_of(self.trio.bootstrap)
        report = await compare_topics(*sides, {topic: remote})
        assert (report.partitions, report.records, report.difference) == (1, records, None)

    def copy_both_ways(self, first: int) -> None:
        """50 records from number ``first``, in the topics that are to lose some, until copied and stored."""
        solo, end = Broker(self.solo, 0), first + 50
        solo.produce("replicated-cut", first, 50)
        self.broker(FIRST).produce(TORN, first, 50)
        self.await_end(CUT, end)
        wait_until(lambda: solo.end(f"trio.{TORN}") >= end, DEADLINE_S, f"{TORN} is copied to {end}")
        for target, alias, topic in ((self.trio, "us", "replicated-cut"), (self.solo, "trio", TORN)):
            stored = partial(stored_positions, target.bootstrap, alias, {topic: 1})
            wait_until(partial(is_stored, stored, end), DEADLINE_S, f"{topic} is stored up to {end}")

    def await_line(self, start: int, *parts: str) -> None:
        self.mirror.await_line(start, parts, DEADLINE_S)

    def await_starved(self, start: int) -> None:
        """What waits: a refused batch, one above the high watermark, or a take-over after missed heartbeats."""

        def is_reported() -> bool:
            return any(" WARNING " in line and "replicated-starved-0" in line for line in self.mirror.log_lines(start))

        wait_until(is_reported, DEADLINE_S, "the log warns of replicated-starved-0")

    def await_in_sync(self, topic: str, *nodes: int) -> None:
        wait_until(lambda: self._replicas(topic).in_sync == nodes, DEADLINE_S, f"{topic}-0 is in sync on {nodes}")

    def await_leader(self, topic: str, node_id: int) -> None:
        wait_until(lambda: self._replicas(topic).leader == node_id, DEADLINE_S, f"{node_id} leads {topic}-0")

    def elect(self, topic: str, node_id: int, *, unclean: bool = False) -> None:
        """Asked again until it leads: the controller may be frozen, or not know yet who is back."""

        def leads() -> bool:
            if self._replicas(topic).leader != node_id:
                with suppress(RetriableError, AssertionError):
                    self.broker(THIRD).elect(topic, unclean=unclean)
            return self._replicas(topic).leader == node_id

        wait_until(leads, DEADLINE_S, f"{node_id} leads {topic}-0")

    def end(self, topic: str, via: int = THIRD) -> int:
        """Of partition 0, -1 while nobody who is up leads it; ``via`` is a node that answers."""
        leader = self._replicas(topic, via).leader
        try:
            return self.broker(leader).end(topic) if leader > 0 else -1
        except ClusterUnreachable:
            return -1

    def await_end(self, topic: str, end: int, via: int = THIRD) -> None:
        wait_until(lambda: self.end(topic, via) >= end, DEADLINE_S, f"{topic}-0 ends at {end}")

    def _replicas(self, topic: str, via: int = THIRD) -> Replicas:
        found = self.broker(via).replicas(topic)
        assert found is not None, f"there is no {topic}"
        return found


def is_stored(stored: Callable[[], Coroutine[None, None, dict[tuple[str, int], int]]], end: int) -> bool:
    return list(asyncio.run(stored()).values()) == [end]


def has_written_since(writer: Writer, before: Acknowledged) -> bool:
    now = writer.acknowledged()
    return all(count > before[topic][index] for topic, counts in now.items() for index, count in counts.items())


@pytest.fixture(scope="module")
def world(us: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with KafkaCluster.start("trio", nodes=3) as trio:
        broker = Broker(trio, THIRD - 1)
        broker.make_topic("us.replicated-orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
        broker.make_topic("us.replicated-starved", [[3, 1, 2]], min_insync_replicas="3")
        broker.make_topic(CUT, [[1, 2]], min_insync_replicas="1")
        broker.make_topic(TORN, [[1, 2]], min_insync_replicas="1")
        broker.make_topic(RETURNS.topic, [[1, 2, 3], [2, 3, 1]], min_insync_replicas="2")
        sources = {load.topic: load.partitions for load in (ORDERS, STARVED)} | {"replicated-cut": 1}
        asyncio.run(make_topics(us.bootstrap, sources))
        with (
            Writer(us.bootstrap, (ORDERS, STARVED), records_per_s=2_000, seed=SEED) as inward,
            Writer(trio.bootstrap, (RETURNS,), records_per_s=1_000, seed=SEED) as outward,
            Mirror(properties(us, trio), tmp_path_factory.mktemp("replicas")) as mirror,
        ):
            mirror.start()
            world = World(us, trio, mirror, (inward, outward))
            world.compare()
            yield world
            assert mirror.stop() == 0


def properties(us: KafkaCluster, trio: KafkaCluster) -> dict[str, str]:
    return {
        "clusters": "us, trio",
        "us.bootstrap.servers": us.bootstrap,
        "trio.bootstrap.servers": trio.bootstrap,
        "us->trio.enabled": "true",
        "us->trio.topics": "replicated-.*",
        "trio->us.enabled": "true",
        "trio->us.topics": "replicated-.*",
        **{f"us.{key}": value for key, value in SMALL.items() if ".storage." in key},
        **{f"trio.{key}": "3" for key in SMALL if ".storage." in key},
        **{key: value for key, value in SMALL.items() if ".storage." not in key},
        "refresh.topics.interval.seconds": "60",
        # Nothing here is about leases and epochs, and a loaded machine must not add a take-over of its own.
        "lease.ms": "30000",
        "copy.epoch.ms": "600000",
        # A frozen broker is given up soon.
        "trio.producer.request.timeout.ms": "2000",
        "trio.consumer.request.timeout.ms": "2000",
        "trio.admin.request.timeout.ms": "2000",
    }


def test_a_broker_killed_and_replicas_too_few_for_a_while_cost_nothing(world: World) -> None:
    start = world.mirror.log_end()
    world.trio.kill(THIRD - 1)
    world.await_starved(start)
    world.await_end("us.replicated-orders", 0, via=FIRST)
    end = world.end("us.replicated-orders", via=FIRST)
    world.await_end("us.replicated-orders", end + 1, via=FIRST)
    world.trio.start_node(THIRD - 1)
    world.compare()


@pytest.mark.long
def test_a_partition_that_cannot_be_fenced_holds_up_itself_only(world: World) -> None:
    """Its marker needs three replicas, and two are left; it is taken over when the third is back."""
    starved, mirror = "us.replicated-starved", world.mirror
    world.trio.kill(THIRD - 1)
    wait_until(lambda: world._replicas(starved, FIRST).in_sync == (FIRST, SECOND), DEADLINE_S, "two are left")
    start = mirror.log_end()
    for member in slices(mirror.pid, [node.port for node in world.trio.nodes]):
        member.process.kill()
    why = "replicated-starved-0 waits: target us.replicated-starved-0 has 2 of the 3 in-sync replicas"
    world.await_line(start, "WARNING us->trio", why)
    end = world.end("us.replicated-orders", via=FIRST)
    world.await_end("us.replicated-orders", end + 1000, via=FIRST)
    assert not [one for one in mirror.resumed(start) if one.partition == "replicated-starved-0"]
    world.trio.start_node(THIRD - 1)
    world.await_line(start, "resumed us->trio replicated-starved-0: ", "verified=true")
    world.compare()


def test_leaders_that_move_at_either_side_cost_nothing(world: World) -> None:
    for topic in ("us.replicated-orders", RETURNS.topic):
        for nodes in ([2, 3, 1], [3, 1, 2], [1, 2, 3]):
            world.broker(THIRD).reassign(topic, 0, nodes)
            world.await_in_sync(topic, FIRST, SECOND, THIRD)
            world.elect(topic, nodes[0])
    world.compare()


@pytest.mark.long
def test_what_an_unclean_election_cuts_off_is_copied_again_or_stops_its_partition(world: World) -> None:
    """At the same time: what the target loses is copied again, what the source loses stops its partition."""
    mirror, solo = world.mirror, Broker(world.solo, 0)
    for topic in (CUT, TORN):
        world.await_in_sync(topic, FIRST, SECOND)
        world.elect(topic, FIRST)
    world.copy_both_ways(0)
    # The second replica is left behind while the first takes more ...
    world.trio.kill(SECOND - 1)
    for topic in (CUT, TORN):
        world.await_in_sync(topic, FIRST)
    world.copy_both_ways(50)
    # ... which then is gone, and nobody may lead ...
    world.trio.freeze(FIRST - 1)
    try:
        world.trio.start_node(SECOND - 1)
        for topic in (CUT, TORN):
            world.await_leader(topic, -1)
        start = mirror.log_end()
        solo.produce("replicated-cut", 100, 10)
        world.await_line(start, f"no leader for source {TORN}-0")
        assert not [line for line in mirror.log_lines(start) if "stopped" in line]
        # ... until one is told to that has less.
        for topic in (CUT, TORN):
            world.elect(topic, SECOND, unclean=True)
        world.broker(SECOND).produce(TORN, 200, 60)  # the log has the position again, with other records before it
    finally:
        world.trio.thaw(FIRST - 1)
    again = "replicated-cut-0 continues at source offset 50: target-truncated: source offsets 50 to "
    world.await_line(start, "WARNING us->trio", again, " are copied again")
    await_named(world, start)
    world.await_end(CUT, 110)
    start = mirror.log_end()
    mirror.kill()
    mirror.start()
    await_named(world, start)
    world.compare()
    asyncio.run(world.compare_one("replicated-cut", CUT, 110))
    assert 100 <= solo.end(f"trio.{TORN}") < 110, "markers of fences, and none of the new records"


def await_named(world: World, start: int) -> None:
    parted = f"source {TORN}-0 was truncated: leader epoch"
    world.await_line(start, "ERROR trio->us", parted, "ends at offset 50, but offsets up to 99 had been read")
