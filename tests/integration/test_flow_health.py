"""``heliograph topology`` on real clusters: what it says of flows that live, have stopped, or cannot be looked at."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connect.cli.commands.topology import run_topology
from connect.core.errors import ConfigError
from connect.core.model import NewTopic
from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.kafka.log.topic_admin import Admin
from connectors.formats.mirror_records import Heartbeat
from connectors.heartbeat import MOST, TopicHeartbeats, read_heartbeats
from connectors.policy import DefaultReplicationPolicy
from tests.kit.clients import cluster_and_admin
from tests.kit.topics import until_gone, until_led

pytestmark = pytest.mark.integration


class Site:
    """A cluster with heartbeats that nobody but the test writes; those that mirrors of other tests left are gone."""

    def __init__(self, bootstrap: str, cluster: Cluster, admin: Admin) -> None:
        self.bootstrap, self.cluster, self.admin = bootstrap, cluster, admin
        name = uuid.uuid4().hex[:6]
        self.us, self.eu, self.ap = (f"{alias}{name}" for alias in ("us", "eu", "ap"))
        self.topics = ["heartbeats", f"{self.us}.heartbeats", f"{self.us}.{self.ap}.heartbeats"]

    async def make(self) -> None:
        await self.admin.delete_topics(["heartbeats"])
        await until_gone(self.cluster, ["heartbeats"])
        made = await self.admin.create_topics([NewTopic(topic, 1, 1) for topic in self.topics])
        assert not any(made.values()), made
        await until_led(self.cluster, dict.fromkeys(self.topics, 1))

    async def beat(self, topic: str, source: str, target: str, seconds_ago: float) -> None:
        one = Heartbeat(source, target, wall_ms() - int(seconds_ago * 1000))
        await PlainWriter(self.cluster).write([OutRecord(topic, one.key(), one.value())])

    def file(self, folder: Path, us: str) -> Path:
        """Both flows between us, at the address ``us``, and eu."""
        file = folder / "mm2.properties"
        file.write_text(
            f"clusters = {self.us}, {self.eu}\n{self.us}.bootstrap.servers = {us}\n"
            f"{self.eu}.bootstrap.servers = {self.bootstrap}\n{self.us}->{self.eu}.enabled = true\n"
            "emit.heartbeats.enabled = false\n"
            f"{self.us}->{self.eu}.emit.heartbeats.enabled = true\n"
        )
        return file


@pytest.fixture
async def site(eu: KafkaCluster) -> AsyncIterator[Site]:
    async with cluster_and_admin(eu.bootstrap, "eu") as clients:
        made = Site(eu.bootstrap, *clients)
        await made.make()
        yield made
        await made.admin.delete_topics(made.topics)


async def _reported(
    site: Site, folder: Path, us: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    code = await asyncio.to_thread(run_topology, site.file(folder, us), stale_after_s=300, as_json=True)
    return code, json.loads(capsys.readouterr().out)


async def test_it_tells_who_is_alive_and_who_reaches_whom(
    us: KafkaCluster, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = await _reported(site, tmp_path, us.bootstrap, capsys)
    assert (code, found["flows"][0]["state"]) == (2, "no heartbeats")
    await site.beat("heartbeats", site.us, site.eu, 600)
    await site.beat(f"{site.us}.heartbeats", site.ap, site.us, 3)
    await site.beat(f"{site.us}.{site.ap}.heartbeats", "xx", site.ap, 700)
    code, found = await _reported(site, tmp_path, us.bootstrap, capsys)
    assert (code, found["flows"][0]["state"], found["complete"]) == (2, "stopped", True)
    assert 600 <= found["flows"][0]["age_seconds"] < 900
    ways = [(way["hops"], way["from"], way["state"]) for way in found["ways"] if way["cluster"] == site.eu]
    assert {(1, site.us, "alive"), (2, site.ap, "stopped")} <= set(ways)
    await site.beat("heartbeats", site.us, site.eu, 1)
    code, found = await _reported(site, tmp_path, us.bootstrap, capsys)
    assert (code, found["flows"][0]["state"]) == (0, "alive")
    nowhere = f"{cluster_config.HOST}:1"
    code, found = await _reported(site, tmp_path, nowhere, capsys)
    assert (code, found["complete"], found["flows"][0]["state"]) == (1, False, "alive")
    assert nowhere in found["clusters"][0]["error"]
    assert found["clusters"][1] == {"alias": site.eu, "error": None}


async def _reported_by(site: Site, topic: str, most: int = MOST) -> TopicHeartbeats:
    every = await read_heartbeats(site.cluster, [DefaultReplicationPolicy()], 120, most=most)
    (found,) = (one for one in every if one.topic == topic)
    return found


async def test_of_a_long_topic_the_end_is_read(site: Site) -> None:
    await site.beat("heartbeats", "gone", site.eu, 500)
    for ago in (40, 30, 20):
        await site.beat("heartbeats", site.us, site.eu, ago)
    whole = await _reported_by(site, "heartbeats")
    assert whole.newest_ms.keys() == {("gone", site.eu), (site.us, site.eu)}
    assert whole.read_from_ms is None
    end = await _reported_by(site, "heartbeats", most=2)
    assert end == TopicHeartbeats(
        "heartbeats", {(site.us, site.eu): whole.newest_ms[site.us, site.eu]}, end.read_from_ms
    )
    assert end.read_from_ms is not None


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    with pytest.raises(ConfigError, match=r"mm2\.properties"):
        run_topology(file, stale_after_s=30, as_json=False)
    file.write_text("clusters = us, eu\n")
    with pytest.raises(ConfigError, match=r"us\.bootstrap\.servers is missing"):
        run_topology(file, stale_after_s=30, as_json=False)
