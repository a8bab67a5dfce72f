"""Which settings remote topics get: Java's rule, and only what differs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.log.topic_admin import ConfigSource, TopicConfig
from connectors.filters import DefaultConfigPropertyFilter
from connectors.topic_sync.cluster_changes import AlterConfig
from connectors.topic_sync.remote_topics import alterations, configs_of_new, unknown_keys, wanted_configs

TARGET_DEFAULTS = DefaultConfigPropertyFilter(("min.insync.replicas", "unclean.*"), source_defaults=False)
SOURCE_DEFAULTS = DefaultConfigPropertyFilter(("min.insync.replicas", "unclean.*"), source_defaults=True)
SOURCE = {
    "cleanup.policy": TopicConfig("compact", ConfigSource.TOPIC),
    "retention.ms": TopicConfig("9", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    "segment.ms": TopicConfig("7", ConfigSource.DYNAMIC_BROKER),
    "segment.bytes": TopicConfig("5", ConfigSource.STATIC_BROKER),
    "flush.ms": TopicConfig("3", ConfigSource.DEFAULT),
    "min.insync.replicas": TopicConfig("2", ConfigSource.TOPIC),
    "unclean.leader.election.enable": TopicConfig("true", ConfigSource.TOPIC),
    "secret": TopicConfig(None, ConfigSource.TOPIC, sensitive=True),
    "fixed": TopicConfig("1", ConfigSource.TOPIC, read_only=True),
}
SET = {"cleanup.policy": "compact", "retention.ms": "9", "segment.ms": "7"}


@pytest.mark.parametrize(
    ("properties", "new", "wanted"),
    [
        (TARGET_DEFAULTS, SET, {**SET, "flush.ms": None}),
        (SOURCE_DEFAULTS, {**SET, "flush.ms": "3"}, {**SET, "flush.ms": "3"}),
    ],
)
def test_javas_rule(
    properties: DefaultConfigPropertyFilter, new: dict[str, str], wanted: dict[str, str | None]
) -> None:
    assert configs_of_new(SOURCE, properties) == new
    assert wanted_configs(SOURCE, properties) == wanted


def test_only_what_differs_is_altered() -> None:
    target = {
        "cleanup.policy": TopicConfig("delete", ConfigSource.DEFAULT),
        "retention.ms": TopicConfig("9", ConfigSource.TOPIC),
        "segment.ms": TopicConfig("7", ConfigSource.DEFAULT),
        "flush.ms": TopicConfig("4", ConfigSource.TOPIC),
    }
    assert alterations("us.a", SOURCE, target, TARGET_DEFAULTS) == [
        AlterConfig("us.a", "cleanup.policy", "delete", "compact"),
        AlterConfig("us.a", "flush.ms", "4", None),
        # The same value, but it would not stay where the target's default changes.
        AlterConfig("us.a", "segment.ms", "7", "7"),
    ]


def test_where_the_target_may_not_be_seen_all_is_sent() -> None:
    found = alterations("us.a", SOURCE, None, TARGET_DEFAULTS)
    assert {change.key: change.after for change in found} == wanted_configs(SOURCE, TARGET_DEFAULTS)


def test_a_key_that_the_target_does_not_know_is_left_out_and_named() -> None:
    target = {key: config for key, config in SOURCE.items() if key != "retention.ms"}
    assert unknown_keys(SOURCE, target, TARGET_DEFAULTS) == ["retention.ms"]
    assert "retention.ms" not in {change.key for change in alterations("t", SOURCE, target, TARGET_DEFAULTS)}


CONFIGS = st.dictionaries(
    st.sampled_from("abc"), st.builds(TopicConfig, st.sampled_from("12"), st.sampled_from(ConfigSource))
)


@given(CONFIGS, CONFIGS, st.booleans())
def test_once_applied_nothing_is_left_to_do(
    source: dict[str, TopicConfig], target: dict[str, TopicConfig], source_defaults: bool
) -> None:
    properties = DefaultConfigPropertyFilter((), source_defaults=source_defaults)
    for change in alterations("t", source, target, properties):
        target[change.key] = (
            TopicConfig("0", ConfigSource.DEFAULT)
            if change.after is None
            else TopicConfig(change.after, ConfigSource.TOPIC)
        )
    assert alterations("t", source, target, properties) == []
