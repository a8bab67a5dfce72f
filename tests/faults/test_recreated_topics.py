"""Topics deleted, recreated or cut under the copy or while it is down stop their partition by name; others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from connect.cli.commands.lag_and_status import run_lag
from connectors.formats.gap import Gap, GapKind
from tests.kit.brokers import KafkaCluster
from tests.kit.direct import Broker, value_numbers
from tests.kit.groups import end_sessions
from tests.kit.mirror import CALM, PATIENT, SMALL, Mirror, one_flow
from tests.kit.processes import wait_until
from tests.kit.stored import stored_gaps, stored_positions

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 240.0
#: Records in each topic when a test begins.
FIRST = 20
#: The alias of the source: what a flow stores is named after it, and the clusters are shared with other tests.
ALIAS = "yard"
#: The alias of one more flow from the same source, whose policies let partitions continue.
RESUMES = "heals"
TOPICS = ("keeps", "source-live", "target-live", "source-gone", "source-down", "target-down", "gap-down")
GONE = "anew-source-gone"
#: All source topics, by the alias of the flow that copies them.
FLOWS = {
    ALIAS: [f"anew-{topic}" for topic in TOPICS],
    RESUMES: ["heals-live", "heals-source-down", "heals-target-down", "heals-gap-down"],
}


@dataclass
class World:
    source: Broker
    target: Broker
    mirror: Mirror

    def others_go_on(self) -> None:
        """A topic that nothing happens to is copied, so whatever was to be said of the others has been said."""
        end = self.source.end("anew-keeps")
        self.source.produce("anew-keeps", end, 10)
        wait_until(lambda: self.target.end(f"{ALIAS}.anew-keeps") >= end + 10, DEADLINE_S, "the others go on")

    def await_gone(self) -> None:
        said = f"source topic {GONE} does not exist any more; {GONE}-0 was copied up to source offset {FIRST - 1}"
        self.await_error(0, said)

    def await_error(self, start: int, *parts: str) -> None:
        self.mirror.await_line(start, (f" ERROR {ALIAS}->eu ", *parts), DEADLINE_S)


async def _stored_gaps(bootstrap: str, alias: str) -> dict[str, Gap]:
    return {one.source_topic: one.gap for one in await stored_gaps(bootstrap, alias)}


def recreate(broker: Broker, topic: str) -> None:
    """In one go: a topic that stays away for ten seconds is said to be gone for good."""
    broker.delete_topic(topic)
    broker.make(topic)


def await_end(broker: Broker, topic: str, end: int) -> None:
    wait_until(lambda: broker.end(topic) >= end, DEADLINE_S, f"{topic} has {end} records")


def await_stored(bootstrap: str, alias: str, topics: Sequence[str]) -> None:
    """Until the flow's positions are behind what the topics hold first: who is killed then copies nothing again."""
    stored = {(topic, 0): FIRST for topic in topics}
    wait_until(
        lambda: asyncio.run(stored_positions(bootstrap, alias, dict.fromkeys(topics, 1))) == stored,
        DEADLINE_S,
        f"all of {alias} is copied and stored",
    )


