"""All that a kill run plays with: two clusters, a proxy before each node of the target, load, mirror and checker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from connect.embedded.brokers import KafkaCluster
from tests.kit.checker import Checker, Report, TopicPair
from tests.kit.mirror import Mirror
from tests.kit.pipe import Direction
from tests.kit.processes import Member, local_ports, slices
from tests.kit.proxied import ConnectionState
from tests.kit.proxy import FaultProxy
from tests.kit.requests import PRODUCE
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
#: How the client ids end that a worker stores source offsets under.
_STORING_CLIENT: Final = "-offsets"
_CATCH_UP_STEP_S: Final = 1.0


class Stage:
    """Use as a context manager; whatever was started is ended on the way out, the mirror first."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        loads: Sequence[Load] = LOADS,
        records_per_s: float = 15_000,
        target_nodes: int = 1,
        properties: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._loads = tuple(loads)
        self._records_per_s = records_per_s
        self._target_nodes = target_nodes
        self._properties = dict(properties or {})
        self._command = command
        self._exits = contextlib.ExitStack()
        self.proxies: list[FaultProxy] = []
        self.partitions = sum(load.partitions for load in loads)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            self._open(exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _open(self, exits: contextlib.ExitStack) -> None:
        self.us = exits.enter_context(KafkaCluster.start("us"))
        self.eu = exits.enter_context(
            KafkaCluster.start("eu", nodes=self._target_nodes, advertised=self._proxy_before(exits))
        )
        self._runner = exits.enter_context(asyncio.Runner())
        self._runner.run(make_topics(self.us.bootstrap, {load.topic: load.partitions for load in self._loads}))
        pairs = [TopicPair(load.topic, _REMOTE_PREFIX + load.topic, load.partitions) for load in self._loads]
        self.checker = Checker(self.us.bootstrap, self.eu.bootstrap, pairs)
        self._runner.run(self.checker.__aenter__())
        exits.callback(lambda: self._runner.run(self.checker.__aexit__()))
        self.writer = exits.enter_context(
            Writer(self.us.bootstrap, self._loads, records_per_s=self._records_per_s, seed=self._seed)
        )
        self.mirror = exits.enter_context(Mirror(self._mirror_properties(), self._directory, self._command))

    def _proxy_before(self, exits: contextlib.ExitStack) -> Callable[[int, int], tuple[str, int]]:
        def advertised(node: int, port: int) -> tuple[str, int]:
            proxy = exits.enter_context(FaultProxy.start("127.0.0.1", port, seed=self._seed + node))
            self.proxies[node : node + 1] = [proxy]  # again when a start is tried again on other ports
            return proxy.address

        return advertised

    def _mirror_properties(self) -> dict[str, str]:
        """Two tasks; the target is reached through the proxies only."""
        replicas = min(3, self._target_nodes)
        return {
            "clusters": "us, eu",
            "us.bootstrap.servers": self.us.bootstrap,
            "eu.bootstrap.servers": self.eu.proxied_bootstrap,
            "us->eu.enabled": "true",
            "us->eu.topics": ", ".join(load.topic for load in self._loads),
            "us->eu.emit.heartbeats.enabled": "false",
            "eu->us.emit.heartbeats.enabled": "false",
            "replication.factor": str(replicas),
            "offset.storage.replication.factor": str(replicas),
            "offset-syncs.topic.replication.factor": str(replicas),
            "tasks.max": "2",
            "refresh.topics.interval.seconds": "60",
            **self._properties,
        }

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

    def check(self) -> Report:
        return self._runner.run(self.checker.check())

    def passed_bytes(self, node: int | None = None) -> int:
        """What has gone to the target, or to one node of it."""
        proxies = self.proxies if node is None else [self.proxies[node]]
        return sum(proxy.passed_bytes(Direction.REQUESTS) for proxy in proxies)

    def release(self) -> None:
        """Let all proxies pass what they hold."""
        for proxy in self.proxies:
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

    def slices(self) -> list[Member]:
        """The Python workers that now write to the target."""
        connected = slices(self.mirror.pid, [proxy.port for proxy in self.proxies])
        return [member for member in connected if self.producing(member)]

    def producing(self, member: Member) -> list[ConnectionState]:
        """The connections on which a process has sent Produce requests."""
        ports = local_ports(member.process)
        states = (state for proxy in self.proxies for state in proxy.connections())
        return [state for state in states if state.client_port in ports and state.requests.get(PRODUCE)]
