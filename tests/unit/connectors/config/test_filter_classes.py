"""Filters and policies of installed packages, by their entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint

import pytest

from connect.api import plugins
from connect.core.errors import ConfigError
from connectors import policy
from connectors.config.connector_configs import make_group_filter, make_property_filter, make_topic_filter
from connectors.policy import IdentityReplicationPolicy, find_policy, make_policy


class Only:
    """Takes what ``only`` names; everything a filter can be asked."""

    def __init__(self, props: Mapping[str, str]) -> None:
        if "only" not in props:
            raise ConfigError("only is missing", "only")
        self._only = props["only"]

    def should_replicate_topic(self, topic: str) -> bool:
        return topic == self._only

    should_replicate_group = should_replicate_config_property = should_replicate_source_default = should_replicate_topic


def broken(props: Mapping[str, str]) -> Only:
    raise ValueError(props["password"])


def same_names(props: Mapping[str, str]) -> IdentityReplicationPolicy:
    return IdentityReplicationPolicy(source_alias=props["source.cluster.alias"])


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def points(group: str) -> list[EntryPoint]:
        offered = {
            "heliograph.replication_policies": {"same": "same_names"},
            "heliograph.topic_filters": {"only": "Only", "broken": "broken", "gone": "Nobody"},
        }.get(group, {"only": "Only"})
        return [EntryPoint(name, f"{__name__}:{value}", group) for name, value in offered.items()]

    monkeypatch.setattr(plugins, "entry_points", points)
    policy.offered.cache_clear()
    yield
    policy.offered.cache_clear()


@pytest.mark.parametrize("name", ["only", f"{__name__}.Only"])
def test_filters_are_found_by_both_names(name: str) -> None:
    assert make_topic_filter({"topic.filter.class": name, "only": "a"}).should_replicate_topic("a")
    assert make_group_filter({"group.filter.class": name, "only": "a"}).should_replicate_group("a")
    found = make_property_filter({"config.property.filter.class": name, "only": "a"})
    assert found.should_replicate_config_property("a")
    assert not found.should_replicate_source_default("b")


def test_a_policy_is_found() -> None:
    props = {"replication.policy.class": "same", "source.cluster.alias": "us"}
    assert make_policy(props).format_remote_topic("us", "a") == "a"
    assert find_policy("same") == "same"
    assert find_policy("other") is None


def test_what_is_not_known_is_answered_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        make_topic_filter({"topic.filter.class": "gone"})
    assert "topic.filter.class gone is not known" in str(caught.value)
    for name in ("org.apache.kafka.connect.mirror.DefaultTopicFilter", f"{__name__}.Only", "heliograph.topic_filters"):
        assert name in str(caught.value)


def test_what_a_class_refuses_is_passed_on_and_what_it_raises_is_not() -> None:
    with pytest.raises(ConfigError, match="only is missing"):
        make_topic_filter({"topic.filter.class": "only"})
    with pytest.raises(ConfigError) as caught:
        make_topic_filter({"topic.filter.class": "broken", "password": "s3cret"})
    assert str(caught.value) == "topic.filter.class broken cannot be created: ValueError"
