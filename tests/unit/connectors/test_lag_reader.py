"""How far a flow is copied as its stored positions tell, and whether its clusters answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core import status_and_offset_topics
from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.error_causes import Causes
from connectors import internal_topics
from connectors.failover import reverse_flow
from connectors.failover.journal import StartBefore
from connectors.flow_progress import NOTHING_KNOWN, UNKNOWN, ClusterContact, Contact, FlowLag, lag_of
from connectors.formats.position import Position, StoredPosition
from connectors.formats.types import FlowName, TopicPartition
from connectors.lag_reader import ContactWatch, LagReader, SharedLag
from tests.kit.answers import put
from tests.kit.turns import turns_during
from tests.kit.virtual_time import run

ORDERS = TopicPartition("orders", 0)
FULL = Position("orders", 0, None, 10, 1, "us.orders", 0, None, 10, "txn", 7, 0, 10)
NEWEST = replace(FULL, next_source_offset=90, target_end=90, next_sequence=90)


def _java(offset: int | None) -> status_and_offset_topics.SourceOffsets:
    state = status_and_offset_topics.SourceOffsets()
    if offset is not None:
        key = status_and_offset_topics.mirror_key("mirror", "us", *ORDERS)
        status_and_offset_topics.apply(state, key, status_and_offset_topics.mirror_value(offset))
    return state


FLOW: Any = SimpleNamespace(name="mirror", source_alias="us", offsets_topics=("offsets",), map_topic="map")


def stored(patch: pytest.MonkeyPatch, java: list[int | None], positions: Mapping[TopicPartition, int]) -> LagReader:
    """A reader of these: Java's offsets in turn, the last one again, and positions by the offset of the full record."""

    async def offsets(*_: object) -> status_and_offset_topics.SourceOffsets:
        return _java(java.pop(0) if len(java) > 1 else java[0])

    full = {one: StoredPosition(NEWEST, replace(FULL, next_source_offset=at)) for one, at in positions.items()}
    patch.setattr(internal_topics, "read_stored_offsets", offsets)
    put(patch, internal_topics, read_stored_positions=full)
    target = cast(Cluster, None)
    return LagReader(FLOW, target, target)


@pytest.mark.parametrize(
    ("full", "java", "found"), [(10, 9, {ORDERS: 90}), (10, 49, {ORDERS: 50}), (10, None, {}), (0, None, {ORDERS: 90})]
)
async def test_positions_are_newer_than_javas_offsets(
    monkeypatch: pytest.MonkeyPatch, full: int, java: int | None, found: dict[TopicPartition, int]
) -> None:
    assert await stored(monkeypatch, [java], {ORDERS: full}).stored([ORDERS]) == found


async def test_what_is_stored_between_the_two_readings_is_not_taken_for_an_altered_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The record before the one with the position, then that one.
    assert await stored(monkeypatch, [9, 49], {ORDERS: 50}).stored([ORDERS]) == {ORDERS: 90}


async def test_others_have_their_turn_while_thousands_of_positions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [TopicPartition("orders", index) for index in range(3000)]
    reader = stored(monkeypatch, [9], dict.fromkeys(partitions, FULL.next_source_offset))
    turns, found = await turns_during(reader.stored(partitions))
    # Of all others Java's offset is gone: an operator has reset it.
    assert found == {ORDERS: 90}
    assert turns >= 2 * len(partitions)


