"""What became of a log that refuses a position: found out, and said once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connect.wire import fetch_produce
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.dataplane import log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.send_queue import TargetTruncated
from connectors.dataplane.fetch_loop import FetchLoop
from connectors.dataplane.log_divergence import Verdict
from connectors.dataplane.produce_recovery import Recoveries
from connectors.dataplane.source_reader import SourceReader
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from tests.kit.answers import fails

OLD, NEW = UUID(int=1), UUID(int=9)
SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
PLAN = PartitionPlan(SOURCE, OLD, TARGET, OLD, 100, 3, 50, 8, pipelined=True)
SETTINGS = SliceSettings("us->eu", 0, {}, {})


class Source:
    """A cluster with one topic, or none, whose log holds ``start`` to ``end``."""

    def __init__(self, topic_id: UUID | None, start: int = 0, end: int = 0, appears_after: int | None = None) -> None:
        self.topic_id = topic_id
        self.offsets = {-2: start, -1: end}
        self._appears_after = appears_after
        self._asked = 0
        self.epoch = 3

    async def metadata(self, names: Collection[str]) -> ClusterMetadata:
        if self._asked == self._appears_after:
            self.topic_id = OLD
        self._asked += 1
        code = 0 if self.topic_id else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        partitions = {0: PartitionMetadata(1, self.epoch, (1,), 0)} if self.topic_id else {}
        topics = {name: TopicMetadata(name, self.topic_id, code, partitions) for name in names}
        return ClusterMetadata("c", 1, {}, topics)

    async def list_offset(self, _: object, __: object, which: int) -> int:
        return self.offsets[which]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_offset(cluster: Source, partition: object, which: int) -> int:
        return await cluster.list_offset(cluster, partition, which)

    monkeypatch.setattr(log_divergence, "list_offset", list_offset)
    monkeypatch.setattr(log_divergence, "DELETED_AFTER_S", 0.0)


def copier() -> PartitionCopier:
    return PartitionCopier(PLAN, ProducerIdAndEpoch(7, 0), read_committed=False)


@pytest.mark.parametrize(
    ("source", "diverging", "error", "said"),
    [
        (Source(NEW, 0, 500), None, "source-recreated", "source topic orders was recreated"),
        (Source(NEW, 0, 500), (0, 10), "source-recreated", "source topic orders was recreated"),
        (Source(OLD, 107, 500), None, "source-gap", "begins at offset 107 now, and offset 100 was to be copied next"),
        (Source(OLD, 0, 60), None, "source-truncated", "it ends at offset 60, but offsets up to 99 had been read"),
        (Source(OLD, 0, 500), (2, 60), "source-truncated", "leader epoch 2 ends at offset 60, but offsets up to 99"),
        (Source(OLD, 100, 100), None, "", ""),
    ],
)
async def test_why_a_source_stops(source: Source, diverging: tuple[int, int] | None, error: str, said: str) -> None:
    found = await log_divergence.explain_source(cast(Cluster, source), copier(), 3, diverging)
    assert (found or Verdict("", "")).error == error
    assert said in (found or Verdict("", "")).reason


@pytest.mark.parametrize(("epoch", "read"), [(3, 2), (2, 3)])
async def test_a_former_leader_proves_no_truncation(epoch: int, read: int) -> None:
    """A leader that was frozen lacks what its successor wrote, and says that the log differs from what was read."""
    source, machine = Source(OLD, 0, 60), copier()
    source.epoch, machine.last_fetched_epoch = epoch, read
    for diverging in ((2, 60), None):
        with pytest.raises(log_divergence.LeaderChanged, match="the leader of epoch 2 of source orders-0 was replaced"):
            await log_divergence.explain_source(cast(Cluster, source), machine, 2, diverging)


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        (Source(NEW), "target-recreated", "target topic us.orders was recreated"),
        (Source(OLD, 0, 20), "target-truncated", "acknowledged offsets up to 49, and ends at 20 now (it forgot)"),
        (Source(OLD, 0, 60), "target-truncated", "was written to again since, up to offset 59 (it forgot)"),
    ],
)
async def test_what_became_of_a_target(target: Source, error: str, said: str) -> None:
    found = await log_divergence.explain_target(cast(Cluster, target), copier(), TargetTruncated("it forgot"))
    assert found.error == error
    assert said in found.reason


async def test_a_topic_is_given_up_only_after_a_while() -> None:
    source = Source(None, appears_after=1)
    found = await log_divergence.known_topics(cast(Cluster, source), ["orders"], 60)
    assert found["orders"].topic_id == OLD
    assert await log_divergence.known_topics(cast(Cluster, Source(None)), ["orders"], 0) == {}


def refused(code: int) -> fetch_produce.FetchedPartition:
    return fetch_produce.FetchedPartition(b"t", 0, code, -1, -1, -1, (), -1, memoryview(b""), None, None)


async def test_an_offset_that_is_there_and_still_refused_stops_after_a_few_tries() -> None:
    """The log knows nothing of the epoch that was read before, and brokers tell no ids: it is another one."""
    failures: list[BaseException] = []
    cluster = cast(Cluster, Source(OLD, 0, 500))
    reader = SourceReader(cluster, SETTINGS, lambda _: None, failures.append)
    loop, machine = FetchLoop(reader, cluster, SETTINGS, 1), copier()
    for tries in range(3):
        assert not machine.stopped, tries
        loop.add(machine, 3)
        assert not loop._take(machine, refused(error_codes.OFFSET_OUT_OF_RANGE))
        await asyncio.gather(*reader._scope.tasks)
    assert machine.stopped_error == "source-truncated"
    assert "has no leader epoch 3" in machine.stopped_reason
    await reader.stop()
    assert failures == []


async def test_a_source_topic_that_stays_away_stops_its_partition() -> None:
    machine = copier()
    reader = SourceReader(cast(Cluster, Source(None)), SETTINGS, lambda _: None, lambda error: None)
    reader._unplaced = {machine}
    await reader._place()
    assert not machine.stopped, "a broker may not have heard of it yet"
    await reader._place()
    gone = "source topic orders does not exist any more; orders-0 was copied up to source offset 99"
    assert machine.stopped_reason == gone


async def test_a_partition_that_a_recovery_stops_leaves_its_room_to_the_others() -> None:
    one, room = copier(), asyncio.Event()
    faults: list[BaseException] = []
    place = fails(AssertionError("it is not to be written to"))
    recoveries = Recoveries(cast(Cluster, Source(NEW)), "us->eu", place=place, room=room.set, fail=faults.append)
    recoveries.begin(one)
    await asyncio.wait_for(room.wait(), 60)
    assert one.stopped
    assert one not in recoveries
    assert faults == []
