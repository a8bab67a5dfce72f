"""MirrorHeartbeat, without a broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

import pytest

from connect.api.source import BYTES
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import NewTopic
from connect.core.status_and_offset_topics import encode_key, encode_value
from connect.kafka.log import compacted_topic
from connect.kafka.log.topic_admin import TopicExists
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors import heartbeat
from connectors.connector_base import WrittenLatencies
from connectors.formats.mirror_records import Heartbeat
from connectors.heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask

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

    def __call__(self, settings: ConnectionSettings, name: str, fewer_replicas: str) -> Target:
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
    monkeypatch.setattr(heartbeat, "Admin", made)
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


async def test_one_task_with_the_connectors_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    target(monkeypatch, TopicExists("there"))
    connector = MirrorHeartbeatConnector()
    await connector.start(PROPS)
    assert await connector.task_configs(5) == [PROPS]
    assert isinstance(connector.make_task(), MirrorHeartbeatTask)
    await connector.stop()


@pytest.mark.parametrize("interval", ["-1", "-60"])
async def test_an_interval_below_nothing_is_off(monkeypatch: pytest.MonkeyPatch, interval: str) -> None:
    target(monkeypatch, None)
    connector = MirrorHeartbeatConnector()
    await connector.start({**PROPS, "emit.heartbeats.interval.seconds": interval})
    assert await connector.task_configs(5) == []
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
    with pytest.raises(ConfigError, match=r"bootstrap.servers"):
        await MirrorHeartbeatConnector().start(
            {key: value for key, value in PROPS.items() if not key.startswith("target.cluster.b")}
        )


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
