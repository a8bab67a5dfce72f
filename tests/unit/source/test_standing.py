"""Does a stored position still speak of the logs that are there?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.dataplane import lost
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.source import standing
from connectors.source.brokers import OF_SOURCE, OF_TARGET, BrokersTooOld, refuse_old_brokers
from connectors.source.ledger import Entry, Pair
from connectors.source.standing import refuse_topic, refuse_truncated, refuse_truncated_targets
from connectors.source.store import Start
from tests.kit import virtual_time

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
IDS = {"source": UUID(int=1), "target": UUID(int=2)}
POSITION = Position(*SOURCE, IDS["source"], 100, 3, *TARGET, IDS["target"], 50, "mm2-0", 5, 1, 8)


def entry() -> Entry:
    return Entry(Pair(SOURCE, IDS["source"], TARGET, IDS["target"]))


def topic(side: str, number: int | None = None) -> TopicMetadata:
    name = SOURCE.topic if side == "source" else TARGET.topic
    return TopicMetadata(name, IDS[side] if number is None else UUID(int=number), 0, {})


@pytest.mark.parametrize("side", ["source", "target"])
class TestTopics:
    def reason(self, side: str, there: TopicMetadata | None, *, moved: bool = False, **changes: Any) -> str:
        asked = entry()
        refuse_topic(side, asked, Start(replace(POSITION, **changes), 99, moved), there)
        return asked.reason

    def test_the_same_topic_goes_on(self, side: str) -> None:
        assert self.reason(side, topic(side)) == ""

    def test_another_one_under_the_name_stops(self, side: str) -> None:
        name = topic(side).name
        expected = f"{side} topic {name} was deleted and made anew (topic id {UUID(int=9)}, was {IDS[side]}); "
        assert self.reason(side, topic(side, 9)).startswith(expected)

    def test_one_that_is_gone_stops(self, side: str) -> None:
        said = f"{side} topic {topic(side).name} does not exist any more; orders-0 was copied up to source offset 99"
        assert self.reason(side, None) == said

    def test_an_altered_offset_lets_another_one_go_on(self, side: str) -> None:
        assert self.reason(side, topic(side, 9), moved=True) == ""

    def test_brokers_without_ids_cannot_tell(self, side: str) -> None:
        assert self.reason(side, TopicMetadata(topic(side).name, None, 0, {})) == ""


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
    with pytest.raises(
        BrokersTooOld, match=r"cluster us: .* older than Apache Kafka 2\.7 \(offer Fetch up to version 11\)"
    ):
        refuse_old_brokers("us", {1: (0, 11)}, OF_SOURCE)
    with pytest.raises(PermanentError, match=r"cluster eu: .* 2\.8 \(do not offer DescribeProducers\).*2\.8 or later$"):
        refuse_old_brokers("eu", {1: (0, 12)}, OF_TARGET)


@pytest.mark.parametrize(("ends", "is_stopped"), [([49, 49, 50], False), ([49] * 9, True)])
def test_a_lower_end_counts_once_it_stays(monkeypatch: pytest.MonkeyPatch, ends: list[int], is_stopped: bool) -> None:
    """A leader that was replaced while it was frozen shows less than was acknowledged, until it learns of it."""

    async def list_offsets(*_: object) -> dict[TopicPartition, int]:
        return {TARGET: ends.pop(0)}

    monkeypatch.setattr(standing, "list_offsets", list_offsets)
    monkeypatch.setattr(lost, "GONE_AFTER_S", 4 * standing.ASK_AGAIN_S)
    asked = entry()
    starts = {SOURCE: Start(POSITION, 99, False)}
    virtual_time.run(refuse_truncated_targets(cast(Cluster, None), [asked], starts))
    assert asked.is_stopped is is_stopped
