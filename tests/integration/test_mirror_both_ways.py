"""Both directions in one file with Java's defaults; a third cluster that is down holds up no mirror."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connect.embedded.brokers import KafkaCluster
from tests.kit.clients import cluster_and_admin, stock_admin
from tests.kit.copies import read_all, send
from tests.kit.flow_group import FlowGroup
from tests.kit.mirror import SMALL, Mirror
from tests.kit.processes import Role
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_DEADLINE_S = 180.0
_RECORDS = 50
_HEARTBEATS = ("emit.heartbeats.enabled", "heartbeats.replication.enabled")


@pytest.fixture
def clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Of their own: every topic there is gets mirrored."""
    with contextlib.ExitStack() as exits, ThreadPoolExecutor(2) as pool:
        us, eu = pool.map(lambda name: exits.enter_context(KafkaCluster.start(name)), ("us", "eu"))
        yield us, eu


def _topics(cluster: KafkaCluster) -> dict[str, int]:
    with stock_admin(cluster.bootstrap) as admin:
        names = [name for name in admin.list_topics() if not name.startswith("__")]
        return {each["name"]: len(each["partitions"]) for each in admin.describe_topics(names)}


async def _write(cluster: KafkaCluster, topic: str) -> None:
    await make_topics(cluster.bootstrap, {topic: 2})
    await send(cluster.bootstrap, topic, (b"%d" % number for number in range(_RECORDS)), [0, 1])


def _count(cluster: KafkaCluster, topic: str) -> int:
    return len(asyncio.run(read_all(cluster.bootstrap, topic))) if topic in _topics(cluster) else 0


@pytest.mark.long
def test_two_clusters_mirror_each_other_beside_one_that_is_down(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    us, eu = clusters
    asyncio.run(_write(us, "orders"))
    asyncio.run(_write(eu, "orders"))
    properties = {
        "clusters": "us, eu, down",
        "us.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        "down.bootstrap.servers": "127.0.0.1:1",
        "us->eu.enabled": "true",
        "eu->us.enabled": "true",
        **{key: value for key, value in SMALL.items() if key not in _HEARTBEATS},
        "refresh.topics.interval.seconds": "1",
    }
    with Mirror(properties, tmp_path) as mirror:
        mirror.start()
        for cluster, other in ((us, "eu"), (eu, "us")):
            _await_count(mirror, cluster, f"{other}.orders", _RECORDS)
            # one's own, the other's, and those of the flow from the cluster that is down
            _await_count(mirror, cluster, "heartbeats", 4)
            _await_count(mirror, cluster, f"{other}.heartbeats", 4)
        # several looks at all topics later
        for cluster, other in ((us, "eu"), (eu, "us")):
            _await_count(mirror, cluster, f"{other}.heartbeats", _count(cluster, f"{other}.heartbeats") + 6)
        for cluster, this, other in ((us, "us", "eu"), (eu, "eu", "us")):
            assert _topics(cluster) == {
                "orders": 2,
                "heartbeats": 1,
                f"{other}.orders": 2,
                f"{other}.heartbeats": 1,
                **_internal(other),
                **{topic: count for topic, count in _internal("down").items() if "mm2-offset-" not in topic},
            }, f"at {this}"
            assert asyncio.run(_policies(cluster, [*_internal(other), "heartbeats"])) == {"compact"}
            with FlowGroup(cluster.bootstrap, other) as group:
                assert group.await_round(1, _DEADLINE_S).members == 1
        mirror.await_line(0, ["down", "trying"], _DEADLINE_S)
        assert _count(us, "eu.orders") == _count(eu, "us.orders") == _RECORDS
        assert mirror.stop() == 0
        mirror.assert_gone()


def test_a_node_that_no_flow_mirrors_to_has_heartbeats_and_no_spark(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path
) -> None:
    alias = "quiet"
    properties = {
        "clusters": f"eu, {alias}",
        "eu.bootstrap.servers": eu.bootstrap,
        f"{alias}.bootstrap.servers": us.bootstrap,
        f"{alias}->eu.enabled": "true",
        **{key: value for key, value in SMALL.items() if key not in _HEARTBEATS},
    }
    program = str(Path(sys.executable).parent / "connect-mirror-maker")
    with Mirror(properties, tmp_path, [program, "--clusters", alias, "--log-level", "INFO"]) as mirror:
        before = _count(us, "heartbeats")
        mirror.start()
        _await_count(mirror, us, "heartbeats", before + 2)
        mirror.await_line(0, ["this node writes heartbeats only"], _DEADLINE_S)
        assert [member.role for member in mirror.members()] == [Role.WORKER]
        assert _topics(us)["heartbeats"] == 1
        assert asyncio.run(_policies(us, ["heartbeats"])) == {"compact"}
        assert mirror.stop() == 0


def _internal(source: str) -> dict[str, int]:
    """What a flow's worker makes on its target, and with how many partitions: Java's, and the map of ours."""
    return {
        f"mm2-configs.{source}.internal": 1,
        f"mm2-offsets.{source}.internal": 25,
        f"mm2-status.{source}.internal": 5,
        f"mm2-offset-map.{source}.internal": 25,
        # of the flow the other way, at its source
        f"mm2-offset-syncs.{source}.internal": 1,
    }


def _await_count(mirror: Mirror, cluster: KafkaCluster, topic: str, records: int) -> None:
    mirror.wait_until(lambda: _count(cluster, topic) >= records, f"{topic} holds {records} records", _DEADLINE_S)


async def _policies(cluster: KafkaCluster, topics: list[str]) -> set[str | None]:
    async with cluster_and_admin(cluster.bootstrap) as (_, admin):
        return {config["cleanup.policy"] for config in (await admin.describe_topic_configs(topics)).values()}
