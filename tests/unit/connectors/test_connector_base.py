"""What connectors share: jobs at their intervals, one at a time; altered offsets; latencies for a scraper; reports."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from connect.api.source import RecordMetadata
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connectors import connector_base
from connectors.checkpoint.connector import MirrorCheckpointConnector
from connectors.connector_base import (
    KeptReports,
    Latencies,
    Schedule,
    Task,
    WrittenLatencies,
    check_offsets,
    rows_asked,
    written_metrics,
)
from connectors.heartbeat import MirrorHeartbeatConnector
from tests.kit.virtual_time import in_virtual_time


class Played:
    """When each job ran, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.running = 0

    def job(self, name: str, takes_s: float = 0, fails: int = 0) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            times = self.times.setdefault(name, [])
            times.append(asyncio.get_running_loop().time())
            self.running += 1
            assert self.running == 1
            try:
                await asyncio.sleep(takes_s)
                if len(times) <= fails:
                    raise RetriableError("no broker answers")
            finally:
                self.running -= 1

        return run


@pytest.mark.parametrize(
    ("within_s", "jobs", "seconds", "times"),
    [
        (60, {"topics": (4, 10), "rights": (4, 10)}, 29, {"topics": [10, 20], "rights": [14, 24]}),
        (60, {"topics": (25, 10)}, 70, {"topics": [10, 35, 60]}),
        (None, {"groups": (1000, 1)}, 1002, {"groups": [1, 1001]}),
    ],
    ids=["each at its interval and never two at once", "missed turns are not made up for", "with limits of their own"],
)
@in_virtual_time
async def test_when_jobs_come(
    within_s: float | None, jobs: dict[str, tuple[float, float]], seconds: float, times: dict[str, list[float]]
) -> None:
    played, schedule = Played(), Schedule("us->eu", within_s)
    for name, (takes_s, every_s) in jobs.items():
        schedule.add(name, played.job(name, takes_s), every_s)
    schedule.begin()
    await asyncio.sleep(seconds)
    await schedule.stop()
    assert played.times == times


@in_virtual_time
async def test_one_that_is_asked_for_comes_at_once_and_keeps_its_turns() -> None:
    played = Played()
    schedule = Schedule("us->eu", 60)
    schedule.add("topics", played.job("topics"), 10)
    schedule.add("only asked", played.job("only asked"), None)
    schedule.begin()
    await asyncio.sleep(3)
    for _ in range(3):
        schedule.hurry("topics")
    schedule.hurry("only asked")
    await asyncio.sleep(8)
    await schedule.stop()
    assert played.times == {"topics": [3, 10], "only asked": [3]}


@in_virtual_time
async def test_what_fails_or_hangs_is_said_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    played = Played()
    schedule = Schedule("us->eu", 5)
    schedule.add("topics", played.job("topics", fails=1), 10)
    schedule.add("hangs", played.job("hangs", takes_s=100), None)
    schedule.begin()
    await asyncio.sleep(11)
    schedule.hurry("hangs")
    await asyncio.sleep(10)
    await schedule.stop()
    assert played.times == {"topics": [10, 20], "hangs": [11]}
    failed, hung = caplog.messages
    assert failed == "us->eu: topics failed: no broker answers"
    assert hung == "us->eu: hangs took longer than 5 s (admin.timeout.ms)"


PLACE = {"cluster": "us", "partition": 0}
_SAID = "Source partition {cluster=us, partition=%s} has an invalid value %s for the 'partition' key, which %s"


