"""Topics made on a cluster that does not know every setting of another release."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import cast

import pytest

from connect.core.errors import PermanentError
from connect.core.model import NewTopic
from connect.kafka.log.topic_admin import Admin, TopicExists
from connectors.topic_sync.cluster_changes import AddPartitions, CreateTopic, Refusals, add_partitions, make_topics


class OfLater:
    """A cluster that knows neither ``message.format.version`` nor ``old``, and takes no topic called ``bad``."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, str]] = {}
        self.refuses = {"bad"}

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Exception | None]:
        return {topic.name: self._create(topic) for topic in topics}

    def _create(self, topic: NewTopic) -> Exception | None:
        if topic.name in self.topics:
            return TopicExists("it is there")
        for key in ("message.format.version", "old"):
            if key in topic.configs:
                return PermanentError(f"cannot create topic: INVALID_CONFIG (40): Unknown topic config name: {key}")
        if topic.name in self.refuses:
            return PermanentError("cannot create topic: INVALID_TOPIC_EXCEPTION (17)")
        self.topics[topic.name] = dict(topic.configs)
        return None

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, Exception | None]:
        return {topic: PermanentError("cannot grow") if topic in self.refuses else None for topic in counts}


async def test_a_topic_is_made_without_settings_the_cluster_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = OfLater()
    cluster.topics["there"] = {}
    old = {"message.format.version": "0.10.0", "old": "1", "retention.ms": "5"}
    changes = [CreateTopic(name, name, 1, 1, dict(old)) for name in ("a", "bad", "there")]
    made = await make_topics(cast(Admin, cluster), [*changes, CreateTopic("b", "b", 1, 1)], Refusals("us->eu"))
    assert {change.topic for change in made} == {"a", "b", "there"}
    assert cluster.topics["a"] == {"retention.ms": "5"}
    reported = [record.getMessage() for record in caplog.records]
    assert "us->eu: a is created without old, which the target does not know" in reported
    assert "us->eu: topic was not changed: cannot create topic: INVALID_TOPIC_EXCEPTION (17)" in reported


async def test_what_is_refused_at_every_look_is_said_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    cluster, refusals = OfLater(), Refusals("us->eu")

    async def look() -> list[str]:
        caplog.clear()
        await make_topics(cast(Admin, cluster), [CreateTopic("bad", "bad", 1, 1)], refusals)
        await add_partitions(cast(Admin, cluster), [AddPartitions("bad too", "x", 1, 2)], refusals)
        return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]

    cluster.refuses.add("bad too")
    assert len(await look()) == 2
    assert await look() == []
    cluster.refuses.clear()
    assert await look() == []
    cluster.topics.clear()
    cluster.refuses |= {"bad", "bad too"}
    assert len(await look()) == 2