@pytest.fixture(scope="module")
def world(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    source, target = Broker(us, 0), Broker(eu, 0)
    for topic in chain(*FLOWS.values()):
        source.make(topic)
        source.produce(topic, 0, FIRST)
    properties = {
        "clusters": f"{ALIAS}, {RESUMES}, eu",
        f"{ALIAS}.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        f"{ALIAS}->eu.enabled": "true",
        f"{ALIAS}->eu.topics": "anew-.*",
        f"{RESUMES}.bootstrap.servers": us.bootstrap,
        f"{RESUMES}->eu.enabled": "true",
        f"{RESUMES}->eu.topics": "heals-.*",
        f"{RESUMES}->eu.on.source.gap": "skip",
        f"{RESUMES}->eu.on.topic.recreated": "restart",
        **SMALL,
        # Nothing here is about leases and epochs, and a loaded machine must not add a take-over of its own.
        **PATIENT,
        "eu.offset.flush.interval.ms": "200",
        "refresh.topics.interval.seconds": "600",
        "copy.epoch.ms": "600000",
    }
    with Mirror(properties, tmp_path_factory.mktemp("anew")) as mirror:
        mirror.start()
        world = World(source, target, mirror)
        for alias, topics in FLOWS.items():
            # What is stored has its topic before anything is copied.
            for topic in topics:
                await_end(target, f"{alias}.{topic}", FIRST)
            await_stored(eu.bootstrap, alias, topics)
        # Said to be gone only after a while, which the other tests use.
        source.delete_topic(GONE)
        yield world
        assert mirror.stop() == 0


def test_a_source_made_anew_under_the_copy_is_not_copied_over(world: World, eu: KafkaCluster) -> None:
    topic, start = "anew-source-live", world.mirror.log_end()
    recreate(world.source, topic)
    world.source.produce(topic, 0, 2 * FIRST)  # the old position is in range
    world.await_error(start, f"source topic {topic} was recreated (topic id ")
    world.others_go_on()
    assert asyncio.run(value_numbers(eu.bootstrap, f"{ALIAS}.{topic}")) == [*range(FIRST)]


def test_a_policy_copies_a_source_made_anew_from_its_beginning(world: World, eu: KafkaCluster) -> None:
    """Its records follow those of the topic before."""
    recreate(world.source, "heals-live")
    world.source.produce("heals-live", 100, 5)
    await_end(world.target, "heals.heals-live", FIRST + 5)
    numbers = asyncio.run(value_numbers(eu.bootstrap, "heals.heals-live"))
    assert numbers == [*range(FIRST), *range(100, 105)]
    gap = asyncio.run(_stored_gaps(eu.bootstrap, RESUMES))["heals-live"]
    assert (gap.kind, gap.first, gap.go_on_at) == (GapKind.SOURCE_RECREATED, FIRST, 0)


def test_a_target_made_anew_under_the_copy_is_not_filled_from_the_middle(world: World, eu: KafkaCluster) -> None:
    topic, start = "anew-target-live", world.mirror.log_end()
    recreate(world.target, f"{ALIAS}.{topic}")
    world.source.produce(topic, FIRST, 5)
    world.await_error(start, f"target topic {ALIAS}.{topic} was recreated (topic id ")
    world.others_go_on()
    assert asyncio.run(value_numbers(eu.bootstrap, f"{ALIAS}.{topic}")) == []


def test_a_source_that_is_gone_is_said_to_be(world: World) -> None:
    world.await_gone()
    world.others_go_on()
    reported = [line for line in world.mirror.log_lines() if GONE in line]
    assert len(reported) <= 10, "the log is not filled with it"


def test_what_changed_while_the_mirror_was_down_is_seen_at_its_start(
    world: World, eu: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror, start = world.mirror, world.mirror.log_end()
    world.await_gone()  # a mirror that starts knows nothing of a topic that is not there
    mirror.kill()
    asyncio.run(end_sessions(eu.bootstrap, f"{ALIAS}-mm2", f"{RESUMES}-mm2"))
    recreate(world.source, "anew-source-down")
    world.source.produce("anew-source-down", 0, 2 * FIRST)
    recreate(world.target, f"{ALIAS}.anew-target-down")
    world.source.produce("anew-target-down", FIRST, 5)
    world.source.produce("anew-gap-down", FIRST, 2 * FIRST)
    world.source.delete_records("anew-gap-down", FIRST + 7)
    recreate(world.source, "heals-source-down")
    world.source.produce("heals-source-down", 100, 2 * FIRST)
    recreate(world.target, f"{RESUMES}.heals-target-down")
    world.source.produce("heals-gap-down", FIRST, 2 * FIRST)
    world.source.delete_records("heals-gap-down", FIRST + 7)
    mirror.start()
    world.await_error(start, "source topic anew-source-down was recreated (topic id ")
    world.await_error(start, f"target topic {ALIAS}.anew-target-down was recreated (topic id ")
    gap = (
        "begins at offset 27 now, and offset 20 was to be copied next",
        "removed 7 offsets that may not have been copied",
    )
    world.await_error(start, "source anew-gap-down-0", *gap)
    world.others_go_on()
    for topic, numbers in (("source-down", [*range(FIRST)]), ("target-down", []), ("gap-down", [*range(FIRST)])):
        assert asyncio.run(value_numbers(eu.bootstrap, f"{ALIAS}.anew-{topic}")) == numbers
        reported = next(line for line in mirror.log_lines(start) if f" anew-{topic}-0 " in line and " ERROR " in line)
        assert "PATCH /connectors/MirrorSourceConnector/offsets" in reported
    policies_went_on(world, eu.bootstrap)
    lags_are_reported(world, capsys)


def policies_went_on(world: World, bootstrap: str) -> None:
    """Nothing but what is gone is missing, and its range is stored."""
    expected = {
        "heals.heals-source-down": [*range(FIRST), *range(100, 100 + 2 * FIRST)],
        "heals.heals-target-down": [*range(FIRST)],
        "heals.heals-gap-down": [*range(FIRST), *range(FIRST + 7, 3 * FIRST)],
    }
    for topic, numbers in expected.items():
        await_end(world.target, topic, len(numbers))
        assert asyncio.run(value_numbers(bootstrap, topic)) == numbers
    gaps = asyncio.run(_stored_gaps(bootstrap, RESUMES))
    missing = gaps["heals-gap-down"]
    assert (missing.kind, missing.first, missing.last) == (GapKind.SOURCE_GAP, FIRST, FIRST + 6)
    assert gaps["heals-source-down"].kind is GapKind.SOURCE_RECREATED
    assert gaps["heals-target-down"].kind is GapKind.TARGET_RECREATED
    assert gaps["heals-target-down"].lost_offsets == 0
    assert not asyncio.run(_stored_gaps(bootstrap, ALIAS)), "nothing was passed over by default"


def lags_are_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """At rest nothing is behind but what is stopped, and that is counted exactly."""

    def lag() -> dict[str, Any]:
        capsys.readouterr()
        assert run_lag(world.mirror.properties_file, flow=None, top=5, as_json=True) == 0
        return {one["flow"]: one for one in json.loads(capsys.readouterr().out)}

    def furthest(flows: dict[str, Any]) -> dict[str, Any]:
        return {one["topic"]: one for one in flows[f"{ALIAS}->eu"]["furthest"]}

    def at_rest() -> bool:
        """Copied is not stored yet: positions follow on their own schedule."""
        flows = lag()
        resumed = [flows[f"{RESUMES}->eu"][name] for name in ("records", "bytes", "ms")]
        return resumed == [0, 0, 0] and "anew-keeps" not in furthest(flows)

    wait_until(at_rest, DEADLINE_S, "all that goes on is stored")
    gap = furthest(lag())["anew-gap-down"]
    assert (gap["position"], gap["end"], gap["records"], gap["lost"]) == (FIRST, 3 * FIRST, 2 * FIRST - 7, 7)
    assert gap["bytes"] > 0
    assert 0 < gap["ms"] < 3_600_000


@pytest.mark.long
def test_a_topic_that_was_away_for_long_is_copied_from_its_beginning(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    """It is the only one of its task, which therefore waits for it."""
    source, target = Broker(us, 0), Broker(eu, 0)
    topic, remote = "away-for-long", "away.away-for-long"
    source.make(topic)
    source.produce(topic, 0, FIRST)
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, topic, "away", tasks=1),
        **CALM,
        "on.topic.recreated": "restart",
        "refresh.topics.interval.seconds": "600",
    }
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        await_end(target, remote, FIRST)
        source.delete_topic(topic)
        mirror.await_line(0, (f"source topic {topic} does not exist any more",), DEADLINE_S)
        source.make(topic)
        source.produce(topic, 100, 10)
        mirror.await_line(0, (f"source topic {topic} was recreated",), DEADLINE_S)
        wait_until(
            lambda: asyncio.run(value_numbers(eu.bootstrap, remote)) == [*range(FIRST), *range(100, 110)],
            DEADLINE_S,
            "what is there now is copied behind what was",
        )
        assert mirror.stop() == 0