@pytest.mark.parametrize(
    ("partition", "offset", "only_zero", "words"),
    [
        (PLACE, {"offset": 2**63 - 2}, False, ""),
        ({**PLACE, "partition": 2**31 - 1}, {"offset": 0}, True, ""),
        ({}, None, True, ""),
        (
            {"a": None, "b": True},
            {},
            True,
            "Source partition {a=null, b=true} is missing the 'cluster' key, which is required",
        ),
        (
            {"cluster": 5},
            {},
            True,
            "Source partition {cluster=5} has an invalid value 5 for the 'cluster' key, which must be a string",
        ),
        *(
            ({**PLACE, "partition": value}, {}, True, _SAID % (shown, shown, "must be an integer"))
            for value, shown in (("1", "1"), (True, "true"), (1.0, "1.0"), (2**31, str(2**31)), (None, "null"))
        ),
        ({**PLACE, "partition": -1}, {}, True, _SAID % (-1, -1, "cannot be negative")),
        (PLACE, {}, False, "is missing the 'offset' key, which is required"),
        (PLACE, {"offset": "0"}, True, "has an invalid value 0 for the 'offset' key, which must be an integer"),
        (PLACE, {"offset": 2**63 - 1}, False, f"for the 'offset' key, which is larger than {2**63 - 2}"),
        (PLACE, {"offset": False}, True, "has an invalid value false for the 'offset' key, which must be an integer"),
        (PLACE, {"offset": 1}, True, "has an invalid value 1 for the 'offset' key; the only accepted value is 0"),
        (PLACE, {"offset": -1}, False, "has an invalid value -1 for the 'offset' key, which cannot be negative"),
    ],
)
def test_what_offsets_may_be_altered_to(partition: Any, offset: Any, only_zero: bool, words: str) -> None:
    """In the words of Java's ``MirrorUtils``."""
    if not words:
        assert check_offsets([(partition, offset)], "cluster", "partition", only_zero=only_zero)
        return
    with pytest.raises(PermanentError) as refused:
        check_offsets([(partition, offset)], "cluster", "partition", only_zero=only_zero)
    assert str(refused.value).endswith(words)


NOW_MS = 1_000_000
HEARTBEAT = {
    "name": "beat",
    "connector.class": "MirrorHeartbeatConnector",
    "source.cluster.alias": "us",
    "target.cluster.alias": "eu",
    "emit.heartbeats.interval.seconds": "0",
}


def values(families: list[Metric]) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels.values()): sample.value for one in families for sample in one.samples}


def test_each_group_and_partition_has_its_own_value() -> None:
    """In Java all of a task share one."""
    written, latencies = WrittenLatencies(), Latencies()
    written.checkpoints[Task("us", "eu", "0")] = latencies
    latencies.written(("slow", "us.t", "0"), NOW_MS - 500, NOW_MS)
    latencies.written(("fast", "us.t", "0"), NOW_MS - 20, NOW_MS)
    latencies.written(("fast", "us.t", "0"), NOW_MS - 40, NOW_MS)
    latencies.written(("ahead", "us.t", "0"), NOW_MS + 5, NOW_MS)
    found = values(list(written_metrics([written, WrittenLatencies()], NOW_MS)))
    prefix = "kafka_connect_mirror_MirrorCheckpointConnector_"
    latency = f"{prefix}checkpoint_latency_ms"
    of_fast = {one: found[latency + one, "us", "eu", "fast", "us.t", "0"] for one in ("", "_min", "_max", "_avg")}
    assert of_fast == {"": 40, "_min": 20, "_max": 40, "_avg": 30}
    assert found[f"{prefix}checkpoint_latency_ms", "us", "eu", "slow", "us.t", "0"] == 500
    assert found[f"{prefix}checkpoint_latency_ms", "us", "eu", "ahead", "us.t", "0"] == 0
    assert found[f"{prefix}task_checkpoint_count", "us", "eu", "0"] == 4
    assert found[f"{prefix}task_checkpoint_latency_ms_max", "us", "eu", "0"] == 500
    latencies.done_ms = NOW_MS
    later = values(list(written_metrics([written], NOW_MS + 120_000)))
    assert later[f"{prefix}task_checkpoint_age_ms", "us", "eu", "0"] == 120_000
    assert math.isnan(later[f"{prefix}checkpoint_latency_ms_avg", "us", "eu", "fast", "us.t", "0"])


