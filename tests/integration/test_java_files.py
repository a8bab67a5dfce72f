"""Java's sample files and connectors as examples have them, with no word changed but the addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster
from connectors.formats.mirror_records import Checkpoint, Heartbeat
from tests.kit.clients import cluster_at
from tests.kit.copies import read_all
from tests.kit.direct import Broker
from tests.kit.java_files import BYTES, JSON, SAMPLE_MIRROR, SAMPLE_WORKER, full_examples, short_source
from tests.kit.mirror import Mirror
from tests.kit.moving import commit
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.workers import OurWorker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]

_DEADLINE_S: Final = 300.0
_RECORDS: Final = 10
_AT: Final = 4

Pair = tuple[KafkaCluster, KafkaCluster]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two clusters of their own, as every topic is mirrored."""
    with ExitStack() as exits, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda name: exits.enter_context(KafkaCluster.start(name)), ("first", "second"))
        yield first, second


def _fill(cluster: KafkaCluster, topic: str) -> None:
    broker = Broker(cluster, 0)
    broker.make(topic)
    broker.produce(topic, 0, _RECORDS)


def _records(cluster: KafkaCluster, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in asyncio.run(read_all(cluster.bootstrap, topic))]


def _topics(cluster: KafkaCluster) -> set[str]:
    async def asked() -> set[str]:
        async with cluster_at(cluster.bootstrap) as connected:
            return set((await connected.metadata(None)).topics)

    return asyncio.run(asked())


def test_kafkas_sample_of_a_mirror_runs(pair: Pair, tmp_path: Path) -> None:
    a, b = pair
    _fill(a, "from-a")
    _fill(b, "from-b")
    addresses = {"A.bootstrap.servers": a.bootstrap, "B.bootstrap.servers": b.bootstrap}
    ways = ((a, "from-a", b, "A.from-a"), (b, "from-b", a, "B.from-b"))
    with Mirror({**SAMPLE_MIRROR, **addresses}, tmp_path) as mirror:
        mirror.start()

        def is_there() -> bool:
            copied = all(Broker(target, 0).end(remote) >= _RECORDS for _, _, target, remote in ways)
            return copied and ("B", "A") in _beating(a) and ("A", "B") in _beating(b)

        mirror.wait_until(is_there, "both ways are copied, with heartbeats of both", _DEADLINE_S)
        assert mirror.stop() == 0
        mirror.assert_gone()
    for source, topic, target, remote in ways:
        assert _records(target, remote) == _records(source, topic)
    # what has come from there does not go back
    assert not [topic for one in pair for topic in _topics(one) if topic.startswith(("A.B.", "B.A."))]


def test_kafkas_sample_of_a_worker_takes_connectors_of_examples(pair: Pair, tmp_path: Path) -> None:
    source, target = pair
    _fill(source, "connecttest-a")
    asyncio.run(commit(source.bootstrap, "readers-a", {"connecttest-a": _AT}))
    address = f"http://{cluster_config.HOST}:{cluster_config.choose(1)[0]}"
    properties = {**SAMPLE_WORKER, "bootstrap.servers": target.bootstrap, "listeners": address}
    with OurWorker(properties, tmp_path) as worker:
        worker.await_ready(_DEADLINE_S)
        client = RestClient(worker.url)
        _check_refusals(client, source, target)
        for name, config in full_examples(source.bootstrap, target.bootstrap).items():
            assert client.ask("PUT", f"/connectors/{name}/config", config)["name"] == name

        def is_there() -> bool:
            assert worker.is_running, worker.tail()
            for name, status in client.statuses().items():
                states = [status["connector"], *status["tasks"]]
                assert "FAILED" not in {state["state"] for state in states}, (name, states)
            copied = Broker(target, 0).end("connecttest-a") >= _RECORDS
            return (
                copied and ("prim", "sec") in _beating(target) and _reported(target) == {("readers-a", "connecttest-a")}
            )

        wait_until(is_there, _DEADLINE_S, "records, heartbeats and checkpoints are there")
        assert worker.stop() == 0
    assert _records(target, "connecttest-a") == _records(source, "connecttest-a")


def _beating(cluster: KafkaCluster) -> set[tuple[str, str]]:
    if Broker(cluster, 0).end("heartbeats") <= 0:
        return set()
    beats = [Heartbeat.decode(key, value) for key, value in _records(cluster, "heartbeats")]
    return {(beat.source_alias, beat.target_alias) for beat in beats}


def _reported(cluster: KafkaCluster) -> set[tuple[str, str]]:
    topic = "prim.checkpoints.internal"
    if Broker(cluster, 0).end(topic) <= 0:
        return set()
    checkpoints = [Checkpoint.decode(key, value) for key, value in _records(cluster, topic)]
    return {(one.group, one.topic) for one in checkpoints}


def _check_refusals(client: RestClient, source: KafkaCluster, target: KafkaCluster) -> None:
    """What Java would write as JSON is refused with what to set; what has no target fails as in Java, and says so."""
    path, config = "/connectors/us-west-source", short_source(source.bootstrap)
    to_target = {"target.cluster.bootstrap.servers": target.bootstrap}
    status, answer = client.try_once("PUT", f"{path}/config", {**config, **to_target})
    assert status == 400, answer
    assert f"key.converter {JSON} of the worker" in answer["message"]
    assert BYTES in answer["message"]

    client.ask("PUT", f"{path}/config", {**config, "key.converter": BYTES, "value.converter": BYTES})

    def has_failed() -> bool:
        states = client.statuses()
        found = states.get("us-west-source", {}).get("connector", {})
        return found.get("state") == "FAILED" and "target.cluster.bootstrap.servers" in found["trace"]

    wait_until(has_failed, _DEADLINE_S, "the address that is missing is named")
    client.ask("DELETE", path)
    wait_until(lambda: client.ask("GET", "/connectors") == [], _DEADLINE_S, "it is deleted")
