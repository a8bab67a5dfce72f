"""What a mirror tells over REST of its partitions and its lag, and what the dashboard shows of it."""

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
from connectors.config.connector_configs import MirrorSourceSettings, source_settings
from connectors.flow_progress import ClusterContact, Contact, FlowLag, Meters, PartitionLag, PartitionView, lag_of
from connectors.formats.gap import Gap, GapKind
from connectors.formats.types import QUARANTINED, FlowName, TopicPartition
from connectors.internal_topics import PartitionState
from connectors.source.mirror_reports import DASHBOARD, Asked, dashboard_report, lag_report, partition_rows, search
from connectors.source.task import MirrorSourceTask
from connectors.source.worker_context import FlowParts, MirrorHost, SharedSpark
from connectors.topic_sync.partition_assignment import ASSIGNED_PARTITIONS, encode_partitions
from tests.kit.turns import turns_during


def settings() -> MirrorSourceSettings:
    props = {"name": "us-eu", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
    return source_settings(props, {"offset.storage.topic": "offsets"})


def task(number: int, state: str, partitions: str) -> TaskReport:
    return TaskReport(number, state, "w:8083", {"task.assigned.partitions": partitions})


async def test_a_partition_is_as_noted_or_as_its_task() -> None:
    gap = Gap(GapKind.SOURCE_GAP, 20, 26, go_on_at=27)
    noted = {
        TopicPartition("a", 1): PartitionState("source-gap", "it begins at 27", "us.a.1c9bd204", 5, gap),
        TopicPartition("gone", 0): PartitionState("stopped", "of a topic that no task has", "us.gone", 5),
    }
    tasks = [task(0, "RUNNING", "a-0,a-1"), task(1, "PAUSED", "b-0"), TaskReport(2, "UNASSIGNED", "", {})]
    rows = await partition_rows(settings(), tasks, noted)
    assert [(row["topic"], row["partition"], row["state"], row["target_topic"]) for row in rows] == [
        ("a", 0, "running", "us.a"),
        ("a", 1, "source-gap", "us.a.1c9bd204"),
        ("b", 0, "paused", "us.b"),
    ]
    assert (rows[1]["gap"]["first"], rows[1]["gap"]["last"]) == (20, 26)
    assert "PATCH /connectors/us-eu/offsets" in rows[1]["advice"]
    assert rows[0]["advice"] == ""


def test_a_lag_names_as_many_as_are_asked_for() -> None:
    lag = FlowLag(tuple(lag_of("a", index, "us.a", 0, 0, index, 100) for index in range(5)), {"a-9": "no leader"})
    reported = lag_report(settings(), lag, {"source_answers": True}, {"top": "2"})
    assert (reported["flow"], reported["records"], reported["unknown"]) == ("us->eu", 10, {"a-9": "no leader"})
    assert [one["partition"] for one in reported["furthest"]] == [4, 3]
    for wrong in ("", "-1", "x", "٣"):
        with pytest.raises(ConfigError, match="the number of rows to show"):
            lag_report(settings(), lag, {}, {"top": wrong})


def test_a_lag_that_is_not_known_is_never_zero() -> None:
    silent = ClusterContact(answers=False, answered_ms=5_000, moved_ms=4_000)
    contact = Contact(silent, ClusterContact(answers=True)).to_json(9_000)
    known = FlowLag(tuple(lag_of("a", index, "us.a", 9, 0, 9, 100) for index in range(2)), known_ms=3_000)
    reported = lag_report(settings(), known.lost("us->eu", "no answer", 5_000), contact, {"top": "2"})
    assert reported["topics"]["a"]["records"] == -1
    expected: dict[str, Any] = {
        **dict.fromkeys(("records", "bytes", "ms"), -1), "partitions": 2, "unknown": {"us->eu": "no answer"},
        "unknown_since_ms": 5_000, "furthest": [], "source_answers": False, "target_answers": True,
        "last_fetch_age_ms": 5_000, "last_produce_age_ms": None,
    }  # fmt: skip
    assert reported | expected == reported
    never = FlowLag(()).lost("us->eu", "no answer").to_json(1)
    assert (never["records"], never["ms"], never["unknown_since_ms"]) == (-1, -1, None)
    assert known.to_json(1)["unknown_since_ms"] is None


async def test_others_of_the_loop_have_their_turn_while_thousands_are_told_of() -> None:
    partitions = ",".join(f"a-{index}" for index in range(3000))
    turns, rows = await turns_during(partition_rows(settings(), [task(0, "RUNNING", partitions)], {}))
    assert len(rows) == 3000 and turns >= 3000


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
    own_task = TaskReport(3, "RUNNING", "w:1", {ASSIGNED_PARTITIONS: own})
    return Asked(host, cast(MirrorSourceSettings, settings), ConnectorReport("RUNNING"), [own_task])


@pytest.fixture(scope="module")
def asked() -> Asked:
    return ten_thousand()


def found(asked: Asked, **query: str) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], search(asked, query)["partitions"])


def test_those_that_do_not_copy_come_first_and_then_the_greatest_lag(asked: Asked) -> None:
    rows = found(asked, top="4")
    states = {7: QUARANTINED, 8: "waiting", 9999: "copying", 9998: "copying"}
    assert [(row["partition"], row["state"]) for row in rows] == list(states.items())
    first = {"reason": "too large", "since_ms": 5, "task": 3, "worker_id": "w:1", "is_stopped": True}
    assert rows[0] | first == rows[0]


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
            for kind in DASHBOARD:
                assert await dashboard_report(kind, asked, cast(FlowParts, None), {})
    finally:
        gc.enable()
    assert max(turns) < 0.02


def test_an_answer_is_bounded(asked: Asked) -> None:
    assert len(found(asked)) == 50 and len(found(asked, top="100000")) == 200
    with pytest.raises(ConfigError, match="top is 'all'"):
        search(asked, {"top": "all"})
