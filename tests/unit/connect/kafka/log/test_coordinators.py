"""The coordinators of groups and transactional ids: found once, and again when they are others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Self

import pytest

from connect.core.errors import RetriableError
from connect.kafka import cluster as clusters
from connect.kafka import concurrency
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.kafka.log.committed_offsets import committed, group_state, listed_group
from connect.kafka.log.transactions import ProducerIdentity, commit_transaction, end_transaction, init_producer_id
from connect.kafka.security.connection_settings import connection_settings
from tests.kit.virtual_time import in_virtual_time

NOT_COORDINATOR = 16
NOT_AVAILABLE = 15


class Brokers:
    """Two brokers, of which ``coordinator`` is the one that coordinates everything; notes who was asked for what."""

    def __init__(self) -> None:
        self.coordinator = 0
        self.code = NOT_COORDINATOR
        self.asked: list[tuple[str, int]] = []
        self.opened: list[One] = []

    async def open(self, _: object, __: str, port: int) -> One:
        self.opened.append(One(self, port))
        return self.opened[-1]

    def look_ups(self) -> int:
        found = sum(name == "FindCoordinator" for name, _ in self.asked)
        self.asked.clear()
        return found


class One:
    closed = False
    idle_s = 0.0
    request_timeout_ms = 30_000

    def __init__(self, brokers: Brokers, node: int) -> None:
        self._brokers = brokers
        self._node = node
        self.answered_s: float | None = None

    def version_of(self, _: Any) -> int:
        return 3

    async def close(self) -> None:
        self.closed = True

    async def call(self, request: Any, *_: Any, **__: Any) -> Any:
        brokers = self._brokers
        name = type(request).__name__.removesuffix("Request")
        brokers.asked.append((name, self._node))
        self.answered_s = asyncio.get_running_loop().time()
        code = 0 if self._node == brokers.coordinator else brokers.code
        group = SimpleNamespace(error_code=code, group_state="Empty", members=[])
        rows = [SimpleNamespace(node_id=node, host="kafka", port=node, rack=None) for node in (0, 1)]
        answers: dict[str, dict[str, Any]] = {
            "Metadata": {"brokers": rows, "topics": [], "cluster_id": "us", "controller_id": 0},
            "FindCoordinator": {"error_code": 0, "node_id": brokers.coordinator, "host": "kafka", "port": 0},
            "OffsetFetch": {"error_code": code, "topics": []},
            "DescribeGroups": {"groups": [group]},
            "ListGroups": {"error_code": 0, "groups": []},
            "EndTxn": {"error_code": code, "producer_id": 7, "producer_epoch": 2},
            "InitProducerId": {"error_code": code, "producer_id": 7, "producer_epoch": 1},
        }
        return SimpleNamespace(**answers[name])


class Stage:
    def __init__(self) -> None:
        self.brokers = Brokers()
        settings = connection_settings({"bootstrap.servers": "kafka:1"}, client_id="test", where="us")
        self.cluster = Cluster(settings, "us")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.close()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(Connection, "open", made.brokers.open)
    return made


@in_virtual_time
async def test_the_coordinator_of_each_group_and_transactional_id_is_looked_up_once(stage: Stage) -> None:
    async with stage:
        for _ in range(3):
            for group in ("readers", "others"):
                await committed(stage.cluster, group)
                await group_state(stage.cluster, group)
            await init_producer_id(stage.cluster, "readers")
            await end_transaction(stage.cluster, "readers", ProducerIdentity(7, 1), commit=True)
    assert stage.brokers.look_ups() == 3


@pytest.mark.parametrize("code", [NOT_COORDINATOR, NOT_AVAILABLE])
@in_virtual_time
async def test_a_broker_that_coordinates_it_no_more_is_asked_once(stage: Stage, code: int) -> None:
    brokers, cluster, writer = stage.brokers, stage.cluster, ProducerIdentity(7, 1)
    brokers.code = code
    async with stage:
        await committed(cluster, "readers")
        await init_producer_id(cluster, "writer")
        brokers.coordinator = 1
        brokers.asked.clear()
        await committed(cluster, "readers")
        assert brokers.asked == [("OffsetFetch", 0), ("FindCoordinator", brokers.asked[1][1]), ("OffsetFetch", 1)]
        brokers.asked.clear()
        with pytest.raises(RetriableError):
            await end_transaction(cluster, "writer", writer, commit=True)
        await end_transaction(cluster, "writer", writer, commit=True)
        assert brokers.look_ups() == 1
        brokers.coordinator = 0
        assert await commit_transaction(cluster, "writer", writer, renews=True) == (7, 2)


@pytest.mark.parametrize("is_lost", [True, False])
@in_virtual_time
async def test_a_coordinator_that_is_lost_or_long_silent_is_looked_up_again(stage: Stage, is_lost: bool) -> None:
    """One that is silent may have been suspended, while another broker took its place."""
    async with stage:
        await committed(stage.cluster, "readers")
        for one in stage.brokers.opened if is_lost else ():
            await one.close()
        await asyncio.sleep(0 if is_lost else 11)
        stage.brokers.coordinator = 1
        stage.brokers.asked.clear()
        await committed(stage.cluster, "readers")
        assert ("OffsetFetch", 0) not in stage.brokers.asked
        assert stage.brokers.look_ups() == 1


@in_virtual_time
async def test_a_list_of_groups_is_always_asked_of_the_coordinator_of_now(stage: Stage) -> None:
    """Another broker's list lacks the group, and no error code says why."""
    async with stage:
        await committed(stage.cluster, "readers")
        stage.brokers.coordinator = 1
        await listed_group(stage.cluster, "readers")
        assert stage.brokers.asked[-1] == ("ListGroups", 1)


@in_virtual_time
async def test_no_more_coordinators_are_kept_than_the_bound(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_MOST_COORDINATORS", 2)

    async with stage:
        for group in ("a", "b", "c"):
            await committed(stage.cluster, group)
        stage.brokers.asked.clear()
        await committed(stage.cluster, "c")
        assert stage.brokers.look_ups() == 0
        await committed(stage.cluster, "a")
        assert stage.brokers.look_ups() == 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_FIRST_PAUSE_S", 0.0)
