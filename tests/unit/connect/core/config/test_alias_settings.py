"""Settings of transforms, predicates and groups of topics to make."""

from __future__ import annotations

import pytest

from connect.core.config.alias_settings import topic_creation, uses_topic_creation
from connect.core.errors import ConfigError

DEFAULT = {"topic.creation.default.replication.factor": "3", "topic.creation.default.partitions": "-1"}


def test_groups_fall_back_to_the_default_groups_numbers() -> None:
    props = {
        **DEFAULT,
        "topic.creation.groups": "logs,default, small",
        "topic.creation.logs.partitions": "7",
        "topic.creation.logs.include": "log-.*,audit",
    }
    values = topic_creation(props).parse(props)
    assert values["topic.creation.default.include"] == (".*",)
    assert values["topic.creation.default.partitions"] == -1
    assert values["topic.creation.logs.include"] == ("log-.*", "audit")
    assert (values["topic.creation.logs.partitions"], values["topic.creation.logs.replication.factor"]) == (7, 3)
    assert (values["topic.creation.small.partitions"], values["topic.creation.small.include"]) == (-1, ())


@pytest.mark.parametrize("key", list(DEFAULT))
def test_the_default_group_has_no_numbers_of_its_own(key: str) -> None:
    props = {each: value for each, value in DEFAULT.items() if each != key}
    with pytest.raises(ConfigError, match=f'Missing required configuration "{key}"'):
        topic_creation(props)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("default.partitions", "0", "Number of partitions must be positive, or -1 to use the broker's default"),
        ("default.replication.factor", "0", "not larger than the number of brokers in the Kafka cluster, or -1"),
        ("logs.include", "(", "Syntax error in regular expression"),
    ],
)
def test_refused(key: str, value: str, why: str) -> None:
    props = {**DEFAULT, "topic.creation.groups": "logs", f"topic.creation.{key}": value}
    with pytest.raises(ConfigError, match=why):
        topic_creation(props).parse(props)


def test_any_key_turns_it_on() -> None:
    assert uses_topic_creation({"topic.creation.groups": ""})
    assert not uses_topic_creation({"topics": "x"})
