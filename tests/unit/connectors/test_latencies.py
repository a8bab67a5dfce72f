"""Latencies of checkpoints and heartbeats, and what of them a scraper gets."""

from __future__ import annotations

import math

from prometheus_client.metrics_core import Metric

from connect.api.source import RecordMetadata
from connectors.checkpoint.connector import MirrorCheckpointConnector
from connectors.connector_base import Latencies, Task, WrittenLatencies, written_metrics
from connectors.heartbeat import MirrorHeartbeatConnector

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
    of_fast = {
        name: found[f"{prefix}checkpoint_latency_ms{name}", "us", "eu", "fast", "us.t", "0"]
        for name in ("", "_min", "_max", "_avg")
    }
    assert of_fast == {"": 40, "_min": 20, "_max": 40, "_avg": 30}
    assert found[f"{prefix}checkpoint_latency_ms", "us", "eu", "slow", "us.t", "0"] == 500
    assert found[f"{prefix}checkpoint_latency_ms", "us", "eu", "ahead", "us.t", "0"] == 0
    assert found[f"{prefix}task_checkpoint_count", "us", "eu", "0"] == 4
    assert found[f"{prefix}task_checkpoint_latency_ms_max", "us", "eu", "0"] == 500
    later = values(list(written_metrics([written], NOW_MS + 120_000)))
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
    await task.start(
        {
            "name": "checkpoint",
            "connector.class": "MirrorCheckpointConnector",
            "source.cluster.alias": "us",
            "target.cluster.alias": "eu",
            "source.cluster.bootstrap.servers": "127.0.0.1:1",
            "target.cluster.bootstrap.servers": "127.0.0.1:1",
            "task.index": "3",
        }
    )
    assert list(written.checkpoints) == [Task("us", "eu", "3")]
    await task.stop()
    assert not written.checkpoints
