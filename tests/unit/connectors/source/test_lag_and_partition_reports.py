"""What a mirror tells over REST of its partitions and its lag."""

from __future__ import annotations

import pytest

from connect.api.source import TaskReport
from connect.core.errors import ConfigError
from connectors.config.connector_configs import MirrorSourceSettings, source_settings
from connectors.flow_progress import ClusterContact, Contact, FlowLag, lag_of
from connectors.formats.gap import Gap, GapKind
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.source.lag_and_partition_reports import lag_report, partition_rows
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
    contact = Contact(
        ClusterContact(answers=False, answered_ms=5_000, moved_ms=4_000), ClusterContact(answers=True)
    ).to_json(9_000)
    known = FlowLag(tuple(lag_of("a", index, "us.a", 9, 0, 9, 100) for index in range(2)), known_ms=3_000)
    reported = lag_report(settings(), known.lost("us->eu", "no answer", 5_000), contact, {"top": "2"})
    assert [reported[name] for name in ("partitions", "records", "bytes", "ms")] == [2, -1, -1, -1]
    assert reported["topics"]["a"]["records"] == -1
    assert (reported["unknown"], reported["unknown_since_ms"], reported["furthest"]) == (
        {"us->eu": "no answer"},
        5_000,
        [],
    )
    assert (reported["source_answers"], reported["target_answers"], reported["last_fetch_age_ms"]) == (
        False,
        True,
        5_000,
    )
    assert reported["last_produce_age_ms"] is None
    never = FlowLag(()).lost("us->eu", "no answer").to_json(1)
    assert (never["records"], never["ms"], never["unknown_since_ms"]) == (-1, -1, None)
    assert known.to_json(1)["unknown_since_ms"] is None


async def test_others_of_the_loop_have_their_turn_while_thousands_are_told_of() -> None:
    partitions = ",".join(f"a-{index}" for index in range(3000))
    turns, rows = await turns_during(partition_rows(settings(), [task(0, "RUNNING", partitions)], {}))
    assert len(rows) == 3000 and turns >= 3000
