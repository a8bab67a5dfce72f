"""MirrorHeartbeat without a broker, and which flows are alive by what heartbeats tell."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from connect.api.source import BYTES
from connect.cli.commands.topology import age_words, show_topology, topology_as_json
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import NewTopic
from connect.core.status_and_offset_topics import encode_key, encode_value
from connect.kafka.log import compacted_topic
from connect.kafka.log.topic_admin import TopicExists
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors import heartbeat
from connectors.connector_base import WrittenLatencies
from connectors.formats.mirror_records import Heartbeat
from connectors.heartbeat import (
    Age,
    ClusterHeartbeats,
    ConfiguredFlow,
    FlowHealth,
    FlowState,
    MirrorHeartbeatConnector,
    MirrorHeartbeatTask,
    TopicHeartbeats,
    Way,
    flow_health,
    has_stopped,
    way_health,
)
from connectors.policy import DefaultReplicationPolicy

PROPS = {
    "name": "MirrorHeartbeatConnector",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
    "source.cluster.alias": "us",
    "target.cluster.alias": "eu",
    "target.cluster.bootstrap.servers": "127.0.0.1:1",
    "heartbeats.topic.replication.factor": "1",
    "enabled": "false",
}


class Target:
    """Stands in for the admin client: answers as it is told, and remembers what it was asked for."""

    def __init__(self, answers: Sequence[HeliographError | None]) -> None:
        self._answers = list(answers)
        self.asked: list[NewTopic] = []
        self.settings: ConnectionSettings | None = None
        self.closed = False

    def __call__(self, props: object, settings: ConnectionSettings, name: str, fewer_replicas: str) -> Target:
        assert fewer_replicas == "set heartbeats.topic.replication.factor lower"
        self.settings = settings
        return self

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, HeliographError | None]:
        [topic] = topics
        self.asked.append(topic)
        answer = self._answers.pop(0)
        if isinstance(answer, RetriableError):
            raise answer
        return {topic.name: answer}

    async def close(self) -> None:
        self.closed = True


def target(monkeypatch: pytest.MonkeyPatch, *answers: HeliographError | None) -> Target:
    made = Target(answers)
    monkeypatch.setattr(heartbeat, "open_admin", made)
    return made


async def test_the_topic_is_made_even_where_nothing_is_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = target(monkeypatch, None)
    connector = MirrorHeartbeatConnector()
    await connector.start({**PROPS, "emit.heartbeats.enabled": "false", "target.admin.client.id": "mine"})
    assert admin.asked == [NewTopic("heartbeats", 1, 1, {"cleanup.policy": "compact"})]
    assert admin.settings is not None
    assert admin.settings.client_id == "mine|us->eu|MirrorHeartbeatConnector|heartbeats-target-admin"
    assert await connector.task_configs(5) == []
    await connector.stop()
    assert admin.closed


@pytest.mark.parametrize(("every_s", "tasks"), [("1", 1), ("-1", 0), ("-60", 0)])
async def test_one_task_with_the_connectors_own_settings_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, every_s: str, tasks: int
) -> None:
    target(monkeypatch, TopicExists("there"))
    connector, props = MirrorHeartbeatConnector(), {**PROPS, "emit.heartbeats.interval.seconds": every_s}
    await connector.start(props)
    assert await connector.task_configs(5) == [props] * tasks
    assert isinstance(connector.make_task(), MirrorHeartbeatTask)
    await connector.stop()


async def test_what_may_pass_is_tried_again_behind_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_topic, "_FIRST_RETRY_MS", 0)
    too_few = PermanentError("cluster eu: cannot create topic heartbeats: INVALID_REPLICATION_FACTOR")
    admin = target(monkeypatch, RetriableError("no broker answers"), too_few, None)
    connector = MirrorHeartbeatConnector()
    await connector.start(PROPS)
    async with asyncio.timeout(60):
        while len(admin.asked) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(admin.asked) == 3
    await connector.stop()


@pytest.mark.parametrize(
    ("refusal", "level"),
    [(SecurityError("grant CREATE"), logging.WARNING), (PermanentError("INVALID_CONFIG"), logging.ERROR)],
)
async def test_a_refusal_is_told_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: HeliographError, level: int
) -> None:
    admin = target(monkeypatch, refusal)
    connector = MirrorHeartbeatConnector()
    await connector.start(PROPS)
    assert [each.levelno for each in caplog.records if str(refusal) in each.getMessage()] == [level]
    assert await connector.task_configs(1) == [PROPS]
    await connector.stop()
    assert len(admin.asked) == 1


async def test_a_start_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = target(monkeypatch)
    hanging = asyncio.Event()

    async def create_topics(topics: Iterable[NewTopic]) -> dict[str, HeliographError | None]:
        await hanging.wait()
        return {}

    monkeypatch.setattr(admin, "create_topics", create_topics)
    connector = MirrorHeartbeatConnector()
    async with asyncio.timeout(60):
        await connector.start({**PROPS, "admin.timeout.ms": "1"})
        await connector.stop()


async def test_settings_that_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"source\.cluster\.alias"):
        await MirrorHeartbeatConnector().start({"name": "x", "connector.class": "y"})
    unreachable = {key: value for key, value in PROPS.items() if not key.startswith("target.cluster.b")}
    with pytest.raises(ConfigError, match=r"bootstrap.servers"):
        await MirrorHeartbeatConnector().start(unreachable)


async def test_a_heartbeat_says_who_and_when() -> None:
    task = MirrorHeartbeatTask(WrittenLatencies())
    await task.start({**PROPS, "emit.heartbeats.interval.seconds": "0"})
    before_ms = time.time_ns() // 1_000_000
    [record] = await task.poll()
    assert record.timestamp_ms is not None
    assert before_ms <= record.timestamp_ms <= time.time_ns() // 1_000_000
    assert (record.topic, record.partition) == ("heartbeats", 0)
    assert (record.key_schema, record.value_schema) == (BYTES, BYTES)
    assert Heartbeat.decode(record.key, record.value) == Heartbeat("us", "eu", record.timestamp_ms)
    assert encode_key("c", record.source_partition) == b'["c",{"sourceClusterAlias":"us","targetClusterAlias":"eu"}]'
    assert encode_value(record.source_offset) == b'{"offset":0}'


ALIASES = {"sourceClusterAlias": "us", "targetClusterAlias": "eu"}


async def test_offsets_of_heartbeats() -> None:
    connector = MirrorHeartbeatConnector()
    assert await connector.alter_offsets(PROPS, [(ALIASES, {"offset": 0}), ({"rubbish": 1}, None)])
    for partition, offset in (
        ({"sourceClusterAlias": "us"}, {"offset": 0}),
        ({**ALIASES, "targetClusterAlias": 5}, {"offset": 0}),
        (ALIASES, {"offset": 1}),
        (ALIASES, {}),
    ):
        with pytest.raises(PermanentError, match=r"^Source (partition|offset) "):
            await connector.alter_offsets(PROPS, [(partition, offset)])


NOW_MS = 1_700_000_000_000
POLICIES = (DefaultReplicationPolicy(),)
DOCS = Path(__file__).parents[3] / "docs" / "operations.md"


def reported(topic: str, read_from_s: float | None = None, **seconds_ago: float) -> TopicHeartbeats:
    """``us_eu=5``: the newest of us->eu is five seconds old."""
    newest = {tuple(flow.split("_")): NOW_MS - int(ago * 1000) for flow, ago in seconds_ago.items()}
    since = None if read_from_s is None else NOW_MS - int(read_from_s * 1000)
    return TopicHeartbeats(topic, newest, since)  # type: ignore[arg-type]


def seen(alias: str, *topics: TopicHeartbeats) -> ClusterHeartbeats:
    return ClusterHeartbeats(alias, topics, POLICIES)


CLUSTERS = {
    "us": seen("us", reported("heartbeats", eu_us=720.0, ap_us=0.4), reported("ap.heartbeats", us_ap=0.9, xx_ap=0.2)),
    "eu": seen(
        "eu",
        reported("heartbeats", us_eu=0.6, old_eu=90_000.0),
        reported("us.heartbeats", eu_us=720.8, ap_us=1.2),
        reported("us.ap.heartbeats", xx_ap=1.9),
    ),
    "ap": ClusterHeartbeats("ap", policies=POLICIES, error="cluster ap: 10.0.0.9:9092 does not answer"),
}
WANTED = [
    ConfiguredFlow("us", "eu", True, 1),
    ConfiguredFlow("eu", "us", True, 1),
    ConfiguredFlow("ap", "us", True, 1),
    ConfiguredFlow("ap", "eu", False, 1),
    ConfiguredFlow("eu", "ap", False, None),
    ConfiguredFlow("us", "ap", True, 1),
]


@pytest.mark.parametrize(
    ("topics", "every_s", "state", "age"),
    [
        ((reported("heartbeats", us_eu=31),), 1, FlowState.STOPPED, Age(31.0)),
        ((reported("heartbeats", us_eu=31),), 11, FlowState.ALIVE, Age(31.0)),  # three of its own intervals
        ((reported("heartbeats", us_eu=-5),), 1, FlowState.ALIVE, Age(0.0)),  # a clock that is ahead
        ((reported("heartbeats", us_eu=5),), None, FlowState.OFF, Age(5.0)),
        ((reported("heartbeats", 7200, ap_eu=1),), 1, FlowState.STOPPED, Age(7200.0, at_least=True)),
        ((reported("heartbeats", 7, ap_eu=1),), 1, FlowState.STOPPED, Age(7.0, at_least=True)),
        ((), 1, FlowState.NONE, None),
        ((reported("us.heartbeats", us_eu=5),), 1, FlowState.NONE, None),  # of another cluster that is called so
    ],
)
def test_states_of_a_flow(
    topics: tuple[TopicHeartbeats, ...], every_s: int | None, state: FlowState, age: Age | None
) -> None:
    wanted = [ConfiguredFlow("us", "eu", True, every_s)]
    found, *_ = flow_health(wanted, {"eu": ClusterHeartbeats("eu", topics, POLICIES)}, NOW_MS, 30)
    assert (found.state, found.age) == (state, age)


def test_ways_are_told_by_names_of_mirrored_topics() -> None:
    assert [(way.cluster, way.through, way.state) for way in way_health(WANTED, CLUSTERS.values(), NOW_MS, 30)] == [
        ("eu", ("us",), FlowState.ALIVE),
        ("eu", ("us", "ap"), FlowState.ALIVE),
        ("us", ("ap",), FlowState.ALIVE),
    ]
    empty = way_health(WANTED, [seen("eu", reported("us.heartbeats"))], NOW_MS, 30)
    assert [(way.state, way.age) for way in empty] == [(FlowState.NONE, None)]


@pytest.mark.parametrize(
    ("topic", "state"),
    [
        (reported("us.heartbeats", eu_us=45), FlowState.ALIVE),  # of a flow that sends one a minute
        (reported("us.heartbeats", eu_us=181), FlowState.STOPPED),
        (reported("us.heartbeats", xx_us=45), FlowState.STOPPED),  # nobody knows how often
        (reported("us.heartbeats", eu_us=45, ap_us=40), FlowState.ALIVE),  # the worker of ap->us may have stopped
        (reported("us.heartbeats", eu_us=200, ap_us=3), FlowState.ALIVE),
        (reported("us.heartbeats", eu_us=200, ap_us=40), FlowState.STOPPED),
    ],
)
def test_a_way_lives_as_long_as_a_flow_whose_heartbeats_come_over_it(topic: TopicHeartbeats, state: FlowState) -> None:
    wanted = [ConfiguredFlow(*one) for one in (("us", "eu", True, 60), ("eu", "us", False, 60), ("ap", "us", True, 1))]
    (way,) = way_health(wanted, [seen("eu", topic)], NOW_MS, 30)
    assert (way.state, way.in_file) == (state, True)


FLOWS = [ConfiguredFlow("us", "eu", True, 1), ConfiguredFlow("eu", "us", False, 1)]


@pytest.mark.parametrize(
    ("wanted", "on_us", "on_eu", "arrived", "stopped"),
    [
        (FLOWS, 1.0, 1.0, reported("us.heartbeats", eu_us=2), False),
        (FLOWS, 1.0, 1.0, reported("us.heartbeats", eu_us=700), True),  # the worker lives and does not mirror
        (FLOWS, 1.0, 1.0, reported("us.heartbeats"), True),
        (FLOWS, 1.0, 700.0, reported("us.heartbeats", eu_us=2), True),
        (FLOWS, 700.0, 1.0, reported("us.heartbeats", eu_us=700), True),
        # What somebody else mirrors, or no longer does, is not of this file.
        (FLOWS, 1.0, 1.0, reported("xx.heartbeats", eu_xx=700), False),
        ([ConfiguredFlow("us", "eu", False, 1), FLOWS[1]], 1.0, 1.0, reported("us.heartbeats", eu_us=700), False),
        (FLOWS, 1.0, 1.0, reported("us.xx.heartbeats", yy_xx=700), False),
        # Nobody sends heartbeats over it any more.
        ([FLOWS[0], ConfiguredFlow("eu", "us", False, None)], 700.0, 1.0, reported("us.heartbeats", eu_us=700), False),
    ],
)
def test_a_way_that_has_stopped_counts_like_a_flow(
    wanted: list[ConfiguredFlow], on_us: float, on_eu: float, arrived: TopicHeartbeats, stopped: bool
) -> None:
    eu = seen("eu", reported("heartbeats", us_eu=on_eu), arrived)
    clusters = {"us": seen("us", reported("heartbeats", eu_us=on_us)), "eu": eu}
    flows = flow_health(wanted, clusters, NOW_MS, 30)
    assert has_stopped(flows, way_health(wanted, clusters.values(), NOW_MS, 30)) == stopped


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (None, "none"),
        (Age(0.44), "0.4 s ago"),
        (Age(720), "12 min ago"),
        (Age(7200, at_least=True), "more than 2 h ago"),
        (Age(200_000), "2 d ago"),
    ],
)
def test_words_for_ages(age: Age | None, words: str) -> None:
    assert age_words(age) == words


def test_what_is_shown_stands_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    health = flow_health(WANTED, CLUSTERS, NOW_MS, 30)
    show_topology(list(CLUSTERS.values()), health, way_health(WANTED, CLUSTERS.values(), NOW_MS, 30))
    shown = capsys.readouterr().out
    kept = "".join(f"    {line.rstrip()}".rstrip() + "\n" for line in shown.strip("\n").splitlines())
    assert kept in DOCS.read_text(), f"docs/operations.md does not show what heliograph topology prints:\n{kept}"


def test_json() -> None:
    health = [FlowHealth("us", "eu", FlowState.STOPPED, Age(7.5, at_least=True), in_file=True)]
    ways = [Way("eu", "us.ap.heartbeats", ("us", "ap"), FlowState.NONE, None, in_file=True)]
    assert topology_as_json([CLUSTERS["us"], CLUSTERS["ap"]], health, ways) == {
        "format": 1,
        "complete": False,
        "clusters": [
            {"alias": "us", "error": None},
            {"alias": "ap", "error": "cluster ap: 10.0.0.9:9092 does not answer"},
        ],
        "flows": [{"flow": "us->eu", "state": "stopped", "in_file": True, "age_seconds": 7.5, "at_least": True}],
        "ways": [
            {
                "cluster": "eu",
                "from": "ap",
                "through": ["us", "ap"],
                "hops": 2,
                "topic": "us.ap.heartbeats",
                "state": "no heartbeats",
                "in_file": True,
                "age_seconds": None,
            }
        ],
    }
