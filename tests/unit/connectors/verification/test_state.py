"""What a verification stores survives its encoding, and grows by ranges; the record of the last run of a flow: what is
new since, how long the rest takes, and its metrics."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, cast
from unittest.mock import MagicMock
from uuid import UUID

import pytest

from connect.core.errors import RetriableError, UnreadableRecord
from connect.core.wording import age_text
from connect.kafka.cluster import ClusterMetadata, TopicMetadata
from connectors.config.connector_configs import source_settings
from connectors.flow_facts import VerifiedFacts, verified_text
from connectors.flow_progress import LagSnapshot, lag_of
from connectors.formats.types import TopicPartition
from connectors.policy import make_policy
from connectors.source import lag_watch
from connectors.source.worker_context import MirrorHost
from connectors.source.worker_metrics import verification_metrics
from connectors.verification.ranges import RangeResult
from connectors.verification.report import (
    NAMED_DIFFERENCES,
    Difference,
    DifferenceKind,
    ExplainedRange,
    PartitionResult,
    RangeReason,
    VerificationResult,
)
from connectors.verification.state import (
    LAST_RUN,
    VERIFIED,
    LastVerification,
    TopicPair,
    Verified,
    after_run,
    recreated_topics,
    verification_as_json,
)

PROPS = {"name": "us-eu", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
POLICY = make_policy({})


def part(topic: str, partition: int, to: int, records: int, differences: int = 0) -> Verified:
    of = topic, partition, f"us.{topic}", partition
    return Verified(PartitionResult(*of, records, 0, 0, 0, to, to, 1, (), differences), to, f"{topic}1", f"{topic}2")


def after(
    before: LastVerification,
    *known: Verified,
    offsets: int = 2,
    read_s: float = 2.0,
    unread: tuple[str, ...] = (),
    is_whole: bool = True,
) -> LastVerification:
    of_run = VerificationResult("us->eu", 5, 9, {}, (known[0].result,), read_s=read_s, unread=unread)
    return after_run(before, of_run, offsets, known, is_whole=is_whole)


WHOLE = after(LastVerification(), part("b", 0, 7, 7), part("a", 2, 5, 4, 1), unread=("a-0: gone",), offsets=100)
IDS = {"a": ["a1", "us.a", "a2"], "b": ["b1", "us.b", "b2"]}


def lags(**positions: int) -> list[Any]:
    """By topic; a digit at the end is the partition."""
    return [lag_of(name[:-1], int(name[-1]), "x", at, 0, at, 1) for name, at in positions.items()]


def test_a_record_has_the_sums_of_a_run_and_where_each_partition_is() -> None:
    assert LastVerification(9, 11, 1, 1, 50.0, {"a": [-1, -1, 5], "b": [7]}, IDS) == WHOLE
    key, value = LAST_RUN.encode_key("us-eu", ""), LAST_RUN.encode_value(WHOLE)
    assert (LAST_RUN.decode_key(key), LAST_RUN.decode_value(value)) == (("us-eu", ""), WHOLE)


def new_id(chance: random.Random) -> str:
    return str(UUID(bytes=chance.randbytes(16)))


def test_the_record_of_ten_thousand_topics_is_smaller_than_a_message_may_be() -> None:
    """Whatever their names have in common: these have nothing."""
    chance = random.Random(1)
    topics = [chance.randbytes(20).hex() for _ in range(10_000)]
    ids = {one: [new_id(chance), f"us.{one}", new_id(chance)] for one in topics}
    value = LAST_RUN.encode_value(LastVerification(9, verified_to={one: [10**9] for one in topics}, ids=ids))
    assert len(value) < 1_000_000
    assert LAST_RUN.decode_value(value).ids == ids
    with pytest.raises(UnreadableRecord, match="is cut"):
        LAST_RUN.decode_value(value[:-9])


def test_a_run_of_some_topics_keeps_the_others_and_is_not_one_of_the_flow() -> None:
    parts = part("b", 0, 9, 8), part("a", 2, 5, 4, 1)
    some = after(replace(WHOLE, ended_ms=3), *parts, read_s=0.1, is_whole=False)
    assert (some.ended_ms, some.records, some.differences, some.unread) == (3, 12, 1, 1)
    assert some.verified_to == {"b": [9], "a": [-1, -1, 5]}
    assert some.offsets_s == 50.0, "too short a time measures nothing"
    assert after(LastVerification(), part("b", 0, 9, 8), is_whole=False).ended_ms == -1


@pytest.mark.parametrize(
    ("positions", "new", "rest_s"),
    [
        ({"b0": 107, "a2": 5}, (100, 0), 12.0),
        ({"b0": 3}, (0, 0), 10.0),  # read before the run ended
        ({"b0": 8, "a0": 1, "a1": 0, "c0": 4}, (1, 2), -1.0),  # the source may have deleted their first records
        ({"heartbeats0": 99}, (0, 0), 10.0),
    ],
)
async def test_what_is_new_in_each_partition(positions: dict[str, int], new: tuple[int, int], rest_s: float) -> None:
    assert await WHOLE.facts(lags(**positions), POLICY) == VerifiedFacts(9, 11, 1, 1, *new, rest_s)


@pytest.mark.parametrize(
    ("here", "there", "recreated"),
    [
        ({"a": 1, "b": 1}, {"us.a": 2, "us.b": 2}, ()),
        ({"a": 3, "b": 1}, {"us.a": 2, "us.b": 2}, ("a",)),
        ({"a": 1, "b": 1}, {"us.a": 2, "us.b": 3}, ("b",)),
        ({"a": 1}, {"us.a": None}, ()),  # b is not there now, and brokers need not have ids
        (None, {"us.b": 3}, ("b",)),
        ({"b": 3}, RetriableError("no answer"), ("b",)),
        ({"b": 1}, RetriableError("no answer"), None),
        (None, {"us.b": 2}, None),
    ],
)
async def test_a_topic_with_another_id_was_recreated(here: Any, there: Any, recreated: tuple[str, ...]) -> None:
    pairs = [TopicPair(one, str(UUID(int=1)), f"us.{one}", str(UUID(int=2))) for one in "ab"]
    assert await recreated_topics(pairs, cluster(here), cluster(there)) == recreated


def cluster(ids: Any) -> Any:
    """A cluster of topics with these ids; None stays."""

    async def metadata(names: set[str]) -> ClusterMetadata:
        if isinstance(ids, Exception):
            raise ids
        of = {name: TopicMetadata(name, UUID(int=one) if one else None, 0, {}) for name, one in ids.items()}
        missing = {name: TopicMetadata(name, UUID(int=0), 3, {}) for name in names - of.keys()}
        return ClusterMetadata(None, -1, {}, of | missing)

    return None if ids is None else MagicMock(metadata=metadata)


async def test_what_is_known_of_a_recreated_topic_is_not_of_the_new_one() -> None:
    facts = await replace(WHOLE, recreated=("b",)).facts(lags(b0=7, a2=5), POLICY)
    assert (facts.new_offsets, facts.new_partitions) == (0, 1)
    assert verified_text(facts, 10_009) == (
        "Last verified 10.0 s ago: 1 difference in what could be compared, 1 partition could not, 11 records compared. "
        "Recreated since at the source or the target, so not verified: b. 1 partition copied since is not verified."
    )


async def test_without_a_lag_nothing_is_said_of_what_is_new() -> None:
    assert await WHOLE.facts(None, POLICY) == VerifiedFacts(9, 11, 1, 1)
    assert age_text(round(VerifiedFacts(9, 11, 1, 1).rest_s)) == "unknown"


async def test_a_worker_shows_its_part_of_what_is_new() -> None:
    settings = source_settings(PROPS, {"offset.storage.topic": "offsets"})
    host = MirrorHost({"group.id": "group"}, *cast(Any, [None] * 3))
    for last, shown in (
        (None, {"verified_age_ms": -1, "verified_differences": -1, "unverified_offsets": -1}),
        (
            WHOLE,
            {
                "verified_age_ms": 991,
                "verified_records": 11,
                "verified_differences": 1,
                "verified_unread_partitions": 1,
                "verified_recreated_topics": 0,
                "unverified_offsets": 2,
                "unverified_partitions": 1,
            },
        ),
        (replace(WHOLE, recreated=None), {"verified_records": 11, "verified_recreated_topics": -1}),
    ):
        host.verified["us-eu"] = settings, last
        here = {TopicPartition(one.topic, one.partition): one for one in lags(b0=9, c0=1)}
        host.seen["us-eu"] = LagSnapshot(settings.flow_name, 1, here, ())
        prefix = "kafka_connect_mirror_MirrorSourceConnector_flow_"
        found = {
            one.name.removeprefix(prefix): sample.value
            for one in await verification_metrics([host], 1000)
            for sample in one.samples
            if sample.labels == {"source": "us", "target": "eu"}
        }
        assert found.items() >= shown.items()


async def test_what_was_read_of_a_connector_that_is_gone_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance during the read took it to another worker: its differences would always stay here."""
    host, reads = MirrorHost({"group.id": "group"}, *cast(Any, [None] * 3)), asyncio.Event()
    watched: dict[str, Any] = {"us-eu": MagicMock()}

    async def forgotten(*_: object) -> LastVerification:
        watched.clear()
        host.forget("us-eu")
        reads.set()
        return WHOLE

    monkeypatch.setattr(lag_watch, "read_last_run", forgotten)
    reading = asyncio.create_task(lag_watch.read_last_runs(host, watched))
    await reads.wait()
    await asyncio.sleep(0)
    reading.cancel()
    assert not host.verified


