"""What a task keeps of its slices' reports: records left out, partitions that stopped or are quarantined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.dataplane.plan import (
    QUARANTINED,
    RUNNING,
    STOPPED,
    PartitionPlan,
    PartitionProgress,
    ProducerIdentity,
    TopicPartition,
)
from connectors.positions import Position
from connectors.source.ledger import Ledger, Pair, plan_of, position_of

SOURCE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def ledger() -> Ledger:
    made = Ledger(Pair(source, None, TopicPartition("us.orders", source.partition), None) for source in (SOURCE, OTHER))
    for entry in made.entries.values():
        made.begin(entry.pair.source, position_of(_plan(entry.pair), "txn", ProducerIdentity(7, 0)))
    return made


def _plan(pair: Pair) -> PartitionPlan:
    return PartitionPlan(pair.source, None, pair.target, None, 0, -1, 0, 0, False)


def report(**changes) -> PartitionProgress:
    values = {
        "source": SOURCE,
        "next_source_offset": 20,
        "last_source_epoch": 0,
        "target_end": 15,
        "next_sequence": 15,
        "high_watermark": 30,
        "log_start_offset": 0,
        "timestamp_ms": 5,
        "records": 15,
        "bytes": 100,
        "batches": {},
    }
    return PartitionProgress(**{**values, **changes})


def test_records_left_out_are_counted_and_shown() -> None:
    made = ledger()
    made.apply(report(skips=[(3, 5, 87), (9, 9, 10)]))
    made.apply(report(skips=[(15, 15, 32)]))
    view = made.entries[SOURCE].view(10)
    assert (view.skipped, view.state, view.next_source_offset) == (5, RUNNING, 20)


@pytest.mark.parametrize(("is_fenced", "late"), [(True, 0), (False, 6)])
def test_what_an_unfenced_predecessor_wrote_before_our_first_batch_is_counted_once(is_fenced: bool, late: int) -> None:
    made = ledger()
    made.begin(SOURCE, replace(plan_position(made), target_end=94), is_fenced=is_fenced)
    assert made.late_records(report(runs=[])) == 0
    assert made.late_records(report(runs=[(5, 100, 15)])) == late
    assert made.late_records(report(runs=[(20, 115, 5)])) == 0


def plan_position(made: Ledger) -> Position:
    position = made.entries[SOURCE].position
    assert position is not None
    return position


@pytest.mark.parametrize("state", [STOPPED, QUARANTINED])
def test_a_partition_that_stopped_is_neither_planned_nor_handed_over_and_says_why(state: str) -> None:
    made = ledger()
    assert made.apply(report(state=state, reason="refused")) == "refused"
    assert made.apply(report(state=state, reason="refused")) == ""
    assert [plan.source for plan in made.plans()] == [OTHER]
    made.hand_over(())
    handed_over = {source: entry.position.is_handed_over for source, entry in made.entries.items() if entry.position}
    assert handed_over == {SOURCE: False, OTHER: True}
    view = made.entries[SOURCE].view(10)
    assert (view.state, view.reason) == (state, "refused")
    assert plan_of(made.entries[SOURCE], False).next_source_offset == 20


def test_a_report_survives_the_link() -> None:
    sent = report(skips=[(3, 5, 87)], runs=[(0, 0, 15)], state=QUARANTINED, reason="why", error="code")
    assert PartitionProgress.from_wire(sent.to_wire()) == sent
