"""What the kill run rests on, shown with a real broker: bytes of a killed client arrive when the path lets them go."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, TopicPair
from tests.kit.pipe import Direction
from tests.kit.processes import wait_until
from tests.kit.proxied import ConnectionState
from tests.kit.proxy import FaultProxy
from tests.kit.requests import PRODUCE
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = pytest.mark.integration

DEADLINE_S = 180.0
#: Less than a batch of one record has with its request, of which no other follows before the answer; and more than
#: what is asked about the cluster in between.
LEAST_BYTES = 200


def produces(state: ConnectionState) -> bool:
    return bool(state.requests.get(PRODUCE))


def has_passed(proxy: FaultProxy, size: int) -> bool:
    return proxy.passed_bytes(Direction.REQUESTS) > size


class Path:
    def __init__(self) -> None:
        self.proxies: list[FaultProxy] = []
        # Its controller, which is frozen with it, must not find it dead when both go on.
        config = {"broker.session.timeout.ms": "60000"}
        self.cluster = KafkaCluster.start("held", config=config, advertised=self._before)

    def _before(self, _: int, port: int) -> tuple[str, int]:
        self.proxies = [FaultProxy.start("127.0.0.1", port, seed=5)]
        return self.proxies[0].address

    @property
    def proxy(self) -> FaultProxy:
        return self.proxies[0]

    def close(self) -> None:
        self.cluster.stop()
        self.proxy.close()


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    opened = Path()
    yield opened
    opened.close()


class Scene:
    def __init__(self, path: Path, topic: str, checker: Checker) -> None:
        self.path = path
        self.topic = topic
        self._checker = checker

    def writer(self) -> Writer:
        load = Load(self.topic, 1)
        return Writer(self.path.cluster.proxied_bootstrap, [load], records_per_s=5000, seed=1)

    async def records(self) -> int:
        return (await self._checker.check()).total("source_records")

    async def settled(self) -> int:
        """How many there are once nothing more comes: a slow broker may still be at work on what it has got."""
        seen = -1
        async with asyncio.timeout(DEADLINE_S):
            while (now := await self.records()) != seen:
                seen = now
                await asyncio.sleep(0.5)
        return seen

    async def until_more_than(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.records() <= count:
                pass  # each look asks the broker, which takes its time


@pytest.fixture
async def scene(path: Path) -> AsyncIterator[Scene]:
    topic = f"held-{uuid.uuid4().hex[:8]}"
    # Those of a writer that another test has killed are let go of by the broker, when it sees that.
    wait_until(lambda: not any(map(produces, path.proxy.connections())), DEADLINE_S, "nobody writes any more")
    await make_topics(path.cluster.bootstrap, {topic: 1})
    async with Checker(path.cluster.bootstrap, path.cluster.bootstrap, [TopicPair(topic, topic, 1)]) as checker:
        yield Scene(path, topic, checker)


async def test_held_batches_of_a_killed_producer_land_behind_what_others_have_read(scene: Scene) -> None:
    proxy = scene.path.proxy
    with scene.writer() as writer:
        await scene.until_more_than(0)
        assert proxy.hold(Direction.REQUESTS, produces) == 1
        wait_until(lambda: proxy.kept_bytes() > LEAST_BYTES, DEADLINE_S, "a batch is held")
        writer.kill()
    seen = await scene.settled()
    assert proxy.kept_bytes() > LEAST_BYTES, "it is held all the while"
    proxy.release()
    await scene.until_more_than(seen)


async def test_batches_in_a_frozen_broker_land_when_it_thaws(scene: Scene) -> None:
    proxy, cluster = scene.path.proxy, scene.path.cluster
    with scene.writer() as writer:
        await scene.until_more_than(0)
        writer.pause()
        seen = await scene.records()
        cluster.freeze(0)
        try:
            passed = proxy.passed_bytes(Direction.REQUESTS)
            writer.resume()
            queued = partial(has_passed, proxy, passed + LEAST_BYTES)
            wait_until(queued, DEADLINE_S, "a batch is queued")
            writer.kill()
        finally:
            cluster.thaw(0)
    await scene.until_more_than(seen)


async def test_a_producer_whose_path_is_cut_anywhere_goes_on_and_its_log_stays_whole(scene: Scene) -> None:
    proxy = scene.path.proxy
    with scene.writer() as writer:
        await scene.until_more_than(0)
        for count in (1, 7, 4_000, 20_011):
            cut = proxy.cut_after(count, where=produces)
            wait_until(cut.is_set, DEADLINE_S, f"the path is cut after {count} bytes")
            await scene.until_more_than(await scene.records())
        acknowledged = writer.stop()[scene.topic][0]
    assert await scene.records() == acknowledged
