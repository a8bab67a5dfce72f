"""The audit topic of a worker's group, on a real cluster and on one that does not answer."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from connect.core.audit import AuditEntry
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import NewTopic
from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.log_ranges import read_ranges
from connect.kafka.log.topic_admin import Admin
from connect.runtime.audit import AuditLog, write_entries
from tests.kit.clients import cluster_and_admin
from tests.kit.topics import until_gone

pytestmark = pytest.mark.integration


CONFIGS = {"cleanup.policy": "delete", "retention.ms": "86400000"}


@dataclass
class Group:
    """A cluster, and an audit topic of the test's own."""

    cluster: Cluster
    admin: Admin
    topic: NewTopic = field(default_factory=lambda: NewTopic(f"mm2-audit.{uuid.uuid4().hex}.internal", 1, 1, CONFIGS))

    def worker(self) -> AuditLog:
        return AuditLog(self.cluster, self.admin, self.topic, "w:8083")


@pytest.fixture
async def group(us: KafkaCluster) -> AsyncIterator[Group]:
    async with cluster_and_admin(us.bootstrap) as clients:
        yield Group(*clients)


async def test_entries_are_written_in_order_and_found_again(group: Group) -> None:
    audit = group.worker()
    assert (await audit.report({}))["entries"] == []
    audit.start()
    for number in range(250):
        audit.put(AuditEntry("rest", "PUT", f"/connectors/c{number}/pause", "ann", "operate", status=202))
    await audit.stop()
    assert (audit.written, audit.dropped) == (250, 0)
    found = await audit.report({"top": "3"})
    assert [one["subject"] for one in found["entries"]] == [f"/connectors/c{n}/pause" for n in (249, 248, 247)]
    assert found["entries"][0]["worker"] == "w:8083" and found["entries"][0]["at_ms"] > 0
    assert [one["subject"] for one in (await audit.report({"search": "C17/"}))["entries"]] == ["/connectors/c17/pause"]
    # Another worker of the group continues behind what it has read.
    other = group.worker()
    other.start()
    other.put(AuditEntry("worker", "topic-created", "us.orders"))
    await other.stop()
    found = await audit.report({})
    assert (found["entries"][0]["action"], found["searched"]) == ("topic-created", 251)
    assert found["topic"] == group.topic.name
    configs = (await group.admin.describe_topic_configs([group.topic.name]))[group.topic.name]
    assert CONFIGS.items() <= configs.items()


async def test_a_read_that_fails_halfway_shows_no_entry_twice(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*args: Any) -> AsyncIterator[Any]:
        async for record in read_ranges(*args):
            yield record
            raise RetriableError("the connection was lost")

    audit = group.worker()
    audit.start()
    for number in range(3):
        audit.put(AuditEntry("worker", f"event-{number}"))
    await audit.stop()
    with monkeypatch.context() as patch:
        patch.setattr("connect.runtime.audit.read_ranges", interrupted)
        with pytest.raises(RetriableError):
            await audit.report({})
    assert (await audit.report({}))["searched"] == 3


async def test_a_recreated_topic_is_not_taken_for_the_one_that_was_read(group: Group) -> None:
    audit = group.worker()
    for actions in (["a", "b"], ["c", "d", "e"]):  # the second log is longer than what was read of the first
        entries = [AuditEntry("worker", action) for action in actions]
        await write_entries(group.cluster, group.admin, group.topic, entries)
        found = await audit.report({})
        assert [one["action"] for one in found["entries"]] == actions[::-1]
        await group.admin.delete_topics([group.topic.name])
        await until_gone(group.cluster, [group.topic.name])


async def test_a_compacted_topic_is_refused(group: Group) -> None:
    await group.admin.create_topics([replace(group.topic, configs={"cleanup.policy": "compact"})])
    with pytest.raises(PermanentError, match=r"INVALID_RECORD .*; if the topic is compacted, set its cleanup\.policy"):
        await write_entries(group.cluster, group.admin, group.topic, [AuditEntry("worker", "a")])


async def test_a_cluster_that_does_not_answer_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = cluster_config.choose(1)
    async with cluster_and_admin(f"127.0.0.1:{port}") as clients:
        audit = Group(*clients).worker()
        audit.start()
        for _ in range(5000):
            audit.put(AuditEntry("rest", "PUT", "/connectors/c/pause"))
        assert audit.dropped == 4000
        await audit.stop()
    assert "cannot be written: 1000 entries wait" in caplog.text
    assert "1000 audit entries were not written before the stop" in caplog.text
