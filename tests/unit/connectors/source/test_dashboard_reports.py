"""The search for partitions: on the worker, bounded, and those that do not copy first."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.api.source import ConnectorReport, TaskReport
from connect.core.errors import ConfigError
from connect.kafka.concurrency import Scope
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_progress import FlowLag, Meters, PartitionLag, PartitionView, lag_of
from connectors.formats.types import QUARANTINED, FlowName, TopicPartition
from connectors.internal_topics import PartitionState
from connectors.source.dashboard_reports import KINDS, Asked, dashboard_report, search
from connectors.source.task import MirrorSourceTask
from connectors.source.worker_context import FlowParts, MirrorHost, SharedSpark
from connectors.topic_sync.partition_assignment import ASSIGNED_PARTITIONS, encode_partitions

PARTITIONS = 10_000


class CopyingTask:
    """A task as reports see it, with a view of each partition."""

    def __init__(self, lags: Sequence[PartitionLag]) -> None:
        self.state, self.epoch, self.problem, self.meters = "running", 1, "", Meters()
        self._lags = lags

    def view(self, now_ms: int) -> Iterator[PartitionView]:
        for lag in self._lags:
            names = (lag.topic, lag.partition, lag.target_topic, lag.partition)
            yield PartitionView(*names, "running", 1, 1, {}, 0, lag.end, lag.records, 0)


def ten_thousand() -> Asked:
    """Return a flow whose partition ``n`` of topic ``orders`` has a lag of ``n``; 7 is quarantined, 8 waits."""
    lags = [lag_of("orders", index, "us.orders", 0, 0, index, -1) for index in range(PARTITIONS)]
    states = {
        TopicPartition("orders", 7): PartitionState(QUARANTINED, "too large", "us.orders", 5),
        TopicPartition("orders", 8): PartitionState("waiting", "no leader", "us.orders", 6),
    }
    own = encode_partitions([TopicPartition("orders", index) for index in range(PARTITIONS)])
    spark = SimpleNamespace(to_json=lambda: {"place": "local", "slots": 2, "used": 1, "problem": ""}, problem="")
    host = MirrorHost({}, cast(SharedSpark, spark), cast(Any, None), lambda: True)
    host.running["m", 3] = cast(MirrorSourceTask, CopyingTask(lags))
    look = host.look_of("m")
    look.lag, look.states, look.fresh_until_s = FlowLag(tuple(lags)), states, math.inf
    settings = SimpleNamespace(name="m", source_alias="us", flow_name=FlowName("us", "eu"))
    return Asked(
        host,
        cast(MirrorSourceSettings, settings),
        ConnectorReport("RUNNING"),
        [TaskReport(3, "RUNNING", "w:1", {ASSIGNED_PARTITIONS: own})],
        look,
    )


@pytest.fixture(scope="module")
def asked() -> Asked:
    return ten_thousand()


def found(asked: Asked, **query: str) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], search(asked, query)["partitions"])


def test_those_that_do_not_copy_come_first_and_then_the_greatest_lag(asked: Asked) -> None:
    rows = found(asked, top="4")
    assert [(row["partition"], row["state"]) for row in rows] == [
        (7, QUARANTINED),
        (8, "waiting"),
        (9999, "copying"),
        (9998, "copying"),
    ]
    assert (
        rows[0] | {"reason": "too large", "since_ms": 5, "task": 3, "worker_id": "w:1", "is_stopped": True} == rows[0]
    )


def test_a_search_is_by_source_and_target_name_and_by_state(asked: Asked) -> None:
    assert [row["partition"] for row in found(asked, text="US.ORDERS-123")] == [*range(1239, 1229, -1), 123]
    assert [row["partition"] for row in found(asked, state=QUARANTINED)] == [7]
    whole = search(asked, {"state": "copying"})
    assert whole["found"] == PARTITIONS - 2 and whole["states"] == {"copying": 9998, QUARANTINED: 1, "waiting": 1}


async def test_a_report_of_ten_thousand_stopped_partitions_holds_the_loop_for_less_than_20_ms() -> None:
    """Measured in CPU time of the loop's thread, because a busy machine adds to any other."""
    turns: list[float] = []

    async def measure() -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began_s)

    stopped = PartitionState(QUARANTINED, "too large", "us.orders", 5)
    asked = ten_thousand()
    asked.look.states = {TopicPartition("orders", index): stopped for index in range(PARTITIONS)}
    gc.disable()  # as good as in a worker, which collects rarely
    try:
        async with Scope("test") as scope:
            scope.spawn(measure(), "turns")
            for kind in KINDS:
                parts = cast(FlowParts, None)
                given = (asked.host, asked.settings, parts, asked.connector, asked.tasks)
                assert await dashboard_report(kind, *given, {})
    finally:
        gc.enable()
    assert max(turns) < 0.02


def test_an_answer_is_bounded(asked: Asked) -> None:
    assert len(found(asked)) == 50 and len(found(asked, top="100000")) == 200
    with pytest.raises(ConfigError, match="top is 'all'"):
        search(asked, {"top": "all"})
