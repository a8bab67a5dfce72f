"""What stands still when a failover looks: partitions that are not copied, and flows that are stopped."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connectors.dataplane import codes
from connectors.dataplane.plan import TopicPartition
from connectors.failover import draining, standing_still
from connectors.partition_states import PartitionState
from connectors.positions import Position

ORDERS = TopicPartition("orders", 0)
POSITION = Position("orders", 0, None, 30, 4, "us.orders", 0, None, 37, "writer", 7, 0, 30)


def topic(name: str, *, error_code: int = 0) -> TopicMetadata:
    partitions = {} if error_code else {0: PartitionMetadata(1, 0, (1,), 0)}
    return TopicMetadata(name, None, error_code, partitions)


def site(**more: Any) -> Any:
    flow = SimpleNamespace(flow="us->eu", should_mirror=lambda name: name != "excluded")
    return SimpleNamespace(flow=flow, target=SimpleNamespace(name="eu"), **more)


# -- partitions ------------------------------------------------------------------------------------------------


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one topic that is there, of one that may not be seen, of one that is gone, and of one that is excluded."""
    names = ("orders", "secret", "deleted", "excluded")

    async def read_states(*_: Any) -> dict[TopicPartition, PartitionState]:
        found = {TopicPartition(name, 0): PartitionState("waiting", f"of {name}", "t", 0) for name in names}
        return {**found, TopicPartition("orders", 7): PartitionState("waiting", "of before it was made anew", "t", 0)}

    async def known_topics(_: Any, wanted: Any, for_s: float) -> dict[str, TopicMetadata]:
        assert set(wanted) == {"orders", "secret", "deleted"}
        return {"orders": topic("orders"), "secret": topic("secret", error_code=codes.TOPIC_AUTHORIZATION_FAILED)}

    monkeypatch.setattr(standing_still, "read_states", read_states)
    monkeypatch.setattr(standing_still, "record_settings", lambda _: None)
    monkeypatch.setattr(standing_still, "known_topics", known_topics)


@pytest.mark.usefixtures("noted")
async def test_a_topic_that_the_flow_has_no_more_is_not_in_the_way() -> None:
    source = cast(Any, object())
    assert await standing_still.not_copied(site(), source) == {
        "orders-0": "it is waiting: of orders",
        "secret-0": "it is waiting: of secret",
    }


@pytest.mark.usefixtures("noted")
async def test_a_source_that_is_gone_is_not_asked_and_what_was_not_copied_is_noted() -> None:
    stopped = await standing_still.not_copied(site(), None)
    assert list(stopped) == ["deleted-0", "orders-0", "orders-7", "secret-0"]
    notes = standing_still.as_notes({**stopped, **{f"t-{at}": "it is waiting" for at in range(9)}})
    assert notes[0] == "deleted-0 was not copied to its end: it is waiting: of deleted"
    assert (len(notes), notes[-1]) == (6, "nor were 8 more partitions")
    assert standing_still.as_notes({}) == []


async def test_nobody_is_shut_out_of_a_topic_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster would answer that it does not know it, which a fence takes for not yet."""
    fenced: list[Any] = []

    async def known_topics(_: Any, names: Any) -> dict[str, TopicMetadata]:
        assert names == {"us.orders", "us.deleted"}
        return {"us.orders": topic("us.orders")}

    async def fence(_: Any, name: str, partitions: Any) -> None:
        fenced.append((name, partitions))

    monkeypatch.setattr(draining, "known_topics", known_topics)
    monkeypatch.setattr(draining, "fence", fence)
    gone = replace(POSITION, target_topic="us.deleted", target_partition=1)
    alone = replace(gone, transactional_id="another")
    unclean = {TopicPartition("orders", at): one for at, one in enumerate((POSITION, gone, alone))}
    await draining._fence(site(), unclean, print)
    assert fenced == [("writer", [("us.orders", 0)])]
