"""What marks beside the lease say was appended, and what they leave open."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.kafka.producer import OutRecord, partition_of
from connectors.dataplane.plan import TopicPartition
from connectors.failover import appender, lease
from connectors.failover.appender import Mark, Marks, encode_mark

ORDERS, MAIL = TopicPartition("orders", 0), TopicPartition("mail", 3)
NOW, OLD, THERE = (UUID(int=at) for at in (1, 2, 3))
FRESH = Mark(ORDERS, NOW, ORDERS, THERE, 20)
MARK = replace(FRESH, appended=29)


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        (MARK, MARK),
        (replace(MARK, source_id=None), replace(MARK, source_id=None)),
        (replace(MARK, source_id=OLD), FRESH),
        (replace(MARK, target_id=OLD), FRESH),
        (replace(MARK, target=MAIL), FRESH),
        # The flow copied on since, and may have stopped among these records; or an earlier version wrote the mark.
        (replace(MARK, copied=25), replace(FRESH, unknown_to=29)),
        (replace(MARK, copied=None, target_id=None), replace(FRESH, unknown_to=29)),
        (None, FRESH),
    ],
)
def test_a_mark_counts_for_the_topics_and_the_failover_that_it_was_made_in(mark: Mark | None, found: Mark) -> None:
    assert Marks(True, {} if mark is None else {ORDERS: mark}).of(FRESH) == found


def test_a_version_that_left_no_marks_may_have_appended_anything() -> None:
    assert Marks(False, {}).of(FRESH).unknown_to > 2**62
    assert Marks(False, {ORDERS: MARK}).of(FRESH) == MARK


class Topic:
    """One partition, of which the last record by key counts."""

    def __init__(self) -> None:
        self.log: dict[bytes, bytes | None] = {}

    def writer(self, *_: Any, **__: Any) -> Any:
        async def opened() -> None: ...

        async def write(records: list[OutRecord]) -> None:
            assert {(one.topic, one.partition_key) for one in records} == {("map", b"failover")}
            self.log |= {one.key: one.value for one in records}

        return SimpleNamespace(open=opened, write=write)

    async def read_to_end(self, _: Any, topic: str, take: Any, **how: Any) -> None:
        assert (topic, how) == (
            "map",
            {"partitions": {partition_of(b"failover", 8)}, "read_committed": True, "only_last": True},
        )
        for key, value in self.log.items():
            take(SimpleNamespace(key=key, value=value))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    found = Topic()

    async def partition_count(*_: Any) -> int:
        return 8

    monkeypatch.setattr(lease, "TransactionalWriter", found.writer)
    monkeypatch.setattr(lease, "read_to_end", found.read_to_end)
    monkeypatch.setattr(lease, "partition_count", partition_count)
    return found


class Cluster:
    def __init__(self, **ids: UUID) -> None:
        self.ids = {"map": OLD, **ids}

    async def metadata(self, names: set[str]) -> Any:
        known = {name: SimpleNamespace(topic_id=self.ids[name], partitions=[0]) for name in names if name in self.ids}
        return SimpleNamespace(topics=known)


def site(flow: str = "us->eu", source_id: UUID = NOW) -> Any:
    settings = SimpleNamespace(map_topic="map", flow=flow, name="m")
    return SimpleNamespace(flow=settings, source=Cluster(orders=source_id), target=Cluster(orders=THERE))


async def test_marks_lie_beside_the_lease_each_by_itself(topic: Topic) -> None:
    """Of ten thousand partitions none makes the record too large that is written every few seconds."""
    assert await appender.read_marks(site()) == Marks(True, {})
    mine = lease.Record("ann@here", "here", 2**22, "append", 1, 0, marks=True)
    held = lease.Lease(site().target, "map", "us->eu", mine)
    await held.claim()
    other = Mark(MAIL, None, TopicPartition("us.mail", 3), None, -1, 7)
    topic.log |= [encode_mark("us->eu", one) for one in (FRESH, other, MARK)]
    await lease.Lease(site().target, "map", "us->eu2", mine).store()
    assert len(topic.log) == 4
    assert await appender.read_marks(site()) == Marks(True, {ORDERS: MARK, MAIL: other})
    assert await appender.read_marks(site("eu->us")) == Marks(True, {})
    held.record = replace(held.record, marks=False)
    await held.release(is_finished=True)
    assert await appender.read_marks(site()) == Marks(False, {ORDERS: MARK, MAIL: other})


async def test_marks_of_the_previous_version_are_read_and_it_reads_ours(topic: Topic) -> None:
    """It looks for headers from ``begin`` on, and doubts all up to ``last`` if the target has deleted some."""
    key, value = encode_mark("us->eu", MARK)
    ours = json.loads(value)
    assert (ours["format"], ours["begin"], ours["last"]) == (1, 0, 29)
    theirs = {name: ours[name] for name in ("format", "source", "topic_id", "target", "last")}
    topic.log[key] = json.dumps({**theirs, "begin": 40}).encode()
    assert (await appender.read_marks(site())).by_source == {ORDERS: Mark(ORDERS, NOW, ORDERS, None, None, 29)}


@pytest.mark.parametrize(
    ("copied", "source_id", "found"), [(20, NOW, {ORDERS: 29}), (25, NOW, {}), (20, OLD, {}), (None, NOW, {})]
)
async def test_a_failback_passes_over_what_was_appended_and_no_more(
    monkeypatch: pytest.MonkeyPatch, topic: Topic, copied: int | None, source_id: UUID, found: dict[TopicPartition, int]
) -> None:
    async def positions(*_: Any) -> Any:
        return {} if copied is None else {ORDERS: SimpleNamespace(next_source_offset=copied)}

    monkeypatch.setattr(appender, "read_positions", positions)
    topic.log |= [encode_mark("us->eu", MARK)]
    assert await appender.appended_up_to(site(source_id=source_id)) == found
