"""Three nodes, five clusters, eight flows, one file: a node is killed, another joins, every record is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from connect.core.errors import RetriableError
from connect.embedded import cluster_config
from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.clients import cluster_at
from tests.kit.flow_group import SOURCE, FlowGroup
from tests.kit.mirror import SMALL, Mirror
from tests.kit.processes import wait_until
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

#: Five brokers and three Sparks start on two cores.
_DEADLINE_S: Final = 600.0
_TOPIC: Final = "orders"
_PARTITIONS: Final = 3
#: More than take-overs leave in a partition without copying: markers.
_MORE: Final = 50
_ALIASES: Final = ("us", "eu", "ap", "sa", "af")
_NODES: Final = "abcd"


class _Flow(NamedTuple):
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def topic(self) -> str:
        return f"{self.source}.{_TOPIC}"


_FLOWS: Final = tuple(
    _Flow(*flow.split("->"))
    for flow in ("us->eu", "eu->us", "us->ap", "ap->us", "eu->sa", "sa->eu", "ap->af", "af->us")
)


class _Fleet:
    def __init__(self, clusters: Mapping[str, str], directory: Path, exits: ExitStack) -> None:
        self._clusters = clusters
        self._names: dict[str, str] = {}
        self.nodes: dict[str, Mirror] = {}
        for name, port in zip(_NODES, cluster_config.choose(len(_NODES)), strict=True):
            folder = directory / name
            folder.mkdir()
            self._names[f"{cluster_config.HOST}:{port}"] = name
            self.nodes[name] = exits.enter_context(Mirror(self._properties(port), folder))
        loads = [Load(_TOPIC, _PARTITIONS)]
        self.writers = [
            exits.enter_context(Writer(clusters[alias], loads, records_per_s=60, seed=seed))
            for seed, alias in enumerate(sorted({flow.source for flow in _FLOWS}))
        ]
        self._groups = {flow: exits.enter_context(FlowGroup(clusters[flow.target], flow.source)) for flow in _FLOWS}

    def _properties(self, port: int) -> Mapping[str, str]:
        backoff = ("session.timeout.ms", "heartbeat.interval.ms")
        return {
            "clusters": ", ".join(_ALIASES),
            **{f"{alias}.bootstrap.servers": self._clusters[alias] for alias in _ALIASES},
            **{f"{flow}.enabled": "true" for flow in _FLOWS},
            "topics": _TOPIC,
            "tasks.max": "3",
            **{key: value for key, value in SMALL.items() if not key.endswith(backoff)},
            "refresh.topics.interval.seconds": "2",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://{cluster_config.HOST}:{port}",
        }

    def owners(self, flow: _Flow) -> Mapping[str, str]:
        running = self._groups[flow].running()
        return {part: self._names[worker.partition("/")[0]] for part, worker in running.items() if part != SOURCE}

    def await_shared(self, *names: str) -> None:
        def elsewhere() -> list[str]:
            self._assert_running(names)
            owners = {flow: self.owners(flow) for flow in _FLOWS}
            return [
                f"{flow}: {found}"
                for flow, found in owners.items()
                if len(found) != _PARTITIONS or set(found.values()) != set(names)
            ]

        wait_until(lambda: not elsewhere(), _DEADLINE_S, f"{names} share all flows")

    def await_copying(self, *names: str) -> None:
        before = {flow: asyncio.run(self._ends(flow)) for flow in _FLOWS}

        def standing() -> list[str]:
            self._assert_running(names)
            return [
                str(flow)
                for flow in _FLOWS
                if min(asyncio.run(self._ends(flow)).get(index, 0) - before[flow].get(index, 0) for index in _INDEXES)
                < _MORE
            ]

        wait_until(lambda: not standing(), _DEADLINE_S, f"{names} copy every flow")

    async def _ends(self, flow: _Flow) -> Mapping[int, int]:
        """Of the remote topic's partitions; empty where it is not there yet."""
        try:
            async with cluster_at(self._clusters[flow.target]) as cluster:
                found = await list_offsets(cluster, [(flow.topic, index) for index in _INDEXES], LATEST)
        except RetriableError:
            return {}
        return {index: end for (_, index), end in found.items()}

    async def compare(self, flow: _Flow) -> Report:
        pair = TopicPair(_TOPIC, flow.topic, _PARTITIONS)
        async with Checker(self._clusters[flow.source], self._clusters[flow.target], [pair]) as checker:
            return await checker.caught_up(_DEADLINE_S)

    def _assert_running(self, names: Sequence[str]) -> None:
        for name in names:
            assert self.nodes[name].is_running, self.nodes[name].log_lines()[-20:]


_INDEXES: Final = range(_PARTITIONS)


@pytest.fixture
def clusters() -> Iterator[Mapping[str, str]]:
    with ExitStack() as exits, ThreadPoolExecutor(2) as pool:
        started = pool.map(lambda name: exits.enter_context(KafkaCluster.start(name)), _ALIASES)
        yield {alias: one.bootstrap for alias, one in zip(_ALIASES, started, strict=True)}


@pytest.mark.kill
def test_three_nodes_share_eight_flows_across_a_kill_and_a_join(clusters: Mapping[str, str], tmp_path: Path) -> None:
    for bootstrap in clusters.values():
        asyncio.run(make_topics(bootstrap, {_TOPIC: _PARTITIONS}))
    with ExitStack() as exits:
        fleet = _Fleet(clusters, tmp_path, exits)
        for name in "abc":
            fleet.nodes[name].start()
        fleet.await_shared("a", "b", "c")
        fleet.await_copying("a", "b", "c")

        fleet.nodes["b"].kill()
        fleet.await_shared("a", "c")
        fleet.await_copying("a", "c")

        fleet.nodes["d"].start()
        fleet.await_shared("a", "c", "d")
        fleet.await_copying("a", "c", "d")

        for writer in fleet.writers:
            writer.stop()
        for flow in _FLOWS:
            report = asyncio.run(fleet.compare(flow))
            assert report.is_exact, f"{flow}: {report.summary()}"
            assert report.total("source_records") > 0
        assert [fleet.nodes[name].stop() for name in "acd"] == [0, 0, 0]
        for node in fleet.nodes.values():
            node.assert_gone()