async def test_a_flow_back_that_has_copied_since_is_not_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed before it stored a source offset again."""
    wrote: dict[tuple[str, int], int | None] = {}

    async def store(_: object, starts: Mapping[tuple[str, int], int | None]) -> None:
        wrote.update(starts)

    stored(monkeypatch, [9], {ORDERS: FULL.next_source_offset})
    monkeypatch.setattr(reverse_flow, "_store", store)
    start, sides = StartBefore(*ORDERS, before=4, after=9), cast(Any, SimpleNamespace(source=None, back=FLOW))
    assert (await reverse_flow.undo_starts(sides, [start]), wrote) == ([start], {})


async def test_all_who_ask_hear_at_once_that_the_source_turns_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(_: LagReader, last: FlowLag) -> FlowLag:
        if not last.partitions:
            return FlowLag((lag_of("orders", 0, "us.orders", 60, 0, 90, 900),), known_ms=4_000)
        await asyncio.Event().wait()
        raise AssertionError("a source that is silent answers nothing")

    monkeypatch.setattr(LagReader, "look", look)
    monkeypatch.setattr("connectors.lag_reader._FRESH_S", -1.0)
    watch = SimpleNamespace(source_is_silent=asyncio.Event(), contact=NOTHING_KNOWN)
    shared, settings, cluster = SharedLag(), cast(Any, SimpleNamespace(flow="us->eu")), cast(Cluster, None)

    async def read() -> FlowLag:
        return await shared.read(settings, cluster, cluster, cast(Any, watch))

    assert (await read()).to_json(1)["records"] == 30
    asking = [asyncio.ensure_future(read()) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(one.done() for one in asking)
    watch.contact = Contact(ClusterContact(answers=False, answered_ms=5_000, reason="no answer within 5 s"))
    watch.source_is_silent.set()
    for lag in await asyncio.wait_for(asyncio.gather(*asking), 60):
        shown = lag.to_json(1)
        told = shown["records"], shown["unknown_since_ms"], shown["unknown"]
        assert told == (-1, 5_000, {"us->eu": "no answer within 5 s"})


class FakeCluster:
    """Answers, hangs or refuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses = frozenset({name.partition("(")[2].rstrip(")")})
        self.hangs = False
        self.error: Exception | None = None

    async def metadata(self, topics: tuple[str, ...]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def test_a_cluster_that_stands_still_is_known_within_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        source, target = FakeCluster("us (a:1)"), FakeCluster("eu (b:1)")
        watch = ContactWatch(FlowName("us", "eu"), cast(Any, source), cast(Any, target), Causes(clock))

        def seen() -> Contact:
            return watch.contact

        assert (seen().source.answers, seen().source.answered_ms) == (None, UNKNOWN)
        await asyncio.sleep(3)
        first = seen()
        assert first.knows_lag and first.source.answers and first.target.answers
        source.hangs = True
        await asyncio.sleep(10)
        assert not seen().knows_lag
        assert seen().source.answered_ms == first.source.answered_ms > 0
        assert seen().target.answers
        await asyncio.sleep(110)
        source.hangs = False
        target.error = RetriableError("connection refused")
        await asyncio.sleep(10)
        assert seen().knows_lag and seen().source.answers
        assert (seen().target.answers, seen().target.reason) == (False, "connection refused")
        await watch.stop()

    with caplog.at_level(logging.INFO, "connectors.lag_reader"):
        run(main())
    of_source = [line for line in caplog.messages if "source cluster us (a:1)" in line]
    assert len(of_source) == 3, "one a minute of two, and the end"
    assert all("us->eu: source cluster us (a:1) does not answer since 2" in line for line in of_source[:2])
    assert "so its lag is unknown: no answer within 5 s" in of_source[0]
    answering = [record.levelname for record in caplog.records if record.getMessage() == of_source[2]]
    assert answering == ["INFO"]
    assert of_source[2] == "us->eu: source cluster us (a:1) answers again"
    (of_target,) = (line for line in caplog.messages if "target cluster" in line)
    assert "lag" not in of_target and of_target.endswith(": connection refused")


def test_flows_that_share_a_cluster_say_once_that_it_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        causes = Causes(asyncio.get_running_loop().time)
        us, eu = FakeCluster("us (a:1)"), FakeCluster("eu (b:1)")
        us.hangs = True
        pairs = {FlowName("us", "eu"): (us, eu), FlowName("eu", "us"): (eu, us)}
        watches = [ContactWatch(flow, cast(Any, one), cast(Any, other), causes) for flow, (one, other) in pairs.items()]
        await asyncio.sleep(50)
        assert [watch.contact.silent for watch in watches] == [(True, False), (False, True)]
        for watch in watches:
            await watch.stop()

    with caplog.at_level(logging.WARNING, "connectors.lag_reader"):
        run(main())
    assert len(caplog.messages) == 1
