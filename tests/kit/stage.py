"""All that a kill run plays with: two clusters, a proxy before each node of the target, load, mirror and checker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from connect.embedded.brokers import DEFAULT_VERSION
from connectors.formats.types import TopicPartition
from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.lateness import Lateness
from tests.kit.map_judge import Verdict, judge_map
from tests.kit.mirror import EXACTLY_ONCE, Mirror, in_sync, replicated
from tests.kit.pipe import Direction
from tests.kit.processes import DeadlinePassed, Member, local_ports, slices, wait_until
from tests.kit.proxied import ConnectionState
from tests.kit.proxy import FaultProxy, put_before
from tests.kit.requests import PRODUCE
from tests.kit.spark_cluster import Spark
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

#: Several codecs, sizes and partition counts; small enough that two cores keep up with all processes at once.
LOADS: Final = (
    Load("orders", 4, "none", value_bytes=120),
    Load("payments", 3, "zstd", value_bytes=300),
    Load("clicks", 2, "lz4", value_bytes=60, batch_records=500),
    Load("audit", 1, "gzip", value_bytes=900, batch_records=20),
    Load("stock", 1, "snappy", value_bytes=40),
)
_REMOTE_PREFIX: Final = "us."
_MAP_TOPIC: Final = "mm2-offset-map.us.internal"
_LOOKS_A_PARTITION: Final = 5_000
_MOST_NAMED: Final = 5
#: How the client ids end that a worker stores source offsets under.
_STORING_CLIENT: Final = "-offsets"
_CATCH_UP_STEP_S: Final = 1.0
_LEFTOVER_DEADLINE_S: Final = 120.0


@dataclass(frozen=True)
class Ending:
    """How a run ended: the mirror's exit code, None where it had ended before, the last comparison, what was wrong."""

    exit_code: int | None
    comparison: Report
    faults: tuple[str, ...]


