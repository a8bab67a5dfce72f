"""The offset-syncs topic: created, recreated, and each error logged once."""

import logging
from collections.abc import Collection, Iterable
from typing import Any, cast

import pytest

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.core.model import NewTopic
from connect.kafka.log.topic_admin import Admin, TopicExists
from connectors.config.connector_configs import OffsetSyncsSettings
from connectors.source.offset_sync_writer import OffsetSyncsTopic


class Cluster:
    """An admin client's view of topics; ``refusal`` is what a creation meets."""

    def __init__(self) -> None:
        self.topics: dict[str, NewTopic] = {}
        self.refusal: HeliographError | None = None
        self.is_away = False

    async def describe_topics(self, topics: Collection[str]) -> dict[str, dict[str, Any]]:
        if self.is_away:
            raise RetriableError("no broker answers")
        return {name: {} for name in topics if name in self.topics}

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, HeliographError | None]:
        (wanted,) = topics
        if self.refusal is None:
            self.topics[wanted.name] = wanted
        return {wanted.name: self.refusal}


def topic(cluster: Cluster) -> OffsetSyncsTopic:
    return OffsetSyncsTopic(OffsetSyncsSettings("syncs", True, 2, 100), cast(Admin, cluster), "us->eu")


async def test_it_is_made_and_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster()
    one = topic(cluster)
    await one.ensure()
    await one.ensure()
    assert cluster.topics == {"syncs": NewTopic("syncs", 1, 2, {"cleanup.policy": "compact"})}
    assert [record.message for record in caplog.records] == ["us->eu: topic syncs was created"]
    cluster.topics.clear()
    await one.ensure()
    assert "syncs" in cluster.topics
    assert "us->eu: topic syncs was deleted; creating it again" in caplog.text


async def test_a_topic_that_another_worker_makes_first_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.refusal = TopicExists("is there")
    await topic(cluster).ensure()
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_what_is_in_the_way_is_said_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    one = topic(cluster)
    cluster.refusal = SecurityError("cannot create topic syncs; grant CREATE on topic syncs")
    for _ in range(2):
        await one.ensure()
    cluster.is_away = True
    for _ in range(2):
        await one.ensure()
    cluster.is_away, cluster.refusal = False, None
    await one.ensure()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(": ")[2].partition(" (offset-syncs")[0] for line in warnings] == [
        "the offset-syncs topic may be missing: cannot create topic syncs; grant CREATE on topic syncs",
        "the offset-syncs topic may be missing: no broker answers",
    ]
