"""Speeds and lags from counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.cli.rates import ENDED, NO_TOPICS, FlowRates, RateMeter, flow_line, is_idle, verdict_of
from connect.core.wording import bytes_text
from connectors.flow_facts import FlowProgress, Tally
from connectors.flow_progress import ClusterContact, Contact, PartitionView
from connectors.formats.types import FlowName


def partition(number: int, records: int, *, topic: str = "orders", lag: int = 0, lag_ms: int = 0) -> PartitionView:
    return PartitionView(
        source_topic=topic,
        source_partition=number,
        target_topic=f"us.{topic}",
        target_partition=number,
        state="running",
        records=records,
        bytes=records * 10,
        batches={"shallow": records // 2, "dropped": 1},
        next_source_offset=records,
        source_end_offset=records + lag,
        lag_records=lag,
        lag_ms=lag_ms,
    )


def flow(*partitions: PartitionView) -> FlowProgress:
    return FlowProgress(FlowName("us", "eu"), "running", 3, Tally.of(partitions))


def first_rates(progress: FlowProgress) -> FlowRates:
    (rates,) = RateMeter().observe(0.0, [progress])
    return rates


def test_counters_that_begin_anew_show_no_negative_speed() -> None:
    meter = RateMeter()
    meter.observe(1.0, [flow(partition(0, 500))])
    (rates,) = meter.observe(2.0, [flow(partition(0, 20))])
    assert rates.records_per_s == 0


def test_a_flow_is_the_sum_of_its_tasks_and_as_late_as_the_worst() -> None:
    looked = Tally.of([partition(0, 10, lag=5, lag_ms=7), partition(1, 20, lag=6, lag_ms=90)])
    tally = looked + Tally.of([partition(2, 2), replace(partition(0, 2, topic="clicks", lag=1), reason="no leader")])
    assert (sorted(tally.topics), tally.partitions) == (["clicks", "orders"], 4)
    assert (tally.records, tally.bytes, tally.lag_records, tally.lag_ms) == (34, 340, 12, 90)
    assert tally.batches == {"shallow": 17, "dropped": 4}
    assert [one.source.topic for one in tally.not_copied] == ["clicks"]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40), st.integers(1, 10))
def test_speed_times_window_is_the_difference_over_it(steps: list[int], window_s: int) -> None:
    meter, records, counts = RateMeter(window_s=window_s), 0, []
    for second, step in enumerate(steps):
        records += step
        counts.append(records)
        (rates,) = meter.observe(float(second), [flow(partition(0, records))])
    reach = min(window_s, len(steps) - 1)
    assert rates.records_per_s * reach == pytest.approx(counts[-1] - counts[-1 - reach])


def test_a_flow_is_one_line() -> None:
    meter = RateMeter()
    meter.observe(0.0, [flow(partition(0, 0), partition(1, 0))])
    (rates,) = meter.observe(1.0, [flow(partition(0, 600, lag=35, lag_ms=12), partition(1, 600))])
    assert flow_line(rates) == (
        "us->eu running: 1 topic, 2 partitions, 1,200 records/s, 12.0 kB/s, 35 records and 12 ms behind, "
        "batches unchanged 600 merged 0 rebuilt 0 dropped 2, Spark job 3"
    )


def test_what_is_wrong_is_said_at_the_end_of_the_line() -> None:
    quarantined = replace(partition(0, 600), state="QUARANTINED", reason="refused")
    rates = first_rates(flow(quarantined, replace(partition(1, 600), skipped=1200)))
    assert flow_line(rates).startswith("us->eu degraded: 1 topic, 2 partitions, ")
    assert flow_line(rates).endswith(
        "Spark job 3. us->eu does not copy 1 partition: orders-0 is QUARANTINED: refused. "
        "It has left out 1,200 records that eu refuses."
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (250e6, "250 MB"), (1.5e12, "1,500.0 GB")],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_a_lag_that_is_not_known_is_said_to_be() -> None:
    silent = ClusterContact(answers=False, answered_ms=1_767_276_182_000)
    meter = RateMeter()
    (rates,) = meter.observe(0.0, [replace(flow(partition(0, 10)), contact=Contact(source=silent))])
    assert ", lag unknown since 2026-01-01T14:03:02Z, " in flow_line(rates)
    assert flow_line(rates).endswith(": the source us does not answer (last answer 0.0 s ago).")
    (rates,) = meter.observe(1.0, [replace(flow(partition(0, 10)), contact=Contact(target=silent))])
    line = flow_line(rates)
    assert "0 records and 0 ms behind" in line
    assert line.endswith(". us->eu copies nothing: the target eu does not answer (last answer 0.0 s ago).")


def test_a_flow_that_starts_has_no_lag_yet() -> None:
    contact = Contact(source=ClusterContact(answers=True, answered_ms=1_767_276_182_000))
    rates = first_rates(replace(flow(partition(0, 0)), state="starting", contact=contact))
    assert flow_line(rates).startswith("us->eu starting: 1 topic, 1 partition, 0 records/s, 0 B/s, lag unknown, ")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("STOPPED", "us->eu copies nothing: connector MirrorSourceConnector is STOPPED. connector "),
        ("PAUSED", "us->eu copies nothing: connector MirrorSourceConnector is PAUSED. connector "),
        (NO_TOPICS, "us->eu copies nothing: no source topic is selected. flow us->eu: check its topics"),
        (ENDED, "us->eu copies nothing: no worker runs it. the worker of us->eu: start it"),
    ],
)
def test_a_flow_that_copies_nothing_says_why(state: str, said: str) -> None:
    rates = first_rates(FlowProgress(FlowName("us", "eu"), state, 0, Tally()))
    assert flow_line(rates).startswith(said)
    can_resume = state in ("STOPPED", "PAUSED")
    assert ("heliograph connectors resume MirrorSourceConnector --rest URL/us/eu" in flow_line(rates)) is can_resume
    assert is_idle(verdict_of(rates.progress))


@pytest.mark.parametrize("state", ["running", "STOPPED", ENDED])
def test_a_status_line_says_when_records_last_moved_and_who_does_not_answer(state: str) -> None:
    source = ClusterContact(answers=False, answered_ms=1_767_276_182_000, moved_ms=1_767_276_181_000)
    contact = Contact(source, ClusterContact(answers=True, moved_ms=1_767_276_122_000))
    reported = FlowProgress(FlowName("us", "eu"), state, 0, Tally(), contact, at_ms=1_767_276_183_500)
    rates = first_rates(reported)
    assert "the source us does not answer" in flow_line(rates) and "(last answer 1.5 s ago)" in flow_line(rates)
    assert "last fetch 2.5 s ago, last produce 1 min 1 s ago" in flow_line(rates)
