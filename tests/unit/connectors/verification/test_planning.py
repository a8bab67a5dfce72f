"""What is expected at the target, and a log that is another one while it is read."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock
from uuid import UUID

import pytest

from connect.core.errors import PermanentError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.log.offsets import EARLIEST
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import ChunkPlace, ChunkRewritten
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, MapRun, OffsetLocation
from connectors.verification import planning
from connectors.verification.log_reader import LogReader
from connectors.verification.planning import (
    FlowClusters,
    PartitionScope,
    VerifyOptions,
    _expect_what_is_readable,
    _silent,
)
from connectors.verification.ranges import RangePlan
from connectors.verification.report import PartitionResult, RangeReason
from connectors.verification.state import Verified
from connectors.verification.task import VerificationTask
from tests.kit.answers import answers, put

ONE = TopicPartition("t", 0)


class Map:
    async def forward(self, _: object, upstream: int) -> MappedOffset:
        return MappedOffset(min(upstream, 100) + 7, OffsetLocation.INSIDE)

    async def reverse(self, _: object, downstream: int) -> MappedOffset:
        return MappedOffset(downstream - 7, OffsetLocation.INSIDE)


@pytest.mark.parametrize(
    ("pair", "high", "due"), [("pair", 107, 100), ("pair", 108, 93), (None, 107, 100), (None, 108, -1)]
)
async def test_copies_behind_an_open_transaction_are_not_expected(pair: str | None, high: int, due: int) -> None:
    """The flow has copied up to source offset 100; the last stable offset of the target is 100 or 107."""
    end = 107 if high == 107 else 100
    of, nobody = cast(Any, pair), cast(Any, None)
    scope = PartitionScope(ONE, ONE, of, nobody, 0, 0, 120, end, 100, (False, False), (False, False))
    await _expect_what_is_readable(scope, cast(Any, Map()), high)
    assert scope.due == due


async def test_a_time_not_copied_yet_begins_at_the_same_record_of_both_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies from source offset 100 on may be in the target by now, at 107."""

    put(monkeypatch, planning, known_offsets=({ONE: 110}, {}))
    pair: Any = "pair"
    scope = PartitionScope(ONE, ONE, pair, cast(Any, None), 0, 0, 120, 115, 100, (False, False), (False, False))
    clusters = cast(Any, SimpleNamespace(source=None))
    await planning._cut_by_time(scope, cast(Any, Map()), VerifyOptions(from_ms=1), clusters)
    assert (scope.begin, scope.target_begin) == (100, 107)


@pytest.mark.parametrize(("begin", "reason"), [(0, RangeReason.NOT_OF_FLOW), (5, RangeReason.RETENTION_SOURCE)])
async def test_before_the_first_copy_all_is_of_others_if_the_source_has_all(begin: int, reason: RangeReason) -> None:
    reader = cast(Any, Map())
    reader.chunks = lambda _: [SimpleNamespace(begin=(0, 7))]
    nothing = Verified(PartitionResult("t", 0, "t", 0, 0, 0, 0, -1, -1, -1, 0), -1, "", "")
    scope = PartitionScope(ONE, ONE, cast(Any, "pair"), nothing, begin, 0, 120, 127, 100, *((False, False),) * 2)
    await planning._place(scope, reader, VerifyOptions(), cast(Any, None))
    assert (scope.begin, scope.target_begin) == (begin, begin + 7)
    (found,) = scope.verified.result.explained
    assert (found.side, found.first, found.last, found.reason) == ("target", 0, begin + 6, reason)


def test_copies_of_a_topic_that_was_recreated_are_not_compared_with_the_new_one() -> None:
    one, other = UUID(int=1), UUID(int=2)
    clusters = FlowClusters(*(cast(Any, SimpleNamespace(name=name)) for name in ("us", "eu", "eu", "eu")))
    for of_pair, here, there, found in (
        ((one, other), one, other, None),
        ((one, other), other, other, "cluster us: t"),
        ((one, other), one, one, "cluster eu: us.t"),
        ((None, other), one, other, None),
    ):
        pair = MapPair("t", of_pair[0], 0, "us.t", of_pair[1], 0)
        topics = TopicMetadata("t", here, 0, {}), TopicMetadata("us.t", there, 0, {})
        assert planning._copied_before(pair, *topics, clusters) == found
    assert planning._copied_before(None, *topics, clusters) is None


