"""Metrics of many partitions leave the loop to others in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.kafka import concurrency
from connectors.flow_progress import (
    NOTHING_KNOWN,
    ClusterContact,
    Contact,
    LagSnapshot,
    Meters,
    PartitionMeter,
    Resting,
    lag_of,
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
        meters=SimpleNamespace(partitions=meters),
        target_topic=lambda source: f"us.{source.topic}",
        view=lambda _: [],
    )
    return SimpleNamespace(running={("mirror", 0): task}, contact=lambda _: NOTHING_KNOWN, seen={}, watches={})


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


async def test_a_flow_whose_tasks_have_ended_still_tells_of_its_clusters() -> None:
    mirror, task = MirrorHost({}, cast(Any, None), cast(Any, None), lambda: True), _task()
    watch = SimpleNamespace(
        flow=FlowName("us", "eu"),
        contact=Contact(ClusterContact(answers=False, answered_ms=4_000), ClusterContact(answers=True)),
    )
    mirror.watches["mirror"] = cast(Any, watch)
    with mirror.shown("mirror", 0, task):
        task.meters.fetched_ms, task.meters.produced_ms = 3_000, 2_000
        assert (await _contact_of(mirror, 5_000))["last_fetch_age_ms"] == 2_000
    assert not mirror.running
    for now_ms in (6_000, 9_000):
        assert await _contact_of(mirror, now_ms) == {
            "source_answers": 0,
            "target_answers": 1,
            "last_fetch_age_ms": now_ms - 3_000,
            "last_produce_age_ms": now_ms - 2_000,
            "lag_unknown_ms": now_ms - 4_000,
        }
    with mirror.shown("mirror", 0, _task()):
        assert mirror.contact("mirror").source.moved_ms == 3_000, "a task that starts has fetched nothing yet"


async def test_a_stopped_connector_has_a_lag_of_an_unknown_one() -> None:
    mirror, side = (
        MirrorHost({}, cast(Any, None), cast(Any, None), lambda: True),
        ClusterContact(answers=True, answered_ms=4_000),
    )
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
        assert (reported["flow_lag_records"], reported["flow_lag_ms"], reported["lag_unknown_ms"]) == (
            -1,
            -1,
            now_ms - 4_000,
        )
    with mirror.shown("mirror", 0, _task()):
        assert await _lags_of(mirror, 9_000) == {}, "its tasks tell it themselves"


def _task() -> Any:
    return SimpleNamespace(flow=FlowName("us", "eu"), state="running", meters=Meters(), view=lambda _: [])


async def _lags_of(mirror: MirrorHost, now_ms: int) -> dict[str, float]:
    families = {family.name: family for family in await mirror_metrics([mirror], now_ms)}
    samples = families["kafka_connect_mirror_MirrorSourceConnector_lag_records"].samples
    return {sample.labels["partition"]: sample.value for sample in samples}


async def _contact_of(mirror: MirrorHost, now_ms: int) -> dict[str, float]:
    families = await mirror_metrics([mirror], now_ms)
    prefix = "kafka_connect_mirror_MirrorSourceConnector_"
    return {
        family.name.removeprefix(prefix): sample.value
        for family in families
        for sample in family.samples
        if set(sample.labels) == {"source", "target"}
    }