def test_series_are_bounded_and_those_written_last_stay() -> None:
    latencies = Latencies(most=2)
    for group in ("a", "b", "a", "c"):
        latencies.written((group,), NOW_MS, NOW_MS)
    assert [labels for labels, _ in latencies] == [("a",), ("c",)]
    assert latencies.whole.recorded == 4


async def test_what_a_task_wrote_is_there_while_it_runs() -> None:
    written = WrittenLatencies()
    task = MirrorHeartbeatConnector(written).make_task()
    await task.start(HEARTBEAT)
    (record,) = await task.poll()
    await task.commit_record(record, None)
    await task.commit_record(record, RecordMetadata("heartbeats", 0, 5, NOW_MS))
    name = "kafka_connect_mirror_MirrorHeartbeatConnector_heartbeat_count"
    assert values(list(written_metrics([written], NOW_MS)))[name, "us", "eu"] == 1
    successor = MirrorHeartbeatConnector(written).make_task()
    await successor.start(HEARTBEAT)
    await task.stop()
    assert values(list(written_metrics([written], NOW_MS)))[name, "us", "eu"] == 0
    await successor.stop()
    assert values(list(written_metrics([written], NOW_MS))) == {}


async def test_a_checkpoint_task_measures_what_was_acknowledged() -> None:
    written = WrittenLatencies()
    task = MirrorCheckpointConnector(written).make_task()
    clusters = {f"{side}.cluster.bootstrap.servers": "127.0.0.1:1" for side in ("source", "target")}
    of_task = {"name": "checkpoint", "connector.class": "MirrorCheckpointConnector", "task.index": "3"}
    await task.start({**HEARTBEAT, **clusters, **of_task})
    assert list(written.checkpoints) == [Task("us", "eu", "3")]
    await task.stop()
    assert not written.checkpoints


async def test_callers_share_an_answer_that_is_new_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, reads = 100.0, 0
    monkeypatch.setattr(connector_base, "time", SimpleNamespace(monotonic=lambda: now_s))
    reports = KeptReports()

    async def find() -> int:
        nonlocal reads
        assert threading.current_thread() is not threading.main_thread()
        reads += 1
        await asyncio.sleep(0.01)
        return reads

    assert await asyncio.gather(*(reports.get("a", 5, find) for _ in range(3))) == [1, 1, 1]
    assert await reports.get("b", 5, find) == 2
    now_s += 5
    assert await reports.get("a", 5, find) == 3
    assert list(reports._kept) == ["a"]


async def test_a_cluster_that_hangs_fails_one_report_and_delays_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_base, "_WITHIN_S", 0.2)
    reports, threads = KeptReports(), list[threading.Thread]()

    async def hang() -> None:
        threads.append(threading.current_thread())
        await asyncio.Event().wait()

    async def find() -> str:
        return "found"

    hanging = asyncio.ensure_future(reports.get("a", 5, hang))
    assert await reports.get("b", 5, find) == "found"
    with pytest.raises(RetriableError, match="no answer within"):
        await hanging
    # An executor's thread is joined at the end of the loop.
    assert threads[0].daemon
    assert await reports.get("a", 5, find) == "found"


async def test_a_caller_that_leaves_makes_no_room_for_another_thread() -> None:
    reports, asked, answer = KeptReports(), asyncio.Event(), threading.Event()
    loop, threads = asyncio.get_running_loop(), list[threading.Thread]()

    async def find() -> str:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(asked.set)
        answer.wait(10)
        return "found"

    for _ in range(3):
        calling = asyncio.ensure_future(reports.get("a", 5, find))
        await asked.wait()
        calling.cancel()
        await asyncio.wait({calling})
    answer.set()
    assert await reports.get("a", 5, find) == "found"
    assert len(threads) == 1
    await reports.close()


def test_the_rows_of_a_query_are_bounded() -> None:
    assert [rows_asked(text) for text in ("0", "20", "9" * 5000)] == [0, 20, 1000]
    with pytest.raises(ConfigError, match="number of rows"):
        rows_asked("-1")