async def test_a_topic_that_may_be_compacted_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what its cleaner has removed would be missing."""
    policies = {"a": "compact,delete", "b": "delete", "c": ""}
    monkeypatch.setattr(planning, "topic_values", AsyncMock(return_value=policies))
    compacted, doubtful = await planning._compacted(cast(Any, SimpleNamespace(name="us")), {*"abcd"})
    assert (compacted, list(doubtful)) == ({"a"}, ["d"])
    assert doubtful["d"].startswith("cluster us: whether d is compacted is unknown, so")
    assert doubtful["d"].endswith("; grant DESCRIBE_CONFIGS on topic d")


def test_a_leader_that_says_nothing_is_named_with_its_cluster_and_partition() -> None:
    said = {("t", 0): "a:1 did not answer ListOffsetsRequest within 30 s", ("t", 1): "t-1 has no leader now"}
    remedy = "check that the cluster's brokers answer, then run this again"
    assert list(_silent(cast(Any, SimpleNamespace(name="us (a:1)")), said)) == [
        f"cluster us (a:1): {name}: begin and end could not be read: {why}; {remedy}"
        for name, why in (("t-0", said["t", 0]), ("t-1", "has no leader now"))
    ]


def offsets_until(end: int) -> Any:
    async def offsets(_: object, some: Any, which: int, *__: object) -> Any:
        return dict.fromkeys(some, 0 if which == EARLIEST else end), {}

    return offsets


async def test_positions_are_those_from_before_the_ends_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up may follow the map of a flow that runs: what was copied since is behind the target's end."""
    copied, of_topic = {"to": 100}, TopicMetadata("t", None, 0, dict.fromkeys((0, 1), cast(Any, None)))

    async def follows(*_: object) -> None:
        copied["to"] += 50

    for name, value in {
        "known_offsets": offsets_until(100),
        "read_copied": AsyncMock(return_value={}),
        "topic_values": AsyncMock(return_value={"t": "delete"}),
        "selected": lambda _, known: known.values(),
        "_gaps": AsyncMock(return_value=[]),
        "_place": follows,
    }.items():
        monkeypatch.setattr(planning, name, value)
    reader: Any = MagicMock(follow=AsyncMock(), current=lambda _: None)
    reader.position.side_effect = lambda _: SimpleNamespace(next_source_offset=copied["to"])
    cluster = cast(Any, SimpleNamespace(name="us", metadata=answers(SimpleNamespace(topics={"t": of_topic}))))
    clusters = FlowClusters(cluster, cluster, cluster, cast(Any, None))
    settings: Any = MagicMock(remote_topic=lambda topic: topic)
    scopes, unread = await planning.plan_partitions(settings, clusters, reader, {}, VerifyOptions())
    assert ([one.due for one in scopes], unread) == ([100, 100], [])
    # The target's records are not of a flow that has copied nothing, so nothing is compared.
    of_partition = [None, SimpleNamespace(next_source_offset=0)]
    reader.position.side_effect = lambda one: of_partition[one.partition]
    monkeypatch.setattr(planning, "_place", AsyncMock())
    scopes, unread = await planning.plan_partitions(settings, clusters, reader, {}, VerifyOptions())
    assert [await one.next_range(reader) for one in scopes] == [None, None]
    reasons = [[(each.first, each.last, each.reason) for each in one.verified.result.explained] for one in scopes]
    assert reasons == [[(0, 99, RangeReason.NOT_COPIED)]] * 2


async def test_a_map_that_is_rewritten_meanwhile_is_followed() -> None:
    run = MapRun(0, 7, 10)
    reader: Any = MagicMock(follow=AsyncMock(), runs=AsyncMock(side_effect=[ChunkRewritten(), [run]]))
    reader.chunks.return_value = [ChunkPlace((0, 7), None, 5)]
    pair: Any = "pair"
    scope = PartitionScope(ONE, ONE, pair, cast(Any, None), 0, 7, 120, 115, 100, (False, False), (False, False))
    scope.map_begin = (0, 7)
    copies = partial(scope._copies, reader, 115)
    assert await planning._while_rewritten(reader, copies) == ((7, run.downstream_end),)
    reader.follow.assert_awaited_once()
    # What is before the map may be copies too; what is behind it is known.
    scope.target_begin, reader.runs = 3, AsyncMock(return_value=[run, MapRun(20, 30, 5)])
    assert await scope._copies(reader, 115) == ((3, 17), (30, 35))


async def test_a_topic_that_is_recreated_while_it_is_read_is_not_compared() -> None:
    ids = [UUID(int=1), UUID(int=1), UUID(int=2)]

    async def topics(_: object) -> Any:
        return SimpleNamespace(leader=lambda *_: 0, topics={"t": SimpleNamespace(topic_id=ids.pop(0))})

    cluster = cast(Any, SimpleNamespace(name="us", topics=topics))
    reader = LogReader(cluster, ONE, 0, 9, is_committed=True, fetch_bytes=1)
    await reader._found_leader()
    await reader._found_leader()
    with pytest.raises(PermanentError, match="cluster us: t-0 was recreated since the run began"):
        await reader._found_leader()


async def test_a_topic_that_was_recreated_since_it_was_planned_is_not_compared() -> None:
    """In the first range that is opened, too."""
    known = SimpleNamespace(leader=lambda *_: 0, topics={"t": SimpleNamespace(topic_id=UUID(int=2))})
    cluster = cast(Any, SimpleNamespace(name="us", topics=AsyncMock(return_value=known)))
    ids = (str(UUID(int=1)), str(UUID(int=2)))
    verified: Any = SimpleNamespace(source_id=ids[0], target_id=ids[1])
    scope = PartitionScope(ONE, ONE, None, verified, 0, 0, 9, 9, 9, (False, False), (False, False))
    plan = await scope.next_range(cast(Any, None))
    assert plan is not None and RangePlan.from_wire(plan.to_wire()).ids == ids
    task = VerificationTask(MagicMock(), None)
    task._clusters = {"source": cluster, "target": cluster}
    await task._opener(plan)("target", 0, 9)._found_leader()
    with pytest.raises(PermanentError, match="cluster us: t-0 was recreated since the run began"):
        await task._opener(plan)("source", 0, 9)._found_leader()
