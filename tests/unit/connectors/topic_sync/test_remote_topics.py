"""Which remote topics are made and grown, from both clusters' metadata."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log.topic_admin import ConfigSource, TopicConfig
from connectors.filters import DefaultConfigPropertyFilter
from connectors.topic_sync.cluster_changes import AddPartitions, CreateTopic
from connectors.topic_sync.remote_topics import absent, creations, growths, name_topics

ALL = DefaultConfigPropertyFilter((), source_defaults=False)
COMPACT = {"cleanup.policy": TopicConfig("compact", ConfigSource.TOPIC)}


def topic(name: str, partitions: int) -> TopicMetadata:
    return TopicMetadata(name, None, 0, {index: PartitionMetadata(0, 0, (0,), 0) for index in range(partitions)})


def remote(name: str) -> str:
    return f"us.{name}"


def alone(name: str) -> tuple[str]:
    return (remote(name),)


def test_what_is_missing_is_made_and_what_is_short_grows() -> None:
    topics = [topic("a", 3), topic("b", 2), topic("c", 1)]
    naming = name_topics(alone, ["a", "b", "c"])
    target = {"us.b": topic("us.b", 1), "us.c": topic("us.c", 4)}
    new = absent(naming, topics, target)
    assert creations(naming, new, {"a": COMPACT}, ALL, -1) == [
        CreateTopic("us.a", "a", 3, -1, {"cleanup.policy": "compact"})
    ]
    assert growths(naming, topics, target) == [AddPartitions("us.b", "b", 1, 2)]


def test_nothing_is_made_without_its_settings() -> None:
    naming = name_topics(alone, ["a"])
    assert creations(naming, [topic("a", 1)], {}, ALL, 1) == []


def test_a_name_that_kafka_does_not_allow_is_said_and_the_others_go_on() -> None:
    longest = "x" * 246
    naming = name_topics(alone, ["a", longest, longest + "y"])
    assert naming.remote == {"a": "us.a", longest: "us." + longest}
    assert "has 250 characters, and Kafka allows 249" in naming.problems[longest + "y"]
    assert "is not valid in Kafka" in name_topics(lambda name: ("a b",), ["a"]).problems["a"]


def test_two_topics_never_share_a_remote_one() -> None:
    def lower(name: str) -> tuple[str]:
        return (name.lower(),)

    fresh = name_topics(lower, ["A", "a", "b"])
    assert fresh.remote == {"b": "b"}
    assert "topics A and a would share the remote topic a" in fresh.problems["A"]
    # One that is copied already goes on.
    assert name_topics(lower, ["A", "a", "b"], frozenset({"A"})).remote == {"A": "a", "b": "b"}
    assert name_topics(lower, ["A", "a", "b"], frozenset({"A", "a"})).remote == {"b": "b"}


def test_what_is_filled_is_not_what_others_fill_from_another_topic() -> None:
    """Two connectors share out orders; orders.errors is a topic of the source as well."""

    def usual(topic: str) -> tuple[str, str]:
        return f"us.{topic}", f"us.{topic}.errors"

    def errors(topic: str) -> tuple[str, str]:
        return usual(topic)[::-1]

    topics = ["bills", "orders", "orders.errors"]
    for names in (usual, errors):
        fresh = name_topics(names, topics)
        assert fresh.remote == {"bills": names("bills")[0]}
        assert fresh.undecided == {topic: names(topic)[0] for topic in topics[1:]}
        for topic in topics[1:]:
            assert "orders and orders.errors would share the remote topic us.orders.errors" in fresh.problems[topic]
            held = name_topics(names, topics, {topic})
            assert held.remote == {"bills": names("bills")[0], topic: names(topic)[0]}
            assert not held.undecided
        assert name_topics(names, topics, set(topics)).remote == {"bills": names("bills")[0]}


def test_what_others_fill_from_several_topics_is_theirs_to_say() -> None:
    naming = name_topics(lambda topic: (f"us.{topic}", "us.audit"), ["a", "b"])
    assert naming.remote == {"a": "us.a", "b": "us.b"}


@given(st.dictionaries(st.text("ab", min_size=1, max_size=2), st.tuples(st.integers(1, 4), st.integers(0, 4))))
def test_once_applied_nothing_is_left_to_do(counts: dict[str, tuple[int, int]]) -> None:
    topics = [topic(name, wanted) for name, (wanted, _) in counts.items()]
    naming = name_topics(alone, list(counts))
    target = {remote(name): topic(remote(name), has) for name, (_, has) in counts.items() if has}
    made = creations(naming, absent(naming, topics, target), dict.fromkeys(counts, COMPACT), ALL, 1)
    target |= {change.topic: topic(change.topic, change.partitions) for change in made}
    target |= {change.topic: topic(change.topic, change.want) for change in growths(naming, topics, target)}
    assert absent(naming, topics, target) == []
    assert growths(naming, topics, target) == []
    for name, (wanted, has) in counts.items():
        assert len(target[remote(name)].partitions) == max(wanted, has)
