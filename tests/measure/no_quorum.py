"""Freeze a broker that ``stuck`` partitions need. Goal: 95 % of the others' records are copied meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kafka.admin import NewTopic

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import LATEST, list_offsets
from connect.kafka.security.connection_settings import connection_settings
from tests.kit.brokers import KafkaCluster
from tests.kit.checker import Checker, TopicPair
from tests.kit.clients import stock_admin
from tests.kit.long_run import begin, end, parser_of, say
from tests.kit.mirror import CALM, Mirror, one_flow, replicated
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

_HEALTHY: Final = "healthy"
_STUCK: Final = "stuck"
_NODES: Final = 3
#: The index of the broker that is frozen, and its id.
_VICTIM: Final = 2
_VICTIM_ID: Final = 3
_GOAL: Final = 0.95
_DEADLINE_S: Final = 600.0
_LOOK_S: Final = 1.0


def _make_target_topics(bootstrap: str, counts: Mapping[str, int]) -> None:
    """``healthy`` on the first two brokers only, ``stuck`` on all three; leaders alternate between the first two."""
    pairs = [(1, 2), (2, 1)]
    assigned = {
        _HEALTHY: {index: list(pairs[index % 2]) for index in range(counts[_HEALTHY])},
        _STUCK: {index: [*pairs[index % 2], _VICTIM_ID] for index in range(counts[_STUCK])},
    }
    with stock_admin(bootstrap) as admin:
        for name, needed in ((_HEALTHY, "2"), (_STUCK, "3")):
            configs = {"min.insync.replicas": needed}
            admin.create_topics(
                [NewTopic(name=f"us.{name}", replica_assignments=assigned[name], topic_configs=configs)]
            )


class _Ends:
    def __init__(self, source: KafkaCluster, target: KafkaCluster, partitions: int) -> None:
        nodes = ",".join(f"127.0.0.1:{node.port}" for at, node in enumerate(target.nodes) if at != _VICTIM)
        self._clusters = [
            Cluster(connection_settings({"bootstrap.servers": address}, client_id="measure", where="here"))
            for address in (source.bootstrap, nodes)
        ]
        self._partitions = partitions

    async def caught_up(self, records: float) -> None:
        async with asyncio.timeout(_DEADLINE_S):
            while True:
                with contextlib.suppress(RetriableError):  # leaders have just been elected
                    read, copied = await self.look()
                    if copied and read - copied < records:
                        return
                await asyncio.sleep(_LOOK_S)

    async def look(self) -> tuple[int, int]:
        names = (_HEALTHY, f"us.{_HEALTHY}")
        ends = [
            await list_offsets(cluster, [(name, index) for index in range(self._partitions)], LATEST)
            for cluster, name in zip(self._clusters, names, strict=True)
        ]
        return sum(ends[0].values()), sum(ends[1].values())

    async def watch(self, seconds: float) -> tuple[float, float, float]:
        """Watch for so long; return the records a second at source and target, and the longest time without one."""
        began_s = last_s = moved_s = time.monotonic()
        first = last = await self.look()
        longest_s = 0.0
        while last_s - began_s < seconds:
            await asyncio.sleep(_LOOK_S)
            try:
                now = await self.look()
            except RetriableError:
                continue  # leaders move as the broker freezes
            last_s = time.monotonic()
            if now[1] > last[1]:
                moved_s = last_s
            last = now
            longest_s = max(longest_s, last_s - moved_s)
        taken_s = last_s - began_s
        return (last[0] - first[0]) / taken_s, (last[1] - first[1]) / taken_s, longest_s

    async def close(self) -> None:
        for cluster in self._clusters:
            await cluster.close()


async def _run(options: argparse.Namespace, directory: Path) -> list[str]:
    counts = {_HEALTHY: options.partitions - options.stuck, _STUCK: options.stuck}
    config = {"min.insync.replicas": "2", "default.replication.factor": "3"}
    loads = [Load(name, count, batch_records=20) for name, count in counts.items()]
    faults: list[str] = []
    with (
        KafkaCluster.start("us", config={"offsets.topic.replication.factor": "1"}) as source,
        KafkaCluster.start("eu", nodes=_NODES, config=config) as target,
    ):
        await make_topics(source.bootstrap, counts)
        await asyncio.to_thread(_make_target_topics, target.bootstrap, counts)
        flow = one_flow(source.bootstrap, target.bootstrap, ", ".join(counts))
        # The frozen broker may coordinate the workers' group.
        properties = {**flow, **replicated(_NODES), **CALM}
        pairs = [TopicPair(name, f"us.{name}", count) for name, count in counts.items()]
        ends = _Ends(source, target, counts[_HEALTHY])
        async with Checker(source.bootstrap, target.bootstrap, pairs) as checker:
            with (
                Writer(source.bootstrap, loads, records_per_s=options.rate, seed=options.seed) as writer,
                Mirror(properties, directory) as mirror,
            ):
                mirror.start()
                await ends.caught_up(options.rate)
                written, before, idle_s = await ends.watch(options.before)
                say(f"before: {before:,.0f} of {written:,.0f} records/s, longest standstill {idle_s:.0f} s")
                target.freeze(_VICTIM)
                written, during, idle_s = await ends.watch(options.seconds)
                read, copied = await ends.look()
                say(
                    f"without quorum of {options.stuck} of {options.partitions} partitions, {options.seconds:g} s: the "
                    f"others {during:,.0f} of {written:,.0f} records/s, longest standstill {idle_s:.0f} s, "
                    f"lag at the end {read - copied:,} records"
                )
                target.thaw(_VICTIM)
                if during < _GOAL * written:
                    faults.append(f"the others lost {1 - during / written:.1%} of their throughput")
                await asyncio.to_thread(writer.stop)
                began_s = time.monotonic()
                report = await checker.caught_up(_DEADLINE_S)
                say(f"{report.summary()}; caught up {time.monotonic() - began_s:.0f} s after the quorum was back")
                faults += [
                    f"{one.target}-{one.partition}: {one.fault}" for one in report.partitions if not one.is_exact
                ]
                exit_code = await asyncio.to_thread(mirror.stop)
                faults += [f"the mirror's exit code is {exit_code}"] if exit_code else []
        await ends.close()
    return faults


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("no_quorum", __doc__, "of the load")
    parser.add_argument("--partitions", type=int, default=1000, help="of both topics (default 1000)")
    parser.add_argument("--stuck", type=int, default=200, help="of these without quorum (default 200)")
    parser.add_argument("--seconds", type=float, default=300, help="without quorum (default 300)")
    parser.add_argument("--before", type=float, default=60, help="seconds measured before (default 60)")
    parser.add_argument("--rate", type=float, default=4_000, help="records a second over all partitions (default 4000)")
    options = parser.parse_args(arguments)
    directory = begin("no quorum", options.seed)
    return end(asyncio.run(_run(options, directory)), directory)
