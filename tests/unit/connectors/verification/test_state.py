"""What a verification stores survives its encoding, and grows by ranges."""

from __future__ import annotations

from dataclasses import replace

from connectors.formats.types import TopicPartition
from connectors.verification.ranges import RangeResult
from connectors.verification.report import (
    NAMED_DIFFERENCES,
    Difference,
    DifferenceKind,
    ExplainedRange,
    PartitionResult,
    RangeReason,
)
from connectors.verification.state import VERIFIED, Verified, verification_as_json

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
    second = RangeResult(
        20, 20, 4, explained=[explained(10, 19, RangeReason.FILTERED, 4), explained(20, 29, RangeReason.NOT_COPIED)]
    )
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
    assert [one["partition"] for one in verification_as_json(results, {"top": "9", "search": "T-7"})["partitions"]] == [
        7
    ]
    assert len(verification_as_json(results, {})["partitions"]) == 20
