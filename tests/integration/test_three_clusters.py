"""Three clusters in a circle, two pairs of which mirror each other: no cycles, hops, heartbeats and checkpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from connect.cli.commands.topology import run_topology
from connect.embedded.brokers import KafkaCluster
from connectors.client import heartbeat_topics, replication_hops, upstream_clusters
from connectors.formats.mirror_records import Checkpoint, Heartbeat
from tests.kit.clients import cluster_at
from tests.kit.copies import read_all, send
from tests.kit.java_program import DEFAULT, ask_java
from tests.kit.mirror import SMALL, Mirror
from tests.kit.moving import commit
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

_DEADLINE_S: Final = 300.0
_ALIASES: Final = ("us", "eu", "ap")
_FLOWS: Final = ("us->eu", "eu->us", "eu->ap", "ap->eu", "ap->us")
_RECORDS: Final = 50
_AT: Final = 20
_OWN: Final = ("emit.heartbeats.enabled", "heartbeats.replication.enabled", "emit.checkpoints.enabled")
#: What is on each cluster of its own topic and of those that reach it, whichever way.
_ORDERS: Final = {
    "us": {"orders", "eu.orders", "eu.ap.orders", "ap.orders", "ap.eu.orders"},
    "eu": {"orders", "us.orders", "us.ap.orders", "ap.orders"},
    "ap": {"orders", "eu.orders", "eu.us.orders"},
}
_HOPS: Final = {"us": {"eu": 1, "ap": 1}, "eu": {"us": 1, "ap": 1}, "ap": {"eu": 1, "us": 2}}


@pytest.fixture
def clusters() -> Iterator[Mapping[str, str]]:
    """By alias: addresses of clusters of their own, as every topic there is mirrored."""
    with ExitStack() as exits, ThreadPoolExecutor(3) as pool:
        started = pool.map(lambda name: exits.enter_context(KafkaCluster.start(name)), _ALIASES)
        yield {alias: one.bootstrap for alias, one in zip(_ALIASES, started, strict=True)}


def _properties(clusters: Mapping[str, str]) -> Mapping[str, str]:
    return {
        "clusters": ", ".join(clusters),
        **{f"{alias}.bootstrap.servers": bootstrap for alias, bootstrap in clusters.items()},
        **{f"{flow}.enabled": "true" for flow in _FLOWS},
        **{key: value for key, value in SMALL.items() if key not in _OWN},
        "us->ap.emit.heartbeats.enabled": "false",
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "2",
        "emit.checkpoints.interval.seconds": "1",
        "topics": ".*orders",
        "groups": "readers-.*",
    }


async def _fill(alias: str, bootstrap: str) -> None:
    await make_topics(bootstrap, {"orders": 1})
    await send(bootstrap, "orders", (b"%s %d" % (alias.encode(), number) for number in range(_RECORDS)))
    await commit(bootstrap, f"readers-{alias}", {"orders": _AT})


async def _topics(bootstrap: str) -> set[str]:
    async with cluster_at(bootstrap) as cluster:
        return set((await cluster.metadata(None)).topics)


def _orders(bootstrap: str) -> set[str]:
    return {topic for topic in asyncio.run(_topics(bootstrap)) if topic.endswith("orders")}


def _values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in asyncio.run(read_all(bootstrap, topic))]


def _flows_beating(bootstrap: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    if "heartbeats" in asyncio.run(_topics(bootstrap)):
        for record in asyncio.run(read_all(bootstrap, "heartbeats")):
            one = Heartbeat.decode(record.key, record.value)
            found[one.source_alias, one.target_alias] = found.get((one.source_alias, one.target_alias), 0) + 1
    return found


def test_a_circle_and_two_pairs(
    clusters: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for alias, bootstrap in clusters.items():
        asyncio.run(_fill(alias, bootstrap))
    with Mirror(_properties(clusters), tmp_path) as mirror:
        mirror.start()
        _await_all_there(mirror, clusters)
        _check_hops(clusters)
        _check_checkpoints(mirror, clusters)
        # Many looks at all topics later there are no others, and nothing was copied again.
        beats = {alias: _flows_beating(bootstrap) for alias, bootstrap in clusters.items()}
        for alias, bootstrap in clusters.items():
            more = {flow: count + 5 for flow, count in beats[alias].items()}
            wait_until(partial(_has, bootstrap, more), _DEADLINE_S, f"heartbeats on {alias}")
        for alias, bootstrap in clusters.items():
            assert _orders(bootstrap) == _ORDERS[alias]
            for topic in _ORDERS[alias]:
                origin = topic.split(".")[-2] if "." in topic else alias
                assert _values(bootstrap, topic) == [b"%s %d" % (origin.encode(), at) for at in range(_RECORDS)]
        capsys.readouterr()
        assert run_topology(mirror.properties_file, stale_after_s=60, as_json=True) == 0, capsys.readouterr().out
        reported = json.loads(capsys.readouterr().out)
        assert {one["flow"]: one["state"] for one in reported["flows"]} == dict.fromkeys(_FLOWS, "alive")
        assert {(one["cluster"], one["from"]): one["hops"] for one in reversed(reported["ways"])} == {
            (cluster, source): hops for cluster, of in _HOPS.items() for source, hops in of.items()
        }
        assert mirror.stop() == 0
        mirror.assert_gone()


def _await_all_there(mirror: Mirror, clusters: Mapping[str, str]) -> None:
    def missing() -> list[str]:
        assert mirror.is_running, mirror.log_lines()[-20:]
        found = []
        for alias, bootstrap in clusters.items():
            there = asyncio.run(_topics(bootstrap))
            wanted = _ORDERS[alias] | {topic.replace("orders", "heartbeats") for topic in _ORDERS[alias]}
            found += [f"{alias}: {topic}" for topic in wanted - there]
            found += [
                f"{alias}: {topic} is short"
                for topic in _ORDERS[alias] & there
                if len(_values(bootstrap, topic)) < _RECORDS
            ]
        return found

    wait_until(lambda: not missing(), _DEADLINE_S, f"all is mirrored, {missing()} is not")


def _has(bootstrap: str, wanted: Mapping[tuple[str, str], int]) -> bool:
    found = _flows_beating(bootstrap)
    return all(found.get(flow, 0) >= count for flow, count in wanted.items())


def _check_hops(clusters: Mapping[str, str]) -> None:
    """Ours and Java's library count alike."""
    questions = [f"hops {clusters[at]} {DEFAULT} {source}" for at, of in _HOPS.items() for source in of]
    hops = [f"hops {count}" for of in _HOPS.values() for count in of.values()]
    java = ask_java([*questions, *(f"upstream {clusters[at]} {DEFAULT}" for at in _HOPS)])
    assert [answer for (answer,) in java[: len(hops)]] == hops
    for (at, of), upstream in zip(_HOPS.items(), java[len(hops) :], strict=True):
        props = {"bootstrap.servers": clusters[at]}
        assert {source: replication_hops(props, source) for source in of} == of
        assert upstream_clusters(props) == of.keys()
        assert upstream == sorted(f"upstream {source}" for source in of)
        assert heartbeat_topics(props) == {topic.replace("orders", "heartbeats") for topic in _ORDERS[at]}


def _check_checkpoints(mirror: Mirror, clusters: Mapping[str, str]) -> None:
    """Of each flow those of its source's group."""
    for flow in _FLOWS:
        source, target = flow.split("->")

        wanted = {(f"readers-{source}", f"{source}.orders", _AT)}
        is_there = partial(_is_reported, mirror, clusters[target], source, wanted)
        wait_until(is_there, _DEADLINE_S, f"checkpoints of {flow}")


def _is_reported(mirror: Mirror, bootstrap: str, source: str, wanted: set[tuple[str, str, int]]) -> bool:
    assert mirror.is_running, mirror.log_lines()[-20:]
    records = asyncio.run(read_all(bootstrap, f"{source}.checkpoints.internal"))
    reported = [Checkpoint.decode(record.key, record.value) for record in records]
    # A group gets the end of the copy before the copy gets to its place.
    last = {(one.group, one.topic): one.downstream_offset for one in reported}
    return {(*key, offset) for key, offset in last.items()} == wanted
