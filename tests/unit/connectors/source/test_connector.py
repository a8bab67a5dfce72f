"""What MirrorSource's connector says its tasks are before it has seen its clusters; the rest needs real ones."""

from __future__ import annotations

from typing import Any

from connectors.config.connector_configs import source_settings
from connectors.source.connector import MirrorSourceConnector

PROPS = {
    "name": "MirrorSourceConnector",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "source.cluster.alias": "us",
    "target.cluster.alias": "eu",
    "topics": "orders.*",
}
CLUSTER: Any = None
PRESENT = [
    {**PROPS, "topics": ".*", "task.assigned.partitions": "orders-0,orders-2,clicks-0", "task.index": "0"},
    {**PROPS, "topics": ".*", "task.assigned.partitions": "orders-1,clicks-1", "task.index": "1"},
    {**PROPS, "topics": ".*", "task.assigned.partitions": "orders-3", "task.index": "2"},
]


def unstarted() -> MirrorSourceConnector:
    settings = source_settings(PROPS, {"offset.storage.topic": "mm2-offsets.us.internal"})
    return MirrorSourceConnector(settings, PROPS, CLUSTER, CLUSTER, CLUSTER)


def test_before_the_first_look_tasks_keep_what_topics_still_takes() -> None:
    told = unstarted().task_configs(2, PRESENT)
    assert [config["task.assigned.partitions"] for config in told] == ["orders-0,orders-2", "orders-1,orders-3"]
    assert {config["topics"] for config in told} == {"orders.*"}, "with what the connector is told now"


def test_without_tasks_there_is_nothing_to_keep() -> None:
    assert unstarted().task_configs(2) == []
