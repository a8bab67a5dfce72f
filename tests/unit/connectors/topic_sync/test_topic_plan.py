"""What a start knows of names that it cannot tell from topics alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connectors.config.connector_configs import source_settings
from connectors.formats.position import Position
from connectors.topic_sync import remote_topics
from connectors.topic_sync.remote_topics import plan_topics

SETTINGS = source_settings(
    {
        "name": "errors",
        "connector.class": "MirrorSourceConnector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        "topics": ".*",
        "transform.sql": "SELECT IF(value LIKE '%x%', 'errors', topic) AS topic FROM records",
        "transform.topic": "errors",
        "transform.other.topics": "${topic}",
    },
    {"offset.storage.topic": "offsets"},
)


class Cluster:
    def __init__(self, *topics: str) -> None:
        self.topics = {name: TopicMetadata(name, None, 0, {0: PartitionMetadata(0, 0, (0,), 0)}) for name in topics}

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self.topics)


async def names(monkeypatch: pytest.MonkeyPatch, stored: dict[str, str], copied: frozenset[str]) -> dict[str, str]:
    async def read_positions(*_: object) -> dict[Any, Position]:
        assert not copied, "who copies knows"
        return {
            topic: Position(topic, 0, None, 5, 0, remote, 0, None, 5, "", -1, -1, 0) for topic, remote in stored.items()
        }

    monkeypatch.setattr(remote_topics, "read_positions", read_positions)
    source: Any = Cluster("orders", "bills", "heartbeats")
    target: Any = Cluster("us.errors")
    configs: Any = None
    return dict((await plan_topics(SETTINGS, source, target, configs, copied)).naming.remote)


async def test_after_a_restart_who_had_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await names(monkeypatch, {}, frozenset()) == {}
    assert await names(monkeypatch, {}, frozenset({"orders"})) == {"orders": "us.errors"}
    assert await names(monkeypatch, {"orders": "us.errors", "bills": "us.bills"}, frozenset()) == {
        "orders": "us.errors"
    }
    assert await names(monkeypatch, {"orders": "us.errors", "bills": "us.errors"}, frozenset()) == {}
