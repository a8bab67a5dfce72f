"""What is done to a flow while it copies: new partitions, filters, a restart, a frozen worker; what stays is exact."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition as Partition

from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_and_admin
from tests.kit.mirror import Mirror, one_flow, with_rest
from tests.kit.rest_client import RestClient
from tests.kit.stream import DEADLINE_S, Stream, longest_gap_s, producers_of
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

NAME = "MirrorSourceConnector"
ALIAS = "live"
#: A machine may be busy; a task that starts anew takes longer.
GAP_S = 3.0
#: Longer than a connector waits for its first look before it counts as started, shorter than a request may take.
SLOW_S = 16.0
#: Longer than a lease and a session.
FROZEN_S = 9.0


class World:
    def __init__(self, stream: Stream, mirror: Mirror, url: str) -> None:
        self.stream, self.mirror, self.url = stream, mirror, url

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        asked = f"/{ALIAS}/eu/connectors/{NAME}{path}"
        return await asyncio.to_thread(RestClient(self.url).ask, method, asked, body)

    async def assigned(self) -> set[str]:
        found = await self.ask("GET", "/tasks")
        return {one for task in found for one in task["config"]["task.assigned.partitions"].split(",")}

    async def until(self, holds: Callable[[set[str]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds(await self.assigned()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)


@pytest.fixture
def own_us() -> Iterator[KafkaCluster]:
    """It is frozen here."""
    with KafkaCluster.start("live-us") as cluster:
        yield cluster


@pytest.fixture
async def world(own_us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> AsyncIterator[World]:
    rest = with_rest()
    properties = {
        **one_flow(own_us.bootstrap, eu.bootstrap, "a, b", ALIAS),
        **rest,
        "refresh.look.interval.ms": "1000",
        "copy.epoch.ms": "600000",
    }
    await make_topics(own_us.bootstrap, {"a": 3, "b": 2, "c": 1})
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        yield World(Stream(own_us, eu, ALIAS), mirror, f"{rest['listeners']}/")
        assert await asyncio.to_thread(mirror.stop) == 0
        mirror.assert_gone()


async def test_what_stays_is_copied_on_whatever_changes_beside_it(world: World) -> None:
    stream = world.stream
    staying = stream.begin("a", 3)
    others = stream.begin("b", 2)
    writing = asyncio.create_task(stream.write())
    reading = [asyncio.create_task(stream.read([*staying, *others]))]
    await stream.until_copied([*staying, *others])
    producers, began_s = await producers_of(stream, staying), time.monotonic()

    # Partitions are added, and one topic takes another's place.
    async with cluster_and_admin(stream.us.bootstrap) as (_, admin):
        await admin.create_partitions({"a": 5})
    await world.until(lambda assigned: {"a-3", "a-4"} <= assigned)
    grown = [Partition("a", 3), Partition("a", 4)]
    stream.written.update(dict.fromkeys(grown, 0))
    reading.append(asyncio.create_task(stream.read(grown)))
    await stream.until_copied(grown)

    config = await world.ask("GET", "/config")
    await stream.end("b")
    await world.ask("PUT", "/config", {**config, "topics": "a, c"})
    await world.until(lambda assigned: "c-0" in assigned and not {"b-0", "b-1"} & assigned)
    (new,) = stream.begin("c", 1)
    reading.append(asyncio.create_task(stream.read([new])))
    await stream.until_copied([new])
    gaps = {one: longest_gap_s(stream.seen_s[one], began_s) for one in staying}
    assert await producers_of(stream, staying) == producers, "under the same epochs"
    assert max(gaps.values()) < GAP_S + stream.longest_pause_s, gaps

    # A connector that is restarted while its source does not answer takes nothing away from its tasks.
    before = await world.assigned()
    stream.us.freeze(0)
    try:
        await world.ask("POST", "/restart?includeTasks=false")
        end_s = time.monotonic() + SLOW_S
        while time.monotonic() < end_s:
            assert await world.assigned() == before
            await asyncio.sleep(0.5)
    finally:
        stream.us.thaw(0)
    copied = len(stream.copied[new])
    await stream.until_copied([new], copied + 50)
    assert await producers_of(stream, staying) == producers

    # The worker is frozen past its lease and its session, and its slices are not.
    os.kill(world.mirror.pid, signal.SIGSTOP)
    await asyncio.sleep(FROZEN_S)
    os.kill(world.mirror.pid, signal.SIGCONT)
    copied = len(stream.copied[staying[0]])
    await stream.until_copied(staying[:1], copied + 50)

    stream.stop()
    await writing
    for one in [*staying, *grown]:
        await stream.until_copied([one], stream.written[one])
        assert stream.copied[one] == list(range(stream.written[one])), one
    # A worker that leads a group anew puts the file's config again, as Java's does: the filter is as it was.
    for one in [*others, new]:
        assert stream.copied[one] == list(range(len(stream.copied[one]))), one
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
