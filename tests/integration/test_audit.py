"""The audit topic of a worker's group, on a real cluster and on one that does not answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
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
from connect.kafka.security.connection_settings import connection_settings
from connect.runtime.audit import AuditLog, write_entries
from tests.kit.topics import until_gone

pytestmark = pytest.mark.integration


def audit_of(bootstrap: str, topic: str) -> tuple[AuditLog, Cluster, Admin]:
    connection = connection_settings({"bootstrap.servers": bootstrap}, client_id="audit", where="test")
    cluster, admin = Cluster(connection), Admin(connection)
    configs = {"cleanup.policy": "delete", "retention.ms": "86400000"}
    return AuditLog(cluster, admin, NewTopic(topic, 1, 1, configs), "w:8083"), cluster, admin


def test_entries_are_written_in_order_and_found_again(us: KafkaCluster) -> None:
    async def run() -> None:
        audit, cluster, admin = audit_of(us.bootstrap, f"mm2-audit.{uuid.uuid4().hex}.internal")
        assert (await audit.report({}))["entries"] == []
        audit.start()
        for number in range(250):
            audit.put(AuditEntry("rest", "PUT", f"/connectors/c{number}/pause", "ann", "operate", status=202))
        await audit.stop()
        assert (audit.written, audit.dropped) == (250, 0)
        found = await audit.report({"top": "3"})
        assert [one["subject"] for one in found["entries"]] == [f"/connectors/c{n}/pause" for n in (249, 248, 247)]
        assert found["entries"][0]["worker"] == "w:8083" and found["entries"][0]["at_ms"] > 0
        assert [one["subject"] for one in (await audit.report({"search": "C17/"}))["entries"]] == [
            "/connectors/c17/pause"
        ]
        # Another worker of the group continues behind what it has read.
        other, second, third = audit_of(us.bootstrap, found["topic"])
        other.start()
        other.put(AuditEntry("worker", "topic-created", "us.orders"))
        await other.stop()
        found = await audit.report({})
        assert (found["entries"][0]["action"], found["searched"]) == ("topic-created", 251)
        configs = (await admin.describe_topic_configs([found["topic"]]))[found["topic"]]
        assert (configs["cleanup.policy"], configs["retention.ms"]) == ("delete", "86400000")
        for closing in (cluster.close, admin.close, second.close, third.close):
            await closing()

    asyncio.run(run())


def test_a_read_that_fails_halfway_shows_no_entry_twice(us: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*args: Any) -> AsyncIterator[Any]:
        async for record in read_ranges(*args):
            yield record
            raise RetriableError("the connection was lost")

    async def run() -> None:
        audit, cluster, admin = audit_of(us.bootstrap, f"mm2-audit.{uuid.uuid4().hex}.internal")
        audit.start()
        for number in range(3):
            audit.put(AuditEntry("worker", f"event-{number}"))
        await audit.stop()
        with monkeypatch.context() as patch:
            patch.setattr("connect.runtime.audit.read_ranges", interrupted)
            with pytest.raises(RetriableError):
                await audit.report({})
        assert (await audit.report({}))["searched"] == 3
        await cluster.close()
        await admin.close()

    asyncio.run(run())


def test_a_recreated_topic_is_not_taken_for_the_one_that_was_read(us: KafkaCluster) -> None:
    async def run() -> None:
        topic = f"mm2-audit.{uuid.uuid4().hex}.internal"
        audit, cluster, admin = audit_of(us.bootstrap, topic)
        assert audit.topic is not None
        for actions in (["a", "b"], ["c", "d", "e"]):  # the second log is longer than what was read of the first
            await write_entries(cluster, admin, audit.topic, [AuditEntry("worker", action) for action in actions])
            found = await audit.report({})
            assert [one["action"] for one in found["entries"]] == actions[::-1]
            await admin.delete_topics([topic])
            await until_gone(cluster, [topic])
        await cluster.close()
        await admin.close()

    asyncio.run(run())


def test_a_compacted_topic_is_refused(us: KafkaCluster) -> None:
    async def run() -> None:
        audit, cluster, admin = audit_of(us.bootstrap, f"mm2-audit.{uuid.uuid4().hex}.internal")
        assert audit.topic is not None
        await admin.create_topics([replace(audit.topic, configs={"cleanup.policy": "compact"})])
        with pytest.raises(
            PermanentError, match=r"INVALID_RECORD .*; if the topic is compacted, set its cleanup\.policy"
        ):
            await write_entries(cluster, admin, audit.topic, [AuditEntry("worker", "a")])
        await cluster.close()
        await admin.close()

    asyncio.run(run())


def test_a_cluster_that_does_not_answer_delays_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        (port,) = cluster_config.choose(1)
        audit, cluster, admin = audit_of(f"127.0.0.1:{port}", "mm2-audit.x.internal")
        audit.start()
        for _ in range(5000):
            audit.put(AuditEntry("rest", "PUT", "/connectors/c/pause"))
        assert audit.dropped == 4000
        await audit.stop()
        await cluster.close()
        await admin.close()

    asyncio.run(run())
    assert "cannot be written: 1000 entries wait" in caplog.text
    assert "1000 audit entries were not written before the stop" in caplog.text
