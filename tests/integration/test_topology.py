"""Remote topics between two real clusters, seen with a stock client: made, grown, their settings kept in step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from connect.api.source import SourceConnectorContext
from connect.embedded.brokers import KafkaCluster
from connectors.config.connector_configs import source_settings
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.connector import MirrorSourceConnector
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.positions.stored_positions import Commit
from tests.kit.clients import cluster_and_admin, cluster_at
from tests.kit.members import until
from tests.kit.stock import Stock

pytestmark = pytest.mark.integration

_ONE_BROKER = {"offset.storage.replication.factor": "1", "offset.storage.partitions": "1"}


@dataclass
class Context:
    reconfigured: int = 0
    errors: list[Exception] = field(default_factory=list)

    @property
    def present_task_configs(self) -> tuple[()]:
        return ()

    def request_task_reconfiguration(self) -> None:
        self.reconfigured += 1

    def raise_error(self, error: Exception) -> None:
        self.errors.append(error)


async def until_said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async def said() -> bool:
        return text in caplog.text

    await until(said, f"the log says «{text}»")


@dataclass
class Scene:
    """One connector that runs between two clusters. Topics begin with ``prefix``."""

    us: Stock
    eu: Stock
    connector: MirrorSourceConnector
    context: Context
    prefix: str


@contextlib.asynccontextmanager
async def scene(us: KafkaCluster, eu: KafkaCluster, prefix: str, **props: str) -> AsyncIterator[Scene]:
    everything = {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        "topics": f"{prefix}.*",
        "replication.factor": "-1",
        "heartbeats.replication.enabled": "false",
        "emit.offset-syncs.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "refresh.look.interval.ms": "100",
        **{key.replace("_", "."): value for key, value in props.items()},
    }
    settings = source_settings(everything, {"offset.storage.topic": "mm2-offsets.us.internal", **_ONE_BROKER})
    stocks = await asyncio.to_thread(lambda: (Stock(us), Stock(eu)))
    async with cluster_at(us.bootstrap, "us") as source, cluster_and_admin(eu.bootstrap, "eu") as (target, admin):
        connector = MirrorSourceConnector(settings, everything, source, target, admin)
        try:
            yield Scene(*stocks, connector, Context(), prefix)
        finally:
            await connector.stop()
            for stock in stocks:
                stock.close()


async def begin(on: Scene) -> None:
    await on.connector.start(cast(SourceConnectorContext, on.context))


def assigned(on: Scene) -> set[str]:
    (config,) = on.connector.task_configs(1)
    return set(config["task.assigned.partitions"].split(","))


async def until_reconfigured(on: Scene) -> None:
    """The worker is asked for other tasks behind what is done at the target."""

    async def is_asked() -> bool:
        return on.context.reconfigured > 0

    await until(is_asked, "the worker is asked for other tasks")


def test_remote_topics_follow_the_source(us: KafkaCluster, eu: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_follow(us, eu, caplog))


async def _follow(us: KafkaCluster, eu: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "connectors")
    prefix = f"follow{uuid.uuid4().hex[:6]}"
    async with scene(us, eu, prefix) as on:
        plain, both, dotted = f"{prefix}-plain", f"{prefix}_both", f"{prefix}.a-b_c.d"
        longest, too_long = prefix.ljust(246, "x"), prefix.ljust(249, "y")
        compact = {"cleanup.policy": "compact", "max.message.bytes": "2000000"}
        await on.us.make(plain, 2, {"retention.ms": "86400000", "min.insync.replicas": "1"})
        await on.us.make(both, 1, {"cleanup.policy": "compact,delete", "segment.bytes": "1048576"})
        await on.us.make(dotted, 1, compact)
        for name in (longest, too_long):
            await on.us.make(name)
        # One that is there already: what the source has by default is reset, what it sets is set.
        await on.eu.make(f"us.{both}", 1, {"cleanup.policy": "delete", "flush.ms": "5"})
        await begin(on)

        assert assigned(on) == {f"{plain}-0", f"{plain}-1", f"{both}-0", f"{dotted}-0", f"{longest}-0"}
        await on.eu.until_partitions(f"us.{plain}", 2)
        assert await on.eu.configs(f"us.{plain}") == {"retention.ms": "86400000"}
        assert await on.eu.configs(f"us.{dotted}") == compact
        await on.eu.until_configs(f"us.{both}", {"cleanup.policy": "compact,delete", "segment.bytes": "1048576"})
        ours = [record for record in caplog.records if record.name.startswith("connectors")]
        (line,) = [record.getMessage() for record in ours if record.levelno == logging.ERROR]
        assert too_long in line and "has 252 characters, and Kafka allows 249" in line

        # At once: new settings, partitions, topics; long before the interval of ten minutes.
        await on.us.alter(plain, {"retention.ms": "90000000"})
        await on.us.grow(plain, 3)
        await on.us.make(f"{prefix}-new", 1, compact)
        await on.eu.until_configs(f"us.{plain}", {"retention.ms": "90000000"})
        await on.eu.until_partitions(f"us.{plain}", 3)
        await on.eu.until_partitions(f"us.{prefix}-new", 1)
        assert await on.eu.configs(f"us.{prefix}-new") == compact

        async def all_there() -> bool:
            return {f"{plain}-2", f"{prefix}-new-0"} <= assigned(on)

        await until(all_there, "new partitions are assigned")
        await until_reconfigured(on)
        # A topic that goes is no longer copied from the next refresh on, here that of another topic; its remote topic
        # stays.
        await on.us.delete(f"{prefix}-new")
        await on.us.until_partitions(f"{prefix}-new", 0)
        await on.us.make(f"{prefix}-last")

        async def gone() -> bool:
            return f"{prefix}-new-0" not in assigned(on)

        await until(gone, "the deleted topic is not assigned")
        why = "because cluster us does not have them or topics does not select them"
        await until_said(caplog, f"us->eu: no longer mirrored, {why}: {prefix}-new")
        assert await on.eu.partitions(f"us.{prefix}-new") == 1
        assert not on.context.errors


def test_the_sources_defaults_are_set_where_they_are_wanted(us: KafkaCluster, eu: KafkaCluster) -> None:
    asyncio.run(_source_defaults(us, eu))


async def _source_defaults(us: KafkaCluster, eu: KafkaCluster) -> None:
    prefix = f"defaults{uuid.uuid4().hex[:6]}"
    only = {"use_defaults_from": "source", "config_properties_exclude": "(?!(flush.ms|segment.ms)$).*"}
    async with scene(us, eu, prefix, **only) as on:
        await on.us.make(prefix, 1, {"segment.ms": "60000000", "retention.ms": "5000000"})
        await begin(on)
        wanted = {"flush.ms": str(2**63 - 1), "segment.ms": "60000000"}
        await on.eu.until_configs(f"us.{prefix}", wanted)
        await on.us.alter(prefix, {"segment.ms": "70000000"})
        await on.eu.until_configs(f"us.{prefix}", {**wanted, "segment.ms": "70000000"})


def test_a_remote_topic_goes_some_time_after_its_source_topic(
    us: KafkaCluster, eu: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(_deletion(us, eu, caplog))


async def _deletion(us: KafkaCluster, eu: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "connectors")
    prefix = f"goes{uuid.uuid4().hex[:6]}"
    gone, kept, never = f"{prefix}.gone", f"{prefix}.kept", f"{prefix}.never-copied"
    others = f"{prefix}.made-anew-by-others"
    props = {"topic_deletion_policy": "delete-after", "name": f"deletes-{prefix}"}
    async with scene(us, eu, prefix, topic_deletion_delay_ms="3600000", **props) as on:
        for name in (gone, kept, never, others):
            await on.us.make(name)
        await begin(on)
        for name in (gone, kept, others):
            await on.eu.until_partitions(f"us.{name}", 1)
        await note_copied(us.bootstrap, eu.bootstrap, props["name"], gone, kept, others)
        await on.eu.delete(f"us.{others}")
        await on.eu.until_partitions(f"us.{others}", 0)
        await on.eu.make(f"us.{others}")
        for name in (never, others, gone):
            await on.us.delete(name)
        await until_said(caplog, f"its remote topic us.{gone} will be deleted at")
    for name in (never, others):
        assert f"us.{name} will" not in caplog.text
    # Another process, with a shorter delay: since when it is gone is known.
    caplog.clear()
    async with scene(us, eu, prefix, topic_deletion_delay_ms="1", **props) as on:
        await begin(on)
        await until_said(caplog, f"deleted us.{gone}")
        assert "will be deleted at" not in caplog.text
        assert f"deleting us.{gone}: its source topic {gone} was deleted at" in caplog.text
        await on.eu.until_partitions(f"us.{gone}", 0)
        for name in (kept, never, others):
            assert await on.eu.partitions(f"us.{name}") == 1


async def note_copied(us: str, bootstrap: str, connector: str, *topics: str) -> None:
    """Store positions of ``topics``, as a task that copied them from cluster us, which is reached at ``us``."""
    settings = StoreSettings(
        connector, "us", f"offsets-{connector}", "mm2-offset-map.us.internal", f"notes-{connector}", 1, 1
    )
    async with cluster_at(us) as source, cluster_and_admin(bootstrap) as (cluster, admin):
        ids = {name: topic.topic_id for name, topic in (await source.metadata(set(topics))).topics.items()}
        store = MirrorPositionStore(cluster, admin, settings)
        await store.load([TopicPartition(topic, 0) for topic in topics])
        known = (await cluster.metadata({f"us.{topic}" for topic in topics})).topics
        await store.commit(
            [
                Commit(Position(topic, 0, ids[topic], 1, 0, name, 0, known[name].topic_id, 1, "", -1, -1, 0, True))
                for topic, name in ((topic, f"us.{topic}") for topic in topics)
            ]
        )
