"""A checkpoint of an offset that its group has lost is known to be stale, whatever crashes in between (D2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from connect.core.errors import RetriableError, UnreadableRecord
from connect.kafka.log.producer import OutRecord, PlainWriter
from connectors.checkpoint import group_checkpoints
from connectors.checkpoint.group_checkpoints import LIVE_OFFSETS, Live, LiveOffsets
from connectors.failover.group_offsets import why_not_live
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import KeyKind, decode_kind
from connectors.formats.types import TopicPartition

OLD, NEW = UUID(int=1), UUID(int=2)
ORDERS, MAIL = TopicPartition("us.orders", 0), TopicPartition("us.mail", 3)
BILLING = Checkpoint("billing", "us.orders", 0, 1000, 1000, "")


@pytest.mark.parametrize(
    ("live", "now", "words"),
    [
        (None, NEW, ""),  # an earlier version has written the checkpoint
        ({ORDERS: OLD}, OLD, ""),
        ({ORDERS: None}, NEW, ""),
        ({ORDERS: OLD}, None, ""),
        ({}, OLD, "had no offset there, because"),
        ({MAIL: OLD}, OLD, "had no offset there, because"),
        ({ORDERS: OLD}, NEW, "the topic has been recreated since"),
    ],
)
def test_a_checkpoint_of_what_the_group_lost_is_stale(live: Live | None, now: UUID | None, words: str) -> None:
    why = why_not_live(BILLING, live, now)
    assert words in why and bool(why) == bool(words)


def test_records_are_read_as_they_were_written() -> None:
    live = {ORDERS: OLD, TopicPartition("us.orders", 7): OLD, MAIL: None}
    assert LIVE_OFFSETS.decode_value(LIVE_OFFSETS.encode_value(live)) == live
    assert LIVE_OFFSETS.decode_value(LIVE_OFFSETS.encode_value({})) == {}
    key = LIVE_OFFSETS.encode_key("us->eu", "billing")
    assert (decode_kind(key), LIVE_OFFSETS.decode_key(key)) == (KeyKind.LIVE_OFFSETS, ("us->eu", "billing"))
    with pytest.raises(UnreadableRecord):
        LIVE_OFFSETS.decode_value(LIVE_OFFSETS.encode_value({})[:1] + b"[1]")


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is stored by group; under "error" what a write raises."""
    stored: dict[str, Any] = {}

    async def known(*_: Any) -> object:
        return object()

    async def read(*_: Any) -> dict[str, Live]:
        return {}

    async def write(_: Any, records: Iterable[OutRecord]) -> None:
        if "error" in stored:
            raise stored["error"]
        for one in records:
            assert one.value is not None
            stored[LIVE_OFFSETS.decode_key(one.key)[1]] = LIVE_OFFSETS.decode_value(one.value)

    monkeypatch.setattr(group_checkpoints, "known_topic", known)
    monkeypatch.setattr(group_checkpoints, "read_live", read)
    monkeypatch.setattr(PlainWriter, "write", write)
    return stored


async def test_what_is_new_waits_for_its_checkpoint_and_what_is_gone_does_not(topic: dict[str, Any]) -> None:
    target: Any = None
    live = LiveOffsets(target, "map", "us->eu")
    live.look("billing", {ORDERS: OLD, MAIL: OLD}, 2)
    await live.store()
    assert not live.written("billing")
    await live.store()
    assert topic == {}, "of a group of which nothing is stored nothing counts as stale"
    assert live.written("billing")
    await live.store()
    assert topic["billing"] == {ORDERS: OLD, MAIL: OLD}
    live.look("billing", {ORDERS: NEW}, 1)
    await live.store()
    assert topic["billing"] == {ORDERS: OLD}, "that of the recreated topic is not written yet"
    live.written("billing")
    await live.store()
    assert topic["billing"] == {ORDERS: NEW}


async def test_what_cannot_be_stored_comes_again(topic: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    target: Any = None
    live = LiveOffsets(target, "map", "us->eu")
    topic["error"] = RetriableError("no leader")
    live.look("billing", {ORDERS: OLD}, 0)
    for _ in range(3):
        await live.store()
    assert [record.getMessage() for record in caplog.records] == [
        "us->eu: which checkpoints are stale cannot be stored: no leader"
    ]
    del topic["error"]
    await live.store()
    assert topic["billing"] == {ORDERS: OLD}
