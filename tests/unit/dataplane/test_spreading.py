"""Sharing out records, with a target in memory: what has no place is named, and asked for no more often than is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from connect.api.message_handler import MessageHandler, MirroredRecord
from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connectors.dataplane import codes, spreading
from connectors.dataplane.plan import (
    QUARANTINED,
    PartitionPlan,
    ProducerIdentity,
    SliceSettings,
    TopicPartition,
)
from connectors.dataplane.spread import SpreadCopier, SpreadPart
from connectors.dataplane.spreading import Spreading
from tests.kit.logs import source_batch
from tests.kit.members import until

SOURCE = TopicPartition("orders", 0)
PLAN = PartitionPlan(SOURCE, None, SOURCE, None, 0, -1, 0, 0, pipelined=False, spreads=True)
WITHIN_S = 30.0


class Target:
    """Knows topics of two partitions, and answers others with a code."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.asked: list[str] = []

    async def metadata(self, names: set[str]) -> ClusterMetadata:
        (name,) = names
        self.asked.append(name)
        code = self.codes.get(name, 0)
        partitions = {} if code else {index: PartitionMetadata(1, 0, (1,), 0, (1,)) for index in range(2)}
        return ClusterMetadata(None, -1, {}, {name: TopicMetadata(name, None, code, partitions)})


class To:
    """Sends each record to these topics."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def handle(self, record: MirroredRecord) -> list[MirroredRecord]:
        return [record._replace(topic=topic, partition=0) for topic in self.topics]


class Scene:
    def __init__(self, handler: MessageHandler, *, skips: bool) -> None:
        self.target = Target()
        self.parts: list[SpreadPart] = []
        self.shared = asyncio.Event()
        settings = SliceSettings("a->b", 0, {}, {}, skip_refused=skips)
        self.spreading = Spreading(
            cast(Cluster, self.target), settings, handler, add=self.add, ready=lambda _: self.shared.set()
        )
        self.copier = SpreadCopier(
            PLAN, ProducerIdentity(7, 0), read_committed=False, skip_refused=skips, submit=self.spreading.submit
        )

    def add(self, parts: Sequence[SpreadPart]) -> None:
        self.parts += parts

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.spreading.run(), name="sharing out")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def share(self, *batches: bytes) -> None:
        self.shared.clear()
        self.copier.take(memoryview(bytearray(b"".join(batches))))
        async with asyncio.timeout(WITHIN_S):
            await self.shared.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends(_: Cluster, partitions: Sequence[TopicPartition], __: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    monkeypatch.setattr(spreading, "list_offsets", ends)
    monkeypatch.setattr(spreading, "_AGAIN_S", 0.01)
    monkeypatch.setattr(spreading, "_APPEAR_S", 0.05)


async def test_a_missing_topic_is_not_waited_for_with_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "_MISSED_S", WITHIN_S)
    scene = Scene(To("gone"), skips=True)
    scene.target.codes["gone"] = codes.UNKNOWN_TOPIC_OR_PARTITION
    async with scene.running():
        await scene.share(source_batch(range(10)))
        looks = len(scene.target.asked)
        await scene.share(source_batch(range(10, 20)))
    assert len(scene.target.asked) == looks
    progress = scene.copier.report()
    assert progress is not None
    assert (progress.next_source_offset, [tuple(skip) for skip in progress.skips]) == (
        20,
        [(0, 9, codes.NOT_TRANSFORMED), (10, 19, codes.NOT_TRANSFORMED)],
    )


async def test_a_right_that_is_missing_is_named_at_once() -> None:
    scene = Scene(To("secret"), skips=False)
    scene.target.codes["secret"] = codes.TOPIC_AUTHORIZATION_FAILED
    async with scene.running():
        await scene.share(source_batch(range(10)))
    assert scene.target.asked == ["secret"]
    assert scene.copier.state == QUARANTINED
    assert "the record at offset 0 cannot be sent" in scene.copier.stopped_reason
    assert "grant it" in scene.copier.stopped_reason


async def test_what_may_pass_is_waited_for() -> None:
    scene = Scene(To("young"), skips=False)
    scene.target.codes["young"] = 5  # LEADER_NOT_AVAILABLE
    async with scene.running():
        sharing = asyncio.create_task(scene.share(source_batch(range(10))), name="share")
        await until(lambda: len(scene.target.asked) > 20, "it is asked for again and again", WITHIN_S)
        assert not scene.copier.stopped
        del scene.target.codes["young"]
        await sharing
    assert [part.plan.target for part in scene.parts] == [("young", 0)]
    assert not scene.copier.stopped


async def test_of_a_record_that_goes_to_several_topics_none_is_sent_where_one_cannot_be() -> None:
    scene = Scene(To("there", "gone"), skips=True)
    scene.target.codes["gone"] = codes.UNKNOWN_TOPIC_OR_PARTITION
    async with scene.running():
        await scene.share(source_batch(range(3)))
    assert scene.parts == []
    progress = scene.copier.report()
    assert progress is not None and progress.next_source_offset == 3


async def test_what_is_forgotten_makes_room_as_well() -> None:
    """Nothing else tells who reads, which may wait for it."""
    scene = Scene(To("secret"), skips=False)
    scene.target.codes["secret"] = codes.TOPIC_AUTHORIZATION_FAILED
    scene.copier.take(memoryview(bytearray(source_batch(range(10)) + source_batch(range(10, 20)))))
    assert scene.copier.held_bytes
    async with scene.running():
        while scene.copier.held_bytes:
            async with asyncio.timeout(WITHIN_S):
                await scene.shared.wait()
            scene.shared.clear()