class Stage:
    """Use as a context manager; whatever was started is ended on the way out, the mirror first."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        loads: Sequence[Load] = LOADS,
        records_per_s: float = 15_000,
        source_nodes: int = 1,
        target_nodes: int = 1,
        source_proxied: bool = False,
        versions: tuple[str, str] = (DEFAULT_VERSION, DEFAULT_VERSION),
        properties: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        spark: Spark | None = None,
        exactly_once: bool = False,
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._loads = tuple(loads)
        self._records_per_s = records_per_s
        self._source_nodes, self._target_nodes = source_nodes, target_nodes
        self._source_proxied = source_proxied
        self._source_version, self._target_version = versions
        #: The Spark that the mirror uses, where that is not its own.
        self.spark = spark
        self.exactly_once = exactly_once
        self._properties = {
            **(EXACTLY_ONCE if exactly_once else {}),
            **(spark.properties if spark else {}),
            **(properties or {}),
        }
        self._command = command
        self._exits = contextlib.ExitStack()
        self.proxies: list[FaultProxy] = []
        self.source_proxies: list[FaultProxy] = []
        self.partitions = sum(load.partitions for load in loads)
        self.lateness = Lateness()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            self._open(exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _start_source(self, exits: contextlib.ExitStack) -> KafkaCluster:
        advertised = put_before(exits, self.source_proxies, self._seed) if self._source_proxied else None
        return exits.enter_context(
            KafkaCluster.start(
                "us",
                nodes=self._source_nodes,
                version=self._source_version,
                config=in_sync(self._source_nodes),
                advertised=advertised,
            )
        )

    def _start_target(self, exits: contextlib.ExitStack) -> KafkaCluster:
        return exits.enter_context(
            KafkaCluster.start(
                "eu",
                nodes=self._target_nodes,
                version=self._target_version,
                config=in_sync(self._target_nodes),
                advertised=put_before(exits, self.proxies, self._seed),
            )
        )

    def _ways_in(self) -> dict[str, str]:
        """How the mirror comes into both clusters: to the target, and the source if asked, through the proxies."""
        return {
            "us.bootstrap.servers": self.us.proxied_bootstrap if self._source_proxied else self.us.bootstrap,
            "eu.bootstrap.servers": self.eu.proxied_bootstrap,
        }

    def _open(self, exits: contextlib.ExitStack) -> None:
        with ThreadPoolExecutor(2) as pool:
            source = pool.submit(self._start_source, exits)
            target = pool.submit(self._start_target, exits)
        self.us, self.eu = source.result(), target.result()
        self._runner = exits.enter_context(asyncio.Runner())
        topics = {load.topic: load.partitions for load in self._loads}
        self._runner.run(make_topics(self.us.bootstrap, topics, replicas=min(3, self._source_nodes)))
        pairs = [TopicPair(load.topic, _REMOTE_PREFIX + load.topic, load.partitions) for load in self._loads]
        self.checker = Checker(self.us.bootstrap, self.eu.bootstrap, pairs, committed=self.exactly_once)
        self._runner.run(self.checker.__aenter__())
        exits.callback(lambda: self._runner.run(self.checker.__aexit__()))
        self.writer = exits.enter_context(
            Writer(self.us.bootstrap, self._loads, records_per_s=self._records_per_s, seed=self._seed)
        )
        self.mirror = exits.enter_context(Mirror(self._mirror_properties(), self._directory, self._command))

    def _mirror_properties(self) -> dict[str, str]:
        """Two tasks."""
        return {
            "clusters": "us, eu",
            **self._ways_in(),
            "us->eu.enabled": "true",
            "us->eu.topics": ", ".join(load.topic for load in self._loads),
            **replicated(self._target_nodes),
            "tasks.max": "2",
            "refresh.topics.interval.seconds": "60",
            **self._properties,
        }

    def set_going(self, deadline_s: float) -> list[str]:
        """Start the mirror under load and let it catch up once; what was wrong with that."""
        wait_until(self.every_partition_written, deadline_s, "every source partition has records")
        self.mirror.start()
        first = self.caught_up(deadline_s)
        return [] if first.is_caught_up else [f"the mirror did not get going in {deadline_s:g} s: {first.summary()}"]

    def look_how_late(self) -> None:
        """Ask the mirror how late it was in its present life, if it has a REST API."""
        if url := self._properties.get("listeners"):
            self.lateness.look(url, self.mirror.log_file)

    def shut_down(self) -> Ending:
        self.writer.stop()
        faults: list[str] = []
        exit_code = None
        if self.mirror.is_running:
            self.look_how_late()
            exit_code = self.mirror.stop()
            if exit_code:
                faults.append(f"the mirror ended with exit code {exit_code} after SIGTERM")
        else:
            words = " ".join(self.mirror.log_lines()[-1:])
            faults.append(f"the mirror had ended by itself; its last words: {words}")
        try:
            wait_until(lambda: not self.mirror.leftovers(), _LEFTOVER_DEADLINE_S, "no process of the mirror is left")
        except DeadlinePassed:
            left = [f"{member.role.value} {member.pid}" for member in self.mirror.leftovers()]
            faults.append(f"left behind: {', '.join(left)}")
        return Ending(exit_code, self.check(), tuple(faults))

    def every_partition_written(self) -> bool:
        counts = self.writer.acknowledged()
        return all(count for topic in counts.values() for count in topic.values())

    def caught_up(self, deadline_s: float) -> Report:
        """The comparison once the target has all the source had when asked, at the deadline, or with a dead mirror."""
        end = time.monotonic() + deadline_s
        while True:
            report = self._runner.run(self.checker.caught_up(_CATCH_UP_STEP_S))
            if report.is_caught_up or time.monotonic() > end or not self.mirror.is_running:
                return report

    def compare(self, deadline_s: float) -> Report:
        """Pause the load, let the mirror catch up, and go on writing."""
        self.writer.pause()
        try:
            return self.caught_up(deadline_s)
        finally:
            self.writer.resume()

    def check(self) -> Report:
        return self._runner.run(self.checker.check())

    def map_faults(self) -> list[str]:
        """What brute force has against the offset map once the mirror has stopped."""
        every = [TopicPartition(load.topic, at) for load in self._loads for at in range(load.partitions)]
        return [
            f"{partition}: {fault}"
            for partition in every
            for fault in self._runner.run(self._judge_map(partition)).faults[:_MOST_NAMED]
        ]

    async def _judge_map(self, partition: TopicPartition) -> Verdict:
        return await judge_map(
            self.us, self.eu, _MAP_TOPIC, partition, read_committed=self.exactly_once, looks=_LOOKS_A_PARTITION
        )

    def passed_bytes(self, node: int | None = None) -> int:
        proxies = self.proxies if node is None else [self.proxies[node]]
        return sum(proxy.passed_bytes(Direction.REQUESTS) for proxy in proxies)

    def release(self) -> None:
        for proxy in (*self.proxies, *self.source_proxies):
            proxy.release()

    def kept_bytes(self, direction: Direction) -> int:
        return sum(proxy.kept_bytes(direction) for proxy in self.proxies)

    def asked(self, api_keys: Collection[int]) -> int:
        """How many such requests were sent to the target by anybody but those who only store positions there."""
        return sum(
            counts[api_key]
            for proxy in self.proxies
            for client_id, counts in proxy.requests().items()
            if not (client_id or "").endswith(_STORING_CLIENT)
            for api_key in api_keys
        )

    def members(self) -> list[Member]:
        return [*self.mirror.members(), *(self.spark.members() if self.spark else [])]

    def slices(self) -> list[Member]:
        ports = [proxy.port for proxy in self.proxies]
        connected = [*slices(self.mirror.pid, ports), *(self.spark.slices(ports) if self.spark else [])]
        return [member for member in connected if self.producing(member)]

    def producing(self, member: Member) -> list[ConnectionState]:
        ports = local_ports(member.process)
        states = (state for proxy in self.proxies for state in proxy.connections())
        return [state for state in states if state.client_port in ports and self._produces(state)]

    def _produces(self, state: ConnectionState) -> bool:
        return bool(state.requests.get(PRODUCE))
