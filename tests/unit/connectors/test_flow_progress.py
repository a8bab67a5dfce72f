"""How far a flow is behind, what meters measure, and what of it metrics tell without holding up others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.metrics import WINDOW_MS
from connect.kafka import concurrency
from connectors.control_link.protocol import PartitionProgress
from connectors.flow_progress import (
    NOTHING_KNOWN,
    ClusterContact,
    Contact,
    LagSnapshot,
    Meters,
    PartitionLag,
    PartitionMeter,
    PartitionView,
    Resting,
    Takeovers,
    by_topic,
    furthest,
    lag_of,
    together,
)
from connectors.formats.types import FlowName, TopicPartition
from connectors.source.worker_context import MirrorHost
from connectors.source.worker_metrics import mirror_metrics

PARTITIONS = 1_000
ORDERS, PAID = TopicPartition("orders", 0), TopicPartition("orders", 1)


def host() -> Any:
    meters = {TopicPartition("orders", number): PartitionMeter(records=number) for number in range(PARTITIONS)}
    task = SimpleNamespace(
        flow=FlowName("us", "eu"),
        meters=SimpleNamespace(partitions=meters, takeovers=Takeovers(at_least_once=1, may_double=7)),
        state="running",
        epoch=3,
        target_topic=lambda source: f"us.{source.topic}",
        view=lambda _: [],
    )
    return SimpleNamespace(
        running={("mirror", 0): task},
        contact=lambda _: NOTHING_KNOWN,
        seen={},
        watches={},
        takeovers=lambda _: task.meters.takeovers,
        spark=SimpleNamespace(engine=None),
    )


async def test_others_have_their_turn_while_many_partitions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_TURN_S", 0.0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 2:
                # What the flow does meanwhile disturbs nothing.
                mirror.running[("mirror", 0)].meters.partitions[TopicPartition("new", 0)] = PartitionMeter()
            await asyncio.sleep(0)

    mirror = host()
    beside = asyncio.create_task(other(), name="other work")
    families = {family.name: family for family in await mirror_metrics([mirror], 1000)}
    beside.cancel()
    counts = families["kafka_connect_mirror_MirrorSourceConnector_record_count"].samples
    assert sum(sample.value for sample in counts) == PARTITIONS * (PARTITIONS - 1) / 2
    assert turns >= PARTITIONS
    (announced,) = families["kafka_connect_mirror_MirrorSourceConnector_flow_announced_duplicates"].samples
    assert (announced.labels, announced.value) == ({"source": "us", "target": "eu"}, 7)


async def test_a_flow_whose_tasks_have_ended_still_tells_of_its_clusters() -> None:
    mirror, task = mirror_host(), _task()
    contact = Contact(ClusterContact(answers=False, answered_ms=4_000), ClusterContact(answers=True))
    watch = SimpleNamespace(flow=FlowName("us", "eu"), contact=contact)
    mirror.watches["mirror"] = cast(Any, watch)
    with mirror.shown("mirror", 0, task):
        task.meters.fetched_ms, task.meters.produced_ms = 3_000, 2_000
        assert (await _contact_of(mirror, 5_000))["last_fetch_age_ms"] == 2_000
    assert not mirror.running
    for now_ms in (6_000, 9_000):
        assert {name: value for name, value in (await _contact_of(mirror, now_ms)).items() if value} == {
            "target_answers": 1,
            "last_fetch_age_ms": now_ms - 3_000,
            "last_produce_age_ms": now_ms - 2_000,
            "lag_unknown_ms": now_ms - 4_000,
        }
    with mirror.shown("mirror", 0, _task()):
        assert mirror.contact("mirror").source.moved_ms == 3_000, "a task that starts has fetched nothing yet"


async def test_the_quota_that_delays_a_slice_most_is_shown() -> None:
    mirror = mirror_host()
    with mirror.shown("mirror", 0, first := _task()), mirror.shown("mirror", 1, second := _task()):
        assert mirror.contact("mirror").target.throttled == 0
        first.meters.answered(None, None, WINDOW_MS // 10, 0)
        second.meters.answered(None, None, 0, WINDOW_MS * 2)
        contact = mirror.contact("mirror")
    assert contact.source.throttled == pytest.approx(0.1, rel=0.05)
    assert contact.target.throttled == 1, "two tasks of one broker are throttled at once"


async def test_a_stopped_connector_has_a_lag_of_an_unknown_one() -> None:
    mirror, side = mirror_host(), ClusterContact(answers=True, answered_ms=4_000)
    watch = SimpleNamespace(flow=FlowName("us", "eu"), contact=Contact(side, side))
    mirror.watches["mirror"] = cast(Any, watch)
    mirror.seen["mirror"] = LagSnapshot(FlowName("us", "eu"), 1_000, {}, (), is_stopped=True)
    assert (await _contact_of(mirror, 5_000))["flow_lag_records"] == -1, "nothing was seen yet"
    lags = {one: lag_of(*one, "us.orders", 3, 0, end, 100) for one, end in {ORDERS: 10, PAID: 3}.items()}
    resting = tuple(Resting(None, one, "us.orders", "unassigned") for one in lags)
    mirror.seen["mirror"] = LagSnapshot(FlowName("us", "eu"), 1_000, lags, resting, is_stopped=True)
    assert await _lags_of(mirror, 5_000) == {"0": 7, "1": 0}
    assert (await _contact_of(mirror, 5_000))["flow_lag_records"] == 7
    watch.contact = Contact(replace(side, answers=False), side)
    for now_ms in (6_000, 9_000):
        assert await _lags_of(mirror, now_ms) == {"0": -1, "1": -1}
        reported = await _contact_of(mirror, now_ms)
        lag = reported["flow_lag_records"], reported["flow_lag_ms"], reported["lag_unknown_ms"]
        assert lag == (-1, -1, now_ms - 4_000)
    with mirror.shown("mirror", 0, _task()):
        assert await _lags_of(mirror, 9_000) == {}, "its tasks tell it themselves"


def mirror_host() -> MirrorHost:
    return MirrorHost({}, cast(Any, SimpleNamespace(engine=None)), cast(Any, None), lambda: True)


def _task() -> Any:
    return SimpleNamespace(flow=FlowName("us", "eu"), state="running", epoch=1, meters=Meters(), view=lambda _: [])


async def _lags_of(mirror: MirrorHost, now_ms: int) -> dict[str, float]:
    families = {family.name: family for family in await mirror_metrics([mirror], now_ms)}
    samples = families["kafka_connect_mirror_MirrorSourceConnector_lag_records"].samples
    return {sample.labels["partition"]: sample.value for sample in samples}


async def _contact_of(mirror: MirrorHost, now_ms: int) -> dict[str, float]:
    families = await mirror_metrics([mirror], now_ms)
    prefix = "kafka_connect_mirror_MirrorSourceConnector_"
    samples = [(family.name.removeprefix(prefix), sample) for family in families for sample in family.samples]
    return {name: sample.value for name, sample in samples if set(sample.labels) == {"source", "target"}}


def lag(position: int, start: int, end: int, size: int = 1000) -> PartitionLag:
    return lag_of("orders", 0, "us.orders", position, start, end, size)


def test_all_that_is_copied_leaves_nothing() -> None:
    assert lag(100, 0, 100) == PartitionLag("orders", 0, "us.orders", 100, 100, 0)
    assert together([lag(100, 0, 100)]) == together([lag(0, 0, 0, 0)])


def test_what_waits_and_what_is_gone() -> None:
    one = lag(20, 27, 60)
    assert (one.records, one.lost, one.bytes, one.ms) == (33, 7, 1000, -1)
    assert lag(50, 0, 100).bytes == 500
    assert lag(50, 0, 100, -1).bytes == -1
    assert (lag(50, 60, 60).records, lag(50, 60, 60).lost) == (0, 10)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(-1, 10_000))
def test_as_counted_one_by_one(position: int, start: int, length: int, size: int) -> None:
    end = start + length
    one = lag(position, start, end, size)
    assert one.records == sum(offset >= position for offset in range(start, end))
    assert one.lost == sum(offset < start for offset in range(position, min(start, end)))
    assert -1 <= one.bytes <= max(size, 0)


def test_sums_and_who_is_furthest() -> None:
    most = replace(lag(0, 0, 90), topic="b", ms=5)
    least = replace(lag(80, 0, 90), topic="a", ms=70)
    idle = replace(lag(90, 0, 90), topic="a", partition=1)
    whole = together([least, most, idle])
    assert (whole.partitions, whole.records, whole.ms) == (3, 100, 70)
    assert furthest([least, idle, most], 5) == [most, least]
    assert furthest([least, idle, most], 1) == [most]
    assert [(topic, one.records) for topic, one in by_topic([most, least, idle]).items()] == [("a", 10), ("b", 90)]


SOURCE = TopicPartition("orders", 0)
VIEW = PartitionView("orders", 0, "us.orders", 0, "running", 0, 0, {}, 60, 100, 40, 5_000)
RESTING = Resting(0, SOURCE, "us.orders", "paused")


def seen(lag: PartitionLag) -> LagSnapshot:
    return LagSnapshot(FlowName("us", "eu"), 1_000, {SOURCE: lag}, (RESTING,))


def test_what_stood_still_grows_older_and_what_moved_is_as_old_as_what_was_copied_last() -> None:
    looked = seen(replace(lag_of("orders", 0, "us.orders", 60, 0, 90, 900), ms=7_000))
    unmoved = looked.lag_of(VIEW, 3_000)
    assert unmoved is not None
    assert (unmoved.records, unmoved.bytes, unmoved.ms) == (40, 400, 9_000)
    moved = looked.lag_of(replace(VIEW, next_source_offset=80), 3_000)
    assert moved is not None
    assert (moved.records, moved.bytes, moved.ms) == (20, 200, 5_000)


def test_a_stopped_partition_is_behind_the_end_that_was_seen() -> None:
    looked = seen(replace(lag_of("orders", 0, "us.orders", 60, 70, 500, 4_300), ms=1))
    lag = looked.lag_of(replace(VIEW, state="source-gap"), 1_000)
    assert lag is not None
    assert (lag.end, lag.records, lag.lost) == (500, 430, 10)


def test_a_partition_whose_task_does_not_run_is_as_it_was_seen() -> None:
    looked = seen(replace(lag_of("orders", 0, "us.orders", 60, 0, 90, 900), ms=7_000))
    lag = looked.resting_lag(RESTING, 2_500)
    assert lag is not None
    assert (lag.records, lag.bytes, lag.ms) == (30, 300, 8_500)
    assert looked.resting_lag(replace(RESTING, source=TopicPartition("new", 0)), 2_500) is None


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_at_rest_nothing_is_behind(position: int, seen_end: int, more: int) -> None:
    end = seen_end + more
    looked = seen(lag_of("orders", 0, "us.orders", min(position, seen_end), 0, seen_end, 900))
    lag = looked.lag_of(replace(VIEW, next_source_offset=end, source_end_offset=end), 2_000)
    assert lag is not None
    assert (lag.records, lag.bytes, lag.ms) == (0, 0, 0)


ONE = TopicPartition("orders", 1)
PROGRESS = PartitionProgress(ONE, 10, 0, 10, 10, 12, 0, timestamp_ms=9_000, records=10, bytes=500, batches={})


def test_records_bytes_and_the_age_of_the_newest_are_measured() -> None:
    meters = Meters()
    meters.apply(PROGRESS, 10_000)
    meters.apply(replace(PROGRESS, records=5, bytes=100, timestamp_ms=10_500), 11_000)
    meter = meters.partitions[ONE]
    assert (meter.records, meter.bytes) == (15, 600)
    assert (meter.age_ms.last, meter.age_ms.least(11_000), meter.age_ms.most(11_000)) == (500, 500, 1000)
    assert meter.record_rate.rate(11_000) == pytest.approx(15 / 31)


def test_a_report_without_records_is_no_measurement_but_shows_the_partition() -> None:
    meters = Meters()
    meters.apply(replace(PROGRESS, records=0, bytes=0), 10_000)
    assert meters.partitions[ONE].records == 0
    assert meters.partitions[ONE].age_ms.mean(10_000) != meters.partitions[ONE].age_ms.mean(10_000), "no number"


def test_clocks_that_disagree_and_records_without_a_time_give_no_negative_age() -> None:
    meters = Meters()
    meters.apply(replace(PROGRESS, timestamp_ms=10_001), 10_000)
    assert meters.partitions[ONE].age_ms.last == 0
    meters.apply(replace(PROGRESS, timestamp_ms=-1), 20_000)
    assert meters.partitions[ONE].age_ms.last == 0
