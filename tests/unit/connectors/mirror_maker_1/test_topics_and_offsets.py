"""MirrorMaker 1: lists of topics, shares of a group, older keys, what stands beside committed offsets."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.config.properties import parse_properties
from connect.core.errors import ConfigError
from connect.kafka.log.committed_offsets import Committed
from connect.kafka.log.offsets import EARLIEST, LATEST
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.mirror_maker_1 import consumer_group
from connectors.mirror_maker_1.config import RENAMED, WITHOUT_EFFECT, FileSide, MirrorSettings, Options, mirror_settings
from connectors.mirror_maker_1.consumer_group import decode_pair, encode_pair, start_of, topic_id_of
from connectors.mirror_maker_1.topics import takes
from connectors.source.positions.stored_positions import Start

ONE = TopicPartition("orders", 3)
GROUP = "group-a-kafka-mirror-maker"
POSITION = Position("orders", 3, UUID(int=1), 40, 2, "orders", 3, UUID(int=2), 41, GROUP, 1000, 1, 39)


@pytest.mark.parametrize("raw", ["orders,clicks.*", "orders|clicks.*", " 'orders, clicks.*' ", '"orders,clicks.*"'])
def test_commas_are_alternatives_and_quotes_are_nothing(raw: str) -> None:
    takes_it = takes(raw, None)
    every = ("orders", "clicks", "clicks-eu", "orders2", "click")
    assert [topic for topic in every if takes_it(topic)] == ["orders", "clicks", "clicks-eu"]


def test_a_blacklist_takes_the_others_and_an_old_asterisk_every_topic() -> None:
    takes_it = takes(None, "test.*")
    assert takes_it("orders") and not takes_it("test-1")
    assert takes("*", None)("orders") and takes(" '*' ", None)("clicks")


INTERNAL = ("__consumer_offsets", "__transaction_state", "mm2-configs.us.internal", "x-internal")


@pytest.mark.parametrize("topic", INTERNAL)
def test_internal_topics_are_never_copied(topic: str) -> None:
    assert not takes(".*", None)(topic)
    assert not takes(None, "none")(topic)


def test_internal_topics_that_are_wanted_are_known() -> None:
    present = ["orders", "orders-internal", "__consumer_offsets"]
    assert takes("orders.*", None).left_out(present) == {"orders-internal"}
    assert takes(None, "__.*").left_out(present) == {"orders-internal"}


@pytest.mark.parametrize(
    ("include", "exclude"), [(None, None), ("a", "b"), ("", None), ("(", None), (None, " "), (None, "*")]
)
def test_one_list_that_says_something_is_needed(include: str | None, exclude: str | None) -> None:
    with pytest.raises(ConfigError):
        takes(include, exclude)


def test_a_refused_list_is_named_by_the_option_that_was_written() -> None:
    with pytest.raises(ConfigError, match=r"^--black-list \*orders: .*, in which \.\* matches any text"):
        takes(None, "*orders", "--black-list")
    with pytest.raises(ConfigError, match=r"^--exclude names no topic"):
        takes(None, "")


def test_range_gives_stretches_of_each_topic() -> None:
    shares = consumer_group.assign("range", {"b": ["t", "u"], "a": ["t", "u"]}, {"t": 3, "u": 1})
    assert shares["a"] == [("t", 0), ("t", 1), ("u", 0)]
    assert shares["b"] == [("t", 2)]
    shares = consumer_group.assign("range", {"a": ["t", "t"], "b": ["t"]}, {"t": 4})
    assert shares == {"a": [("t", 0), ("t", 1)], "b": [("t", 2), ("t", 3)]}, "a topic that is named twice"


def test_round_robin_passes_over_who_does_not_want_a_topic() -> None:
    shares = consumer_group.assign("roundrobin", {"a": ["t"], "b": ["t", "u"]}, {"t": 2, "u": 2})
    assert shares["a"] == [("t", 0)]
    assert shares["b"] == [("t", 1), ("u", 0), ("u", 1)]


@given(
    strategy=st.sampled_from(["range", "roundrobin"]),
    wanted=st.dictionaries(st.text("abc", min_size=1), st.sets(st.sampled_from("tuv")), min_size=1, max_size=5),
    counts=st.dictionaries(st.sampled_from("tuv"), st.integers(0, 7)),
)
def test_every_partition_has_one_owner(strategy: str, wanted: dict[str, set[str]], counts: dict[str, int]) -> None:
    shares = consumer_group.assign(strategy, wanted, counts)
    given_out = sorted(one for share in shares.values() for one in share)
    topics = {topic for names in wanted.values() for topic in names}
    every = {TopicPartition(topic, index) for topic in topics for index in range(counts.get(topic, 0))}
    assert given_out == sorted(every)
    assert all(one.topic in wanted[member] for member, share in shares.items() for one in share)


def test_members_and_leaders_speak_javas_bytes() -> None:
    said = consumer_group.encode_subscription(["b", "a"])
    assert said == b"\0\1\0\0\0\2\0\1a\0\1b\xff\xff\xff\xff\0\0\0\0"
    # As a Java consumer of version 0 and one of version 3, with owned partitions, generation and rack, say it.
    assert consumer_group.decode_subscription("m", b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff") == ["a"]
    newer = b"\0\3\0\0\0\1\0\1a\xff\xff\xff\xff\0\0\0\0\0\0\0\5\xff\xff"
    assert consumer_group.decode_subscription("m", newer) == ["a"]
    given_out = consumer_group.encode_assignment([TopicPartition("t", 1), TopicPartition("t", 0)])
    assert given_out == b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
    assert consumer_group.decode_assignment(given_out) == [("t", 0), ("t", 1)]
    assert consumer_group.decode_assignment(b"") == []


@pytest.mark.parametrize("said", [b"\0", b"\0\1\0\0\0\5"])
def test_who_is_no_consumer_is_named(said: bytes) -> None:
    with pytest.raises(consumer_group.UnreadableMember, match="member m of the group"):
        consumer_group.decode_subscription("m", said)


def test_a_position_stands_beside_its_offset() -> None:
    text = encode_pair(POSITION)
    assert len(text) < 1000
    assert decode_pair(ONE, text) == POSITION
    assert topic_id_of(ONE, text) == POSITION.source_topic_id
    assert start_of(ONE, Committed(40, text)) == Start(POSITION, 39, False)


def test_an_offset_that_another_tool_has_set_counts_alone() -> None:
    assert start_of(ONE, Committed(7, "")) == Start(None, 6, False)
    assert start_of(ONE, Committed(7, encode_pair(POSITION))) == Start(POSITION, 6, True)
    assert start_of(ONE, None) == Start(None, None, False)


@pytest.mark.parametrize("text", ["", "somebody's", "heliograph:position:?", "heliograph:position:AAAA"])
def test_what_is_not_ours_is_passed_over(text: str) -> None:
    assert decode_pair(ONE, text) is None


CONSUMER = "bootstrap.servers=a:9092\ngroup.id=g\n"
PRODUCER = "bootstrap.servers=b:9092\n"


def settings(consumer: str = CONSUMER, producer: str = PRODUCER, reported: list[str] | None = None) -> MirrorSettings:
    files = parse_properties(consumer, "c.properties"), parse_properties(producer, "p.properties")
    report = (reported if reported is not None else []).append
    return mirror_settings([files[0]], files[1], Options(takes(".*", None)), report)


def said(consumer: str = CONSUMER, producer: str = PRODUCER) -> list[str]:
    """Of keys; the settings may be refused."""
    reported: list[str] = []
    with suppress(ConfigError):
        settings(consumer, producer, reported)
    return reported


def keys_said(consumer: str = CONSUMER, producer: str = PRODUCER) -> list[str]:
    return [sentence.split(": ")[1] for sentence in said(consumer, producer)]


def test_the_old_documentations_files() -> None:
    """Those of the wiki of 0.8, with brokers beside ZooKeeper."""
    consumer = (
        "zookeeper.connect=zk:2181\nbootstrap.servers=a:9092\ngroupid=mirror\nauto.offset.reset=smallest\n"
        "shallow.iterator.enable=true\nfetch.size=2000000\nconsumer.timeout.ms=-1\n"
    )
    producer = (
        "metadata.broker.list=1:b:9092,c:9093\nproducer.type=async\ncompression.codec=1\nacks=-1\nretries=2147483647\n"
        "queue.enqueueTimeout.ms=-1\nblock.on.buffer.full=true\nmax.in.flight.requests.per.connection=1\n"
    )
    found = settings(consumer, producer)
    (source,) = found.sources
    assert (source.group.group_id, source.group.protocol_type, source.reset_to) == ("mirror", "consumer", EARLIEST)
    assert source.fetching == {"partition_max_bytes": 2_000_000}
    assert found.target.bootstrap == (("b", 9092), ("c", 9093))
    assert found.compression.codec == 1
    assert keys_said(consumer, producer) == [
        *("zookeeper.connect", "groupid", "shallow.iterator.enable", "fetch.size", "consumer.timeout.ms"),
        *("metadata.broker.list", "producer.type", "compression.codec", "acks", "retries"),
        *("queue.enqueueTimeout.ms", "block.on.buffer.full", "max.in.flight.requests.per.connection"),
    ]


def test_files_may_refer_to_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_WORD", "wo-rd")
    (tmp_path / "secrets.properties").write_text("brokers=b:1,c:2\n")
    consumer = (
        CONSUMER
        + "config.providers=e\nconfig.providers.e.class=env\nconfig.providers.e.param.allowlist.pattern=SECRET_.*\n"
        + "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        + 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="${e:SECRET_WORD}";'
    )
    providers = "config.providers=f\nconfig.providers.f.class=file\n"
    producer = providers + f"metadata.broker.list=${{f:{tmp_path}/secrets.properties:brokers}}\n"
    found = settings(consumer, producer)
    assert found.sources[0].connection.password == "wo-rd"
    assert found.target.bootstrap == (("b", 1), ("c", 2))
    assert found.hidden == {"SECRET_WORD"}
    assert keys_said(consumer, producer) == ["metadata.broker.list"]


def test_what_is_not_said_is_javas() -> None:
    found = settings()
    (source,) = found.sources
    assert (source.reset_to, source.strategies, source.read_committed) == (LATEST, ("range",), False)
    assert (source.group.session_timeout_ms, source.group.heartbeat_interval_ms) == (45_000, 3_000)
    assert source.group.lease_ms == 40_000
    assert (source.group.retry_backoff_ms, source.group.retry_backoff_max_ms) == (100, 1_000)
    assert said() == []


@pytest.mark.parametrize(
    ("session_ms", "heartbeat_ms", "lease_ms"),
    [(60_000, 3000, 55_000), (10_000, 3000, 5000), (6000, 3000, 4500), (6000, 1000, 3000), (6000, 6000, 6000)],
)
def test_a_lease_ends_before_its_session(session_ms: int, heartbeat_ms: int, lease_ms: int) -> None:
    times = f"session.timeout.ms={session_ms}\nheartbeat.interval.ms={heartbeat_ms}\n"
    (source,) = settings(CONSUMER + times).sources
    assert source.group.lease_ms == lease_ms


@pytest.mark.parametrize(
    ("consumer", "message"),
    [
        (
            "group.id=g\nzookeeper.connect=z:1\n",
            "^c.properties:2: bootstrap.servers is missing.*in place of zookeeper.connect",
        ),
        ("bootstrap.servers=a:9092\n", "c.properties: group.id is missing"),
        (CONSUMER + "auto.offset.reset=none\n", "c.properties:3: .*none"),
    ],
)
def test_what_is_missing_is_named(consumer: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(consumer)


@pytest.mark.parametrize(("text", "codec"), [("3", 3), ("GZIP", 1), ("Snappy", 2), ("0", 0), ("none", 0)])
def test_codecs_of_0_8(text: str, codec: int) -> None:
    assert settings(producer=PRODUCER + f"compression.codec={text}\n").compression.codec == codec


@pytest.mark.parametrize(
    ("consumer", "producer", "message"),
    [
        (CONSUMER, PRODUCER + "compression.codec=7\n", r"^p.properties:2: .* 7 for configuration compression.codec"),
        (CONSUMER + "fetch.size=many\n", PRODUCER, r"^c.properties:3: .* many for configuration fetch.size"),
        (CONSUMER, "broker.list=1:b\n", r"^p.properties:1: the target: '1:b' in broker.list is not host:port"),
    ],
)
def test_a_value_of_an_old_key_is_refused_under_its_name(consumer: str, producer: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(consumer, producer)


def test_files_without_brokers_are_told_of_their_other_keys() -> None:
    """As those of 0.7 and 0.8 are, where ZooKeeper knew the brokers."""
    files = "zk.connect=z:1\ngroupid=g\nshallowiterator.enable=true\n", "zk.connect=z:1\nproducer.type=async\n"
    assert keys_said(*files) == ["zk.connect", "groupid", "shallowiterator.enable", "zk.connect", "producer.type"]


def test_keys_of_nobody_are_named() -> None:
    (sentence,) = said(CONSUMER + "grup.id=x\n")
    assert sentence == "c.properties: grup.id: is not a key of a consumer and has no effect; is group.id meant?"


@pytest.mark.parametrize(
    ("consumer", "producer"),
    [
        *((line, "") for line in ("interceptor.classes=x", "exclude.internal.topics=false", "check.crcs=no")),
        *(("", line) for line in ("sasl.login.class=x", "enable.metrics.push=true", "interceptor.classes=x")),
    ],
)
def test_keys_of_todays_clients_without_effect_are_named(consumer: str, producer: str) -> None:
    assert keys_said(CONSUMER + consumer, PRODUCER + producer) == [(consumer or producer).partition("=")[0]]


def test_keys_with_effect_are_not_named() -> None:
    tls = "ssl.enabled.protocols=TLSv1.3\nssl.cipher.suites=TLS_AES_256_GCM_SHA384\n"
    connection = tls + "request.timeout.ms=5000\nconnections.max.idle.ms=5000\nclient.id=x\n"
    consumer = "isolation.level=read_committed\nretry.backoff.ms=5\nfetch.min.bytes=5\nclient.rack=a\n"
    assert said(CONSUMER + connection + consumer, PRODUCER + connection + "compression.type=lz4\n") == []
    source = settings(CONSUMER + consumer).sources[0]
    assert (source.group.retry_backoff_ms, source.rack) == (5, "a")


def test_sticky_assignors_are_said_not_to_be_spoken() -> None:
    roundrobin = "partition.assignment.strategy=org.apache.kafka.clients.consumer.RoundRobinAssignor\n"
    assert settings(CONSUMER + roundrobin).sources[0].strategies == ("roundrobin",)
    sticky = "partition.assignment.strategy=org.apache.kafka.clients.consumer.StickyAssignor\n"
    assert settings(CONSUMER + sticky).sources[0].strategies == ("range",)
    assert "StickyAssignor is not supported here" in said(CONSUMER + sticky)[0]


def test_the_page_has_the_table_of_older_keys() -> None:
    page = (Path(__file__).parents[4] / "docs" / "mirrormaker-1.md").read_text().splitlines()
    sides: tuple[FileSide, ...] = ("consumer", "producer")
    for side in sides:
        shown = [key for line in page if f"| {side} |" in line for key in re.findall(r"`([^`]+)`", line)]
        assert sorted(shown) == sorted([*WITHOUT_EFFECT[side], *RENAMED[side]])
