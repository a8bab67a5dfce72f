"""``topic.deletion.policy`` on real brokers, while others delete and make topics too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import pytest

from connect.embedded.brokers import KafkaCluster
from connect.kafka.log.topic_admin import known_topic
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.policy import DefaultReplicationPolicy
from connectors.topic_sync import topic_deletion
from connectors.topic_sync.topic_deletion import TopicDeletion
from connectors.transforms.target_names import RemoteNames
from tests.kit.clients import cluster_and_admin
from tests.kit.topics import make_topics, until_gone, until_led

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_topic_that_is_recreated_while_positions_are_read_stays(
    us: KafkaCluster, eu: KafkaCluster, monkeypatch: pytest.MonkeyPatch, is_recreated: bool
) -> None:
    kept, deleted = (f"{name}-{uuid4().hex}" for name in ("kept", "deleted"))
    remote = f"us.{deleted}"
    settings = SimpleNamespace(
        flow="us->eu", name="one", source_alias="us", map_topic=f"mm2-offset-map.{uuid4()}.internal",
        offsets_topic_partitions=1, offsets_topic_replication_factor=1, should_mirror=lambda _: True,
        names=RemoteNames("us", DefaultReplicationPolicy()),
    )  # fmt: skip
    await make_topics(us.bootstrap, {kept: 1})
    await make_topics(eu.bootstrap, {f"us.{kept}": 1, remote: 1})
    async with cluster_and_admin(us.bootstrap) as (source, _), cluster_and_admin(eu.bootstrap) as (target, admin):
        here, there = (
            await known_topic(source, kept),
            [await known_topic(target, f"us.{one}") for one in (kept, deleted)],
        )
        assert here is not None
        copied = [(kept, here.topic_id), (deleted, uuid4())]
        positions = {
            ("one", TopicPartition(name, 0)): Position(
                name, 0, topic_id, 5, 0, f"us.{name}", 0, to.topic_id, 5, "", -1, -1, 0, True
            )
            for (name, topic_id), to in zip(copied, there, strict=True)
            if to is not None
        }

        async def read(*_: object) -> dict[tuple[str, TopicPartition], Position]:
            if is_recreated:
                await admin.delete_topics([remote])
                await until_gone(target, [remote])
                await make_topics(eu.bootstrap, {remote: 1})
                await until_led(target, {remote: 1})
            return positions

        monkeypatch.setattr(topic_deletion, "read_all_positions", read)
        await TopicDeletion(cast(MirrorSourceSettings, settings), 0, source, target, admin).run()
        if is_recreated:
            assert await known_topic(target, remote) is not None
        else:
            await until_gone(target, [remote])
