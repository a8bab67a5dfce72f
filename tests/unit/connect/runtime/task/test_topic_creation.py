"""Topics made before their first record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.model import NewTopic
from connect.kafka.log.topic_admin import TopicExists
from connect.runtime.task.source_config import TopicCreation, topic_groups

PROPS = {
    "topic.creation.groups": "wide, compact, default",
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "-1",
    "topic.creation.wide.include": "w.*, x\\d",
    "topic.creation.wide.exclude": "w-not",
    "topic.creation.wide.partitions": " 12 ",
    "topic.creation.compact.include": ".*-compact",
    "topic.creation.compact.replication.factor": "3",
    "topic.creation.compact.cleanup.policy": "compact",
}


class FakeAdmin:
    """Has topics; ``outcomes`` are given once each, then topics are made."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.asked: list[NewTopic] = []
        self.described = 0
        self.outcomes: list[HeliographError] = []
        self.closed = False

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, dict[str, Any]]:
        self.described += 1
        return {topic: {} for topic in topics if topic in self.there}

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, HeliographError | None]:
        (topic,) = topics
        self.asked.append(topic)
        return {topic.name: self.outcomes.pop(0) if self.outcomes else None}

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [
        ("w1", NewTopic("w1", 12, -1)),
        ("x7", NewTopic("x7", 12, -1)),
        ("w-not", NewTopic("w-not", 1, -1)),
        ("a-compact", NewTopic("a-compact", 1, 3, {"cleanup.policy": "compact"})),
        ("w-compact", NewTopic("w-compact", 12, -1)),
        ("else", NewTopic("else", 1, -1)),
    ],
)
async def test_the_first_group_that_matches_makes_the_topic(topic: str, wanted: NewTopic) -> None:
    admin = FakeAdmin()
    creation = TopicCreation(topic_groups(PROPS), cast(Any, admin))
    await creation.ensure(topic)
    await creation.ensure(topic)
    assert (admin.asked, admin.described) == ([wanted], 1)
    await creation.close()
    assert admin.closed


async def test_what_is_there_is_not_made() -> None:
    admin = FakeAdmin("t")
    await TopicCreation(topic_groups(PROPS), cast(Any, admin)).ensure("t")
    assert admin.asked == []


async def test_without_its_keys_nothing_is_made() -> None:
    admin = FakeAdmin()
    assert topic_groups({"name": "c"}) == []
    await TopicCreation([], cast(Any, admin)).ensure("t")
    await TopicCreation(topic_groups(PROPS), None).ensure("t")
    assert admin.described == 0


async def test_outcomes() -> None:
    admin = FakeAdmin()
    creation = TopicCreation(topic_groups(PROPS), cast(Any, admin))
    admin.outcomes = [RetriableError("no answer"), PermanentError("CREATE is missing"), TopicExists("there")]
    with pytest.raises(RetriableError):
        await creation.ensure("t")
    with pytest.raises(PermanentError, match=r"Task failed to create new topic t\. .* CREATE is missing"):
        await creation.ensure("t")
    await creation.ensure("t")
    assert len(admin.asked) == 3


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"topic.creation.default.partitions": "many"}, "topic.creation.default.partitions"),
        ({"topic.creation.default.partitions": "0"}, "topic.creation.default.partitions"),
        ({"topic.creation.default.replication.factor": "0"}, "topic.creation.default.replication.factor"),
        ({"topic.creation.wide.include": "("}, "topic.creation.wide.include"),
    ],
)
def test_wrong_settings_name_their_key(change: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        topic_groups({**PROPS, **change})
    assert raised.value.key == key


def test_the_default_group_is_required() -> None:
    for key in ("partitions", "replication.factor"):
        missing = {each: value for each, value in PROPS.items() if each != f"topic.creation.default.{key}"}
        with pytest.raises(ConfigError, match=rf'Missing required configuration "topic\.creation\.default\.{key}'):
            topic_groups(missing)
