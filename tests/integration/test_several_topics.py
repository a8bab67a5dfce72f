"""Records of one topic sent to several, each filled by a connector of its own: once each across kills, groups too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord

from tests.kit.brokers import KafkaCluster
from tests.kit.copies import read_all
from tests.kit.members import until
from tests.kit.mirror import FOLLOWED_GROUPS, SMALL, Mirror, with_rest
from tests.kit.moving import commit, committed
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

QUERY = "SELECT IF(pmod(offset, 3) = 1, concat(topic, '.thirds'), topic) AS topic, upper(value) AS value FROM records"
NAME = "MirrorSourceConnector"
OTHER = "thirds"
ROUNDS = 4
A_ROUND = 1500
GROUP_AT = 1000
#: Spark alone takes a minute to start on a machine that is very busy.
DEADLINE_S = 400.0


class Scene:
    def __init__(self, us: KafkaCluster, eu: KafkaCluster, mode: str, directory: Path) -> None:
        self.us, self.eu = us, eu
        self.alias = f"split-{mode}"
        self.topic = f"{self.alias}-orders"
        rest = with_rest()
        self.url = rest["listeners"]
        atomic = {
            "eu.exactly.once.source.support": "enabled",
            f"{self.alias}->eu.consumer.isolation.level": "read_committed",
        }
        flow = {
            "enabled": "true",
            "topics": self.topic,
            "transform.sql": QUERY,
            "transform.other.topics": "${topic}.thirds",
            **FOLLOWED_GROUPS,
        }
        self.mirror = Mirror(
            {
                "clusters": f"{self.alias}, eu",
                f"{self.alias}.bootstrap.servers": us.bootstrap,
                "eu.bootstrap.servers": eu.bootstrap,
                **SMALL,
                **{f"{self.alias}->eu.{key}": value for key, value in flow.items()},
                **(atomic if mode == "atomic" else {}),
                "copy.epoch.ms": "4000",
                **rest,
            },
            directory,
        )

    def filled(self, rounds: int = ROUNDS) -> dict[str, list[int]]:
        """Numbers of records by the topic that they are to be in; their offsets at the source are the same."""
        numbers = range(rounds * A_ROUND)
        return {
            f"{self.alias}.{self.topic}": [number for number in numbers if number % 3 != 1],
            f"{self.alias}.{self.topic}.thirds": [number for number in numbers if number % 3 == 1],
        }

    def post_the_other(self) -> None:
        """As soon as the flow's own connector is there: the same, for the other topic."""
        worker, path = RestClient(f"{self.url}/"), f"/{self.alias}/eu/connectors"

        def config() -> Any:
            try:
                status, found = worker.try_once("GET", f"{path}/{NAME}/config")
            except OSError:  # it is starting
                return None
            return found if status == 200 else None

        usual = wait_until(config, DEADLINE_S, "the connector is there")
        routes = {"transform.topic": "${topic}.thirds", "transform.other.topics": "${topic}"}

        def is_posted() -> bool:
            status, found = worker.try_once("PUT", f"{path}/{OTHER}/config", {**usual, "name": OTHER, **routes})
            assert status in (200, 201, 409, 500), found
            return status in (200, 201)

        wait_until(is_posted, DEADLINE_S, "the other connector is there")

    async def write(self, first: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.us.bootstrap, linger_ms=5) as producer:
            for number in range(first, first + A_ROUND):
                await producer.send(self.topic, b"order %d" % number, partition=0)
                if number % 100 == 0:
                    await asyncio.sleep(0.1)  # so that a kill falls into the midst
            await producer.flush()

    async def leave_a_group(self) -> None:
        await commit(self.us.bootstrap, f"{self.alias}-readers", {self.topic: GROUP_AT})


@pytest.fixture(params=["plain", "atomic"])
def scene(request: pytest.FixtureRequest, us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(us, eu, request.param, tmp_path)
    asyncio.run(make_topics(us.bootstrap, {found.topic: 1}))
    with found.mirror as mirror:
        mirror.start()
        yield found
        assert mirror.stop() == 0
        mirror.assert_gone()


async def test_each_topic_has_its_records_once_across_kills(scene: Scene) -> None:
    mirror = scene.mirror
    await asyncio.to_thread(scene.post_the_other)
    await scene.write(0)
    await scene.leave_a_group()
    for number in range(1, ROUNDS):
        await mirror.until(partial(_have, scene, number), f"both topics have what {number} rounds gave", DEADLINE_S)
        writing = asyncio.create_task(scene.write(number * A_ROUND))
        await asyncio.sleep(0.3 * number)  # wherever the copy is then
        mirror.kill()
        mirror.start()
        await writing
    for topic, numbers in scene.filled().items():
        await mirror.until(partial(_has, scene, topic, len(numbers)), f"all are copied to {topic}", DEADLINE_S)
        found = await read_all(scene.eu.bootstrap, topic)
        assert [record.value for record in found] == [b"ORDER %d" % number for number in numbers], topic
    assert not any(one.at_least_once for one in mirror.resumed()), mirror.log_lines()
    await _group_goes_on_in_both(scene)


async def _has(scene: Scene, topic: str, count: int) -> bool:
    return len(await read_all(scene.eu.bootstrap, topic)) >= count


async def _have(scene: Scene, rounds: int) -> bool:
    return all([await _has(scene, topic, len(numbers)) for topic, numbers in scene.filled(rounds).items()])


async def _group_goes_on_in_both(scene: Scene) -> None:
    """At the first record of each topic that it has not read at the source."""
    wanted = {
        topic: b"ORDER %d" % next(number for number in numbers if number >= GROUP_AT)
        for topic, numbers in scene.filled().items()
    }
    at: dict[str, int | None] = {}

    async def stands_in_both() -> bool:
        at.update(await committed(scene.eu.bootstrap, f"{scene.alias}-readers", wanted))
        return all(offset is not None for offset in at.values())

    await until(stands_in_both, "the group is moved in both topics", DEADLINE_S)
    for topic, offset in at.items():
        behind = [record for record in await read_all(scene.eu.bootstrap, topic) if record.offset >= (offset or 0)]
        first: ConsumerRecord = behind[0]
        assert first.value == wanted[topic], (topic, offset)
