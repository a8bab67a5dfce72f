"""Does a stored position still speak of the logs that are there?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.dataplane import fetch_api, log_divergence
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.connector import OF_SOURCE, OF_TARGET, BrokersTooOld, refuse_old_brokers
from connectors.source.positions import position_checks
from connectors.source.positions.partition_pairs import Entry, PartitionPair
from connectors.source.positions.position_checks import refuse_topic, refuse_truncated, refuse_truncated_targets
from connectors.source.positions.stored_positions import Start
from tests.kit import virtual_time
from tests.kit.logs import control_batch, source_batch

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
IDS = {"source": UUID(int=1), "target": UUID(int=2)}
POSITION = Position(*SOURCE, IDS["source"], 100, 3, *TARGET, IDS["target"], 50, "mm2-0", 5, 1, 8)


def entry() -> Entry:
    return Entry(PartitionPair(SOURCE, IDS["source"], TARGET, IDS["target"]))


def topic(side: str, number: int | None = None) -> TopicMetadata:
    name = SOURCE.topic if side == "source" else TARGET.topic
    return TopicMetadata(name, IDS[side] if number is None else UUID(int=number), 0, {})


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_a_topic_is_now(side: str) -> None:
    name = topic(side).name
    recreated = f"{side} topic {name} was recreated (topic id {UUID(int=9)}, previously {IDS[side]}); "
    gone = f"{side} topic {name} does not exist any more; orders-0 was copied up to source offset 99"
    for there, moved, said in (
        (topic(side), False, ""),
        (topic(side, 9), False, recreated),
        (None, False, gone),
        (topic(side, 9), True, ""),  # an altered offset lets another one go on
        (TopicMetadata(name, None, 0, {}), False, ""),  # brokers without ids cannot tell
    ):
        asked = entry()
        refuse_topic(side, asked, Start(POSITION, 99, moved), there)
        assert asked.reason.startswith(said) if said == recreated else asked.reason == said


def test_a_position_under_another_name_says_nothing_of_this_target() -> None:
    asked = entry()
    refuse_topic("target", asked, Start(replace(POSITION, target_topic="us_orders"), 99, False), topic("target", 9))
    assert not asked.is_stopped


@pytest.mark.parametrize(("end", "said"), [(50, ""), (70, ""), (49, "ends at 49 now (its end is lower)")])
def test_a_target_that_has_less_than_it_acknowledged_stops(end: int, said: str) -> None:
    asked = entry()
    refuse_truncated(asked, POSITION, end)
    assert asked.is_stopped == bool(said)
    assert said in asked.reason
    if said:
        assert asked.reason.startswith("target us.orders-0 was truncated: it had acknowledged offsets up to 49, and ")
        assert "before source offset 100 are missing there" in asked.reason


def test_brokers_that_cannot_do_what_is_needed_are_refused_in_one_line() -> None:
    offered = {1: (0, 12), 61: (0, 0)}
    refuse_old_brokers("us", offered, OF_SOURCE)
    refuse_old_brokers("eu", offered, OF_TARGET)
    too_old = r"cluster us: .* older than Apache Kafka 2\.7 \(offer Fetch up to version 11\)"
    with pytest.raises(BrokersTooOld, match=too_old):
        refuse_old_brokers("us", {1: (0, 11)}, OF_SOURCE)
    with pytest.raises(PermanentError, match=r"cluster eu: .* 2\.8 \(do not offer DescribeProducers\).*2\.8 or later$"):
        refuse_old_brokers("eu", {1: (0, 12)}, OF_TARGET)


@pytest.mark.parametrize(("ends", "is_stopped"), [([49, 49, 50], False), ([49] * 9, True)])
def test_a_lower_end_counts_once_it_stays(monkeypatch: pytest.MonkeyPatch, ends: list[int], is_stopped: bool) -> None:
    """A leader that was replaced while it was frozen shows less than was acknowledged, until it learns of it."""

    async def list_offsets(*_: object) -> dict[TopicPartition, int]:
        return {TARGET: ends.pop(0)}

    monkeypatch.setattr(position_checks, "list_offsets", list_offsets)
    monkeypatch.setattr(log_divergence, "DELETED_AFTER_S", 4 * position_checks.ASK_AGAIN_S)
    asked = entry()
    starts = {SOURCE: Start(POSITION, 99, False)}
    virtual_time.run(refuse_truncated_targets(cast(Cluster, None), [asked], starts))
    assert asked.is_stopped is is_stopped


HANDED_OVER = replace(POSITION, is_handed_over=True, is_last_ours=True)
OURS, OTHERS = source_batch([48, 49], producer=(5, 1, 6)), source_batch([48, 49], producer=(9, 0, 0))
MARKER = control_batch(49, 5, commit=False, epoch=3)
BEHIND = source_batch([50], producer=(9, 0, 0))


@pytest.mark.parametrize(
    ("position", "found", "is_stopped"),
    [
        (HANDED_OVER, OURS, False),
        (HANDED_OVER, OTHERS, True),
        (HANDED_OVER, MARKER, True),
        (HANDED_OVER, source_batch([48, 49], producer=(5, 1, 5)), True),
        (HANDED_OVER, BEHIND, False),  # the record was compacted away
        (HANDED_OVER, b"", False),
        (HANDED_OVER, 1, False),  # retention took it
        (HANDED_OVER, 29, False),  # without the right to read
        (replace(HANDED_OVER, is_last_ours=False), OTHERS, False),
        (replace(HANDED_OVER, next_sequence=0), OTHERS, False),
        (replace(HANDED_OVER, is_atomic=True), MARKER, False),
        (replace(HANDED_OVER, is_handed_over=False), OTHERS, False),  # it is read once its writer is fenced
    ],
)
async def test_a_target_that_was_cut_and_has_grown_again_is_told_by_its_last_record(
    monkeypatch: pytest.MonkeyPatch, position: Position, found: bytes | int, is_stopped: bool
) -> None:
    brokers(monkeypatch, found)
    asked = entry()
    await refuse_truncated_targets(cast(Cluster, OneBroker()), [asked], {SOURCE: Start(position, 99, False)})
    assert asked.is_stopped is is_stopped
    if is_stopped:
        assert asked.reason.startswith("target us.orders-0 was truncated: it had acknowledged offsets up to 49, and ")
        assert "was written to again since, up to offset 59 (the record before" in asked.reason


@pytest.mark.parametrize(("found", "shown"), [(6, 60), (b"", 49)])
async def test_a_leader_behind_is_asked_again(monkeypatch: pytest.MonkeyPatch, found: bytes | int, shown: int) -> None:
    fetches = brokers(monkeypatch, found, shown)
    places = [(TopicPartition("orders", index), TopicPartition("us.orders", index)) for index in range(100)]
    entries = [Entry(PartitionPair(one, IDS["source"], other, IDS["target"])) for one, other in places]
    position = [replace(HANDED_OVER, source_partition=index, target_partition=index) for index in range(100)]
    starts = {one: Start(position[one.partition], 99, False) for one, _ in places}
    with pytest.raises(RetriableError):
        await refuse_truncated_targets(cast(Cluster, OneBroker()), entries, starts)
    assert len(fetches) <= 64, "the others are not asked any more"


class OneBroker:
    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(leader=lambda *_: 1, leader_epoch=lambda *_: 7)

    async def connection(self, *_: object) -> None: ...


def brokers(monkeypatch: pytest.MonkeyPatch, found: bytes | int, shown: int = 60) -> list[int]:
    """Answer each fetch with this batch, or this error."""
    fetches: list[int] = []

    async def list_offsets(_: object, partitions: list[TopicPartition], *__: object) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 60)

    async def fetch_one(_: object, __: object, index: int, asked: object, ___: object) -> SimpleNamespace:
        assert asked == (49, 7, -1)
        fetches.append(index)
        await asyncio.sleep(0)
        error, batch = (found, b"") if isinstance(found, int) else (0, found)
        return SimpleNamespace(error_code=error, high_watermark=shown, records=memoryview(bytearray(batch)))

    monkeypatch.setattr(position_checks, "list_offsets", list_offsets)
    monkeypatch.setattr(fetch_api, "fetch_one", fetch_one)
    return fetches


def test_a_target_that_nothing_was_copied_to_is_waited_for() -> None:
    asked = entry()
    refuse_topic("target", asked, Start(replace(POSITION, target_topic="us_orders"), 99, False), None)
    assert not asked.is_stopped


class _Shows:
    """A cluster whose brokers show these topics."""

    def __init__(self, *topics: TopicMetadata) -> None:
        self._topics = {one.name: one for one in topics}

    async def metadata(self, _: object) -> Any:
        return SimpleNamespace(topics=self._topics)


def _judged(asked: Entry, source: Any, target: Any) -> None:
    starts = {SOURCE: Start(POSITION, 99, False)}
    virtual_time.run(position_checks.refuse_deleted_topics(source, target, [asked], starts))


def test_a_deleted_target_is_named_although_the_source_was_recreated() -> None:
    asked = entry()
    _judged(asked, _Shows(topic("source", 9)), _Shows())
    assert asked.reason.startswith("target topic us.orders does not exist any more")


def test_a_broker_that_still_shows_a_recreated_topics_predecessor_is_asked_again() -> None:
    asked = entry()
    verdict = log_divergence.recreated_topic("target", TARGET.topic, UUID(int=9), IDS["target"], SOURCE, 100, 120)
    asked.stop(verdict.reason, gap=verdict.gap)
    asked.resume_past_gap(has_drained=True)
    asked.pair = replace(asked.pair, target_topic_id=UUID(int=9))
    with pytest.raises(RetriableError, match=r"a broker has not yet learned that topic us\.orders was recreated"):
        _judged(asked, _Shows(topic("source")), _Shows(topic("target")))
    assert asked.pair.target_topic_id == UUID(int=9)
