"""A dedicated mirror of one flow on several nodes, all started from one file but for their own ``listeners``."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from aiokafka import AIOKafkaProducer

from connect.core.config_topic import connector_record
from connect.core.errors import RetriableError
from connect.core.model import TaskId
from connect.embedded import cluster_config
from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from connect.kafka.log.offsets import LATEST, list_offsets
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.clients import cluster_at
from tests.kit.flow_group import SOURCE, FlowGroup
from tests.kit.java_program import JavaMirrorMaker, java_command, write_log4j2
from tests.kit.mirror import Mirror, one_flow
from tests.kit.processes import wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

#: Longer than any machine takes; what is promised is judged by what was measured.
DEADLINE_S: Final = 150.0
#: More than a take-over leaves in a partition without copying: markers.
_RECORDS: Final = 100


class FlowNodes:
    """Nodes "a", "b", ... and a writer, as a context; the target is "eu", nodes named in ``java`` are Kafka's own."""

    def __init__(
        self,
        us: KafkaCluster,
        eu: KafkaCluster,
        directory: Path,
        *,
        nodes: int = 2,
        records_per_s: float = 2000,
        properties: Mapping[str, str],
        java: str = "",
    ) -> None:
        self._us, self._eu = us, eu
        self._directory = directory
        self.alias = f"us{uuid.uuid4().hex[:6]}"
        self._loads = (Load(f"orders-{self.alias}", 3, "lz4"), Load(f"clicks-{self.alias}", 2))
        self._records_per_s = records_per_s
        self._changes = properties
        self._names = "abcdefgh"[:nodes]
        self._java = java
        self._netlocs: dict[str, str] = {}
        self.nodes: dict[str, Mirror] = {}

    def __enter__(self) -> Self:
        asyncio.run(make_topics(self._us.bootstrap, {load.topic: load.partitions for load in self._loads}))
        with contextlib.ExitStack() as exits:
            self.group = exits.enter_context(FlowGroup(self._eu.bootstrap, self.alias))
            self._runner = exits.enter_context(asyncio.Runner())
            pairs = [TopicPair(load.topic, f"{self.alias}.{load.topic}", load.partitions) for load in self._loads]
            committed = self._changes.get("eu.exactly.once.source.support") == "enabled"
            self._checker = Checker(self._us.bootstrap, self._eu.bootstrap, pairs, committed=committed)
            for name, port in zip(self._names, cluster_config.choose(len(self._names)), strict=True):
                directory = self._directory / name
                directory.mkdir()
                command = java_mirror(directory) if name in self._java else ()
                self._netlocs[f"{cluster_config.HOST}:{port}"] = name
                self.nodes[name] = exits.enter_context(Mirror(self._properties(port), directory, command))
            self.writer = exits.enter_context(
                Writer(self._us.bootstrap, self._loads, records_per_s=self._records_per_s, seed=5)
            )
            exits.callback(lambda: self._runner.run(self._checker.__aexit__()))
            self._runner.run(self._checker.__aenter__())
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _properties(self, port: int) -> dict[str, str]:
        return {
            **one_flow(self._us.bootstrap, self._eu.bootstrap, f".*-{self.alias}", self.alias),
            "refresh.topics.interval.seconds": "1",
            "listeners": f"http://{cluster_config.HOST}:{port}",
            **self._changes,
        }

    # -- what is done to them ----------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names:
            self.nodes[name].start()

    def configure(self, properties: Mapping[str, str]) -> None:
        for netloc, name in self._netlocs.items():
            self.nodes[name].configure({**self._properties(int(netloc.rpartition(":")[2])), **properties})

    def make_source_follow(self) -> None:
        """Store three idle connectors that come last by name: a leader's first three of six include the source's."""
        asyncio.run(self._store_idle(("Za", "Zb", "Zc")))

    def make_topic(self, name: str) -> None:
        asyncio.run(make_topics(self._us.bootstrap, {name: 1}))

    def ask(self, node: str, method: str, path: str, body: object = None) -> Any:
        """A node's API for users, if it is open; ``path`` is what follows the flow's aliases."""
        netloc = next(netloc for netloc, name in self._netlocs.items() if name == node)
        return RestClient(f"http://{netloc}/").ask(method, f"/{self.alias}/eu{path}", body)

    # -- what is to be seen ------------------------------------------------------------------------------

    def leader(self) -> str:
        members = sum(node.is_running for node in self.nodes.values())
        return self._netlocs[self.group.await_round(members, DEADLINE_S).leader_url.split("/")[2]]

    def owners(self) -> dict[str, str]:
        return {part: self._netlocs[worker.partition("/")[0]] for part, worker in self.group.running().items()}

    def await_shared(self, *nodes: str, tasks: int = 2) -> dict[str, str]:
        """Until so many tasks run on just these nodes, and the connector on one of them."""

        def settled() -> dict[str, str]:
            self._assert_running(nodes)
            found = self.owners()
            on = {node for part, node in found.items() if part != SOURCE}
            return found if len(found) == 1 + tasks and on == set(nodes) and found.get(SOURCE) in nodes else {}

        return wait_until(settled, DEADLINE_S, f"{tasks} tasks run on {nodes}")

    def await_copying(self, *nodes: str) -> float:
        """Until every remote partition has so many records more than now; how many seconds that took."""
        began_s = time.monotonic()
        before = self._ends()
        while not before:
            self._assert_running(nodes)
            assert time.monotonic() - began_s < DEADLINE_S, "the remote topics are not made"
            before = self._ends()

        def all_grow() -> bool:
            self._assert_running(nodes)
            now = self._ends()
            return bool(now) and all(now[partition] > end + _RECORDS for partition, end in before.items())

        wait_until(all_grow, DEADLINE_S, f"every partition is copied on {nodes}")
        return time.monotonic() - began_s

    def assigned(self) -> set[str]:
        """The source partitions in the tasks' configs: ``topic-partition``."""
        configs = self.group.configs()
        found = [configs.task_config(TaskId(SOURCE, number)) or {} for number in range(configs.task_count(SOURCE))]
        return {one for config in found for one in config.get("task.assigned.partitions", "").split(",") if one}

    def compare(self) -> Report:
        report = self._runner.run(self._checker.caught_up(DEADLINE_S))
        assert report.is_caught_up, report.summary()
        return report

    def _assert_running(self, nodes: Sequence[str]) -> None:
        for name in nodes:
            assert self.nodes[name].is_running, self.nodes[name].log_lines()[-20:]

    def _ends(self) -> dict[tuple[str, int], int]:
        """Of the remote partitions; empty where one of them is not there yet."""
        return self._runner.run(self._asked_ends())

    async def _asked_ends(self) -> dict[tuple[str, int], int]:
        remote = [(f"{self.alias}.{load.topic}", index) for load in self._loads for index in range(load.partitions)]
        try:
            async with cluster_at(self._eu.bootstrap) as cluster:
                return await list_offsets(cluster, remote, LATEST)
        except RetriableError:
            return {}

    async def _store_idle(self, names: Sequence[str]) -> None:
        topic = f"mm2-configs.{self.alias}.internal"
        await make_topics(self._eu.bootstrap, {topic: 1}, {"cleanup.policy": "compact"})
        config = {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
            "source.cluster.alias": self.alias,
            "target.cluster.alias": "eu",
            "target.cluster.bootstrap.servers": self._eu.bootstrap,
            "emit.heartbeats.enabled": "false",
            "heartbeats.topic.replication.factor": "1",
        }
        async with AIOKafkaProducer(bootstrap_servers=self._eu.bootstrap) as producer:
            for name in names:
                key, value = connector_record(name, {"name": name, **config})
                await producer.send_and_wait(topic, value, key=key.encode())


def java_mirror(directory: Path) -> list[str]:
    """Kafka's own command, which takes the file as its last argument; its log is in ``directory``."""
    return java_command(
        JavaMirrorMaker.coordinates,
        JavaMirrorMaker.main_class,
        [],
        heap="512m",
        log4j2=write_log4j2(directory, directory / "java.log"),
        jvm_options=QUICK_JVM,
    )
