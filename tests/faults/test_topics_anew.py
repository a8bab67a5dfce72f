"""Topics that are deleted, made anew or cut at their beginning, under the running copy and while it is down.

One mirror copies them all; what is not the topic any more that it was stops its partition with a sentence that names
it, again after every start, and the others go on. Nothing is copied over in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from connect.embedded.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.mirror import Mirror
from tests.kit.processes import wait_until
from tests.kit.stored import stored_positions

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 240.0
POLL_S = 0.1
#: Records in each topic when a test begins.
FIRST = 20
#: The alias of the source: what a flow stores is named after it, and the clusters are shared with other tests.
ALIAS = "yard"
TOPICS = ("keeps", "source-live", "target-live", "source-gone", "source-down", "target-down", "gap-down")
GONE = "anew-source-gone"


@dataclass
class World:
    source: Broker
    target: Broker
    mirror: Mirror

    def others_go_on(self) -> None:
        """A topic that nothing happens to is copied, so whatever was to be said of the others has been said."""
        end = self.source.end("anew-keeps")
        self.source.produce("anew-keeps", end, 10)
        wait_until(lambda: self.target.end(f"{ALIAS}.anew-keeps") >= end + 10, DEADLINE_S, "the others go on", POLL_S)

    def await_gone(self) -> None:
        said = f"source topic {GONE} does not exist any more; {GONE}-0 was copied up to source offset {FIRST - 1}"
        self.await_error(0, said)

    def await_error(self, start: int, *parts: str) -> None:
        self.mirror.await_line(start, (f" ERROR {ALIAS}->eu ", *parts), DEADLINE_S)


def make_anew(broker: Broker, topic: str) -> None:
    broker.delete_topic(topic)
    wait_until(lambda: broker.replicas(topic) is None, DEADLINE_S, f"{topic} is gone", POLL_S)
    make(broker, topic)


def make(broker: Broker, topic: str) -> None:
    def is_made() -> bool:
        with suppress(AssertionError):  # one of the name may still be on its way out
            broker.make_topic(topic, [[1]])
            return True
        return False

    wait_until(is_made, DEADLINE_S, f"{topic} is made", POLL_S)
    wait_until(lambda: broker.end(topic) == 0, DEADLINE_S, f"{topic} is there", POLL_S)


@pytest.fixture(scope="module")
def world(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    source, target = Broker(us, 0), Broker(eu, 0)
    for topic in TOPICS:
        make(source, f"anew-{topic}")
        source.produce(f"anew-{topic}", 0, FIRST)
    properties = {
        "clusters": f"{ALIAS}, eu",
        f"{ALIAS}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{ALIAS}->eu.enabled": "true",
        f"{ALIAS}->eu.topics": "anew-.*",
        "replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "refresh.topics.interval.seconds": "600",
        # Nothing here is about leases and epochs, and a loaded machine must not add a take-over of its own.
        "lease.ms": "30000",
        "copy.epoch.ms": "600000",
    }
    with Mirror(properties, tmp_path_factory.mktemp("anew")) as mirror:
        mirror.start()
        world = World(source, target, mirror)
        # What is stored has its topic before anything is copied.
        wait_until(lambda: target.end(f"{ALIAS}.anew-keeps") >= FIRST, DEADLINE_S, "the mirror copies", POLL_S)
        partitions = {f"anew-{topic}": 1 for topic in TOPICS}
        copied = {(topic, 0): FIRST for topic in partitions}
        wait_until(
            lambda: asyncio.run(stored_positions(eu.bootstrap, ALIAS, partitions)) == copied,
            DEADLINE_S,
            "all is copied and stored",
            POLL_S,
        )
        # Said to be gone only after a while, which the other tests use.
        source.delete_topic(GONE)
        yield world
        assert mirror.stop() == 0


def test_a_source_made_anew_under_the_copy_is_not_copied_over(world: World) -> None:
    topic, start = "anew-source-live", world.mirror.log_end()
    end = world.target.end(f"{ALIAS}.{topic}")  # behind the marker of a fence, where another test has killed the mirror
    make_anew(world.source, topic)
    world.source.produce(topic, 0, 2 * FIRST)  # the old position is in range
    world.await_error(start, f"source topic {topic} was deleted and made anew (topic id ")
    world.others_go_on()
    assert world.target.end(f"{ALIAS}.{topic}") == end


def test_a_target_made_anew_under_the_copy_is_not_filled_from_the_middle(world: World) -> None:
    topic, start = "anew-target-live", world.mirror.log_end()
    make_anew(world.target, f"{ALIAS}.{topic}")
    world.source.produce(topic, FIRST, 5)
    world.await_error(start, f"target topic {ALIAS}.{topic} was deleted and made anew (topic id ")
    world.others_go_on()
    assert world.target.end(f"{ALIAS}.{topic}") == 0


def test_a_source_that_is_gone_is_said_to_be(world: World) -> None:
    world.await_gone()
    world.others_go_on()
    told = [line for line in world.mirror.log_lines() if GONE in line]
    assert len(told) <= 10, "the log is not filled with it"


def test_what_changed_while_the_mirror_was_down_is_seen_at_its_start(world: World) -> None:
    mirror, start = world.mirror, world.mirror.log_end()
    world.await_gone()  # a mirror that starts knows nothing of a topic that is not there
    mirror.kill()
    make_anew(world.source, "anew-source-down")
    world.source.produce("anew-source-down", 0, 2 * FIRST)
    make_anew(world.target, f"{ALIAS}.anew-target-down")
    world.source.produce("anew-target-down", FIRST, 5)
    world.source.produce("anew-gap-down", FIRST, 2 * FIRST)
    world.source.delete_records("anew-gap-down", FIRST + 7)
    mirror.start()
    world.await_error(start, "source topic anew-source-down was deleted and made anew (topic id ")
    world.await_error(start, f"target topic {ALIAS}.anew-target-down was deleted and made anew (topic id ")
    gap = (
        "begins at offset 27 now, and offset 20 was to be copied next",
        "took 7 offsets that are not known to be copied",
    )
    world.await_error(start, "source anew-gap-down-0", *gap)
    world.others_go_on()
    ends = [world.target.end(f"{ALIAS}.anew-{topic}") for topic in ("source-down", "target-down", "gap-down")]
    assert ends == [FIRST, 0, FIRST + 1], "the last one has the fence's marker"