NOTHING = Verified(PartitionResult("t", 0, "us.t", 0, 0, 0, 0, 0, 0, -1, 0), 0, "a", "b")


def explained(first: int, last: int, reason: RangeReason, records: int = -1) -> ExplainedRange:
    return ExplainedRange("t", 0, first, last, reason, records=records)


def test_a_stored_result_is_read_as_it_was() -> None:
    differs = Difference(DifferenceKind.CHANGED, "t", 0, 1, 2, "value: 'a' against 'b'", ("value",))
    found = RangeResult(9, 8, 7, 700, 300, 0, [differs], 1, [explained(1, 2, RangeReason.GAP)])
    stored = NOTHING.with_range(found, 5)
    key, value = VERIFIED.encode_key("MirrorSourceConnector", TopicPartition("t", 0)), VERIFIED.encode_value(stored)
    assert VERIFIED.decode_key(key) == ("MirrorSourceConnector", TopicPartition("t", 0))
    assert VERIFIED.decode_value(value) == stored


def test_ranges_that_follow_each_other_are_one_and_what_was_not_copied_is_forgotten() -> None:
    first = RangeResult(10, 10, 5, explained=[explained(0, 9, RangeReason.FILTERED, 5)])
    both = [explained(10, 19, RangeReason.FILTERED, 4), explained(20, 29, RangeReason.NOT_COPIED)]
    second = RangeResult(20, 20, 4, explained=both)
    stored = NOTHING.with_range(first, 1).with_range(second, 2)
    assert [(one.first, one.last, one.records) for one in stored.result.explained] == [(0, 19, 9), (20, 29, -1)]
    later = stored.with_range(RangeResult(30, 30, 10), 3)
    assert [one.reason for one in later.result.explained] == [RangeReason.FILTERED]
    assert (later.result.records, later.result.verified_to, later.target_to) == (19, 30, 30)


def test_all_differences_are_counted_and_the_first_are_named() -> None:
    some = [Difference(DifferenceKind.MISSING, "t", 0, at, None, "") for at in range(NAMED_DIFFERENCES - 1)]
    found = RangeResult(200, 200, differences=some, differences_total=300)
    stored = NOTHING.with_range(found, 1).with_range(found, 2)
    assert (len(stored.result.differences), stored.result.differences_total) == (NAMED_DIFFERENCES, 600)
    stored = NOTHING.with_range(RangeResult(200, 200, undecided=some, undecided_total=300), 1)
    stored = stored.with_range(RangeResult.from_wire(RangeResult(9, 9, undecided=some, undecided_total=1).to_wire()), 2)
    assert (len(stored.result.undecided), stored.result.undecided_total) == (NAMED_DIFFERENCES, 301)
    assert stored.result.differences_total == 0


def test_a_report_with_top_has_most_differences_first_and_then_what_was_compared_the_longest_ago() -> None:
    some = tuple(Difference(DifferenceKind.MISSING, "t", 3, at, None, "") for at in range(50))
    results = [replace(NOTHING.result, partition=number, verified_ms=100 - number, records=1) for number in range(20)]
    results[3] = replace(results[3], differences=some, differences_total=60)
    results[2] = replace(results[2], undecided=some, undecided_total=50)
    found = verification_as_json(results, {"top": "3"})
    assert [(one["partition"], one["differences_total"]) for one in found["partitions"]] == [(3, 60), (2, 0), (19, 0)]
    assert (len(found["partitions"][0]["differences"]), len(found["partitions"][1]["undecided"])) == (5, 5)
    assert (found["all"], found["records"], found["differences"], found["undecided"]) == (20, 20, 60, 50)
    assert (found["verified_ms"], found["newest_ms"]) == (81, 100)
    shown = verification_as_json(results, {"top": "9", "search": "T-7"})["partitions"]
    assert [one["partition"] for one in shown] == [7]
    assert len(verification_as_json(results, {})["partitions"]) == 20
