"""The two clusters of a run, a source of one broker and a target of as many as there are replicas, and their topics."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.loads import AnyLoad, Load
from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import connection_settings
from connect.wire.batch import BatchHeader, extents, read_header
from connectors.dataplane import fetch_api
from tests.kit.brokers import KafkaCluster
from tests.kit.pipe import Direction
from tests.kit.proxy import FaultProxy, put_before
from tests.kit.secured import Secured, start_secured
from tests.kit.topics import make_topics, until_gone

#: Both clusters alike. Deleted topics leave the disk at once, so that one run's files do not burden the next.
BROKER: Final = {
    "log.segment.delete.delay.ms": "1000",
    "log.retention.ms": "-1",
    # Kafka's default, so that a segment holds 1 GiB.
    "log.index.size.max.bytes": str(10 * 1024 * 1024),
}
#: Of the target alone. Its logs reach their size within seconds and keep it, so that the same memory is used again:
#: on a virtual machine a page that is touched for the first time can cost more than all that is measured.
_TARGET: Final = BROKER | {
    "log.segment.bytes": str(32 * 1024 * 1024),
    "log.retention.bytes": str(32 * 1024 * 1024),
    "log.retention.check.interval.ms": "1000",
    "log.index.size.max.bytes": str(256 * 1024),
}
_HEAP: Final = ("-Xms512m", "-Xmx1g")
#: As brokers are often set; the kit's own is of seconds.
_REAUTH_MS: Final = 3_600_000
#: How much is looked at of a topic, and of one of its partitions at least.
_SAMPLE_BYTES: Final = 32 * 1024 * 1024
_PARTITION_SAMPLE_BYTES: Final = 2 * 1024 * 1024
_DEADLINE_S: Final = 120.0


class BenchError(Exception):
    """A run that cannot be counted, with the reason in one line."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a topic holds; ``record_bytes`` and ``batch_bytes`` are means, headers of batches included."""

    records: int
    record_bytes: float
    batch_bytes: float


class Side:
    """One cluster, as the bench asks it. ``proxies`` stand before its brokers for clients at a distance."""

    def __init__(
        self, brokers: KafkaCluster, proxies: Sequence[FaultProxy] = (), secured: Secured | None = None
    ) -> None:
        self.brokers = brokers
        self._proxies = proxies
        self._secured = secured
        self._settings = connection_settings(
            {"bootstrap.servers": brokers.bootstrap}, client_id="bench", where="the bench"
        )
        self.cluster = Cluster(self._settings)

    @property
    def bootstrap(self) -> str:
        return self.brokers.bootstrap

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.brokers.nodes]

    @property
    def ports(self) -> list[int]:
        """Every port at which a client may be connected, proxies' included."""
        return [way.advertised[1] for node in self.brokers.listeners for way in node.values()]

    def way_in(self, load: AnyLoad, *, is_far: bool = False) -> Mapping[str, str]:
        """What a contender's file says to get in for this load."""
        if self._secured is not None and isinstance(load, Load) and load.listener == "SCRAM_TLS":
            return self._secured.properties(load.listener)
        return {"bootstrap.servers": self.brokers.proxied_bootstrap if is_far else self.bootstrap}

    def keep_away(self, round_trip_ms: float) -> None:
        """From now on it is so far from clients that come through the proxies."""
        for proxy in self._proxies:
            for direction in Direction:
                proxy.delay(direction, round_trip_ms / 2)

    async def create(self, topic: str, partitions: int, replication: int) -> None:
        await make_topics(self.bootstrap, {topic: partitions}, replicas=replication)

    async def clear(self, kept: Collection[str]) -> None:
        """Delete all topics but these and Kafka's own, and wait until they are gone."""
        names = {name for name in (await self.cluster.metadata(None)).topics if not name.startswith("__")}
        gone = names.difference(kept)
        if not gone:
            return
        admin = Admin(self._settings)
        try:
            for topic, error in (await admin.delete_topics(gone)).items():
                if error is not None:
                    raise BenchError(f"{self.bootstrap}: cannot delete topic {topic}: {error}")
        finally:
            await admin.close()
        await until_gone(self.cluster, gone)

    async def records(self, topic: str, partitions: int) -> int:
        """How many records it has been given; 0 while it is not there."""
        return sum((await self.ends(topic, partitions)).values())

    async def ends(self, topic: str, partitions: int) -> Mapping[int, int]:
        """Return the next offset of each partition; nothing while the topic is not there."""
        try:
            ends = await list_offsets(self.cluster, [(topic, index) for index in range(partitions)], LATEST)
        except RetriableError:
            return {}
        return {index: offset for (_, index), offset in ends.items()}

    async def contents(self, topic: str, partitions: int, begin: Mapping[int, int] | None = None) -> Contents:
        """Means are those of the batches behind the offset of each partition in ``begin``, else of the first kept."""
        limit = max(_SAMPLE_BYTES // partitions, _PARTITION_SAMPLE_BYTES)
        kept = await list_offsets(self.cluster, [(topic, index) for index in range(partitions)], EARLIEST)
        headers = [
            header
            for (_, index), earliest in kept.items()
            for header in await self._sample(topic, index, max(earliest, (begin or {}).get(index, 0)), limit)
        ]
        sampled = sum(header.record_count for header in headers)
        if not sampled:
            raise BenchError(f"{self.bootstrap}: {topic} holds nothing")
        size = sum(header.size_bytes for header in headers)
        return Contents(await self.records(topic, partitions), size / sampled, size / len(headers))

    async def _sample(self, topic: str, index: int, offset: int, limit: int) -> Sequence[BatchHeader]:
        metadata = await self.cluster.metadata({topic})
        leader = metadata.leader(topic, index)
        if leader is None:
            raise BenchError(f"{self.bootstrap}: {topic}-{index} has no leader")
        connection = await self.cluster.connection(leader)
        on_wire = fetch_api.TopicOnWire(topic, metadata.topics[topic].topic_id)
        limits = fetch_api.FetchLimits(0, 1, limit, limit, fetch_api.READ_UNCOMMITTED)
        row = await fetch_api.fetch_one(connection, on_wire, index, (offset, -1, -1), limits)
        headers = [read_header(row.records, start) for start, _, _ in extents(row.records)]
        return [header for header in headers if not header.is_control]


@dataclass(frozen=True, slots=True)
class Bed:
    """Both sides of a run."""

    source: Side
    target: Side

    async def clear(self, kept: Collection[str]) -> None:
        """Remove what earlier runs left: every topic of the target, and of the source all but ``kept``."""
        async with asyncio.timeout(_DEADLINE_S):
            await self.target.clear(())
            await self.source.clear(kept)

    def ways_in(self, load: AnyLoad) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Of the source and of the target, at the load's distance from now on."""
        far = load.far if isinstance(load, Load) else ""
        for name, side in (("source", self.source), ("target", self.target)):
            side.keep_away(load.round_trip_ms if isinstance(load, Load) and far == name else 0)
        return self.source.way_in(load, is_far=far == "source"), self.target.way_in(load, is_far=far == "target")

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.source.cluster.close)
            closing.push_async_callback(self.target.cluster.close)


@contextmanager
def start_bed(replication: int, *, is_secured: bool, folder: Path) -> Iterator[Bed]:
    """A source of one broker and a target of as many as there are replicas; a write needs two, if there are two."""
    config = _TARGET | {"min.insync.replicas": str(min(2, replication))}
    with ExitStack() as exits:
        start = _secured_side if is_secured else _side
        yield Bed(start("bench-us", 1, BROKER, folder, exits), start("bench-eu", replication, config, folder, exits))


def _side(name: str, nodes: int, config: Mapping[str, str], folder: Path, exits: ExitStack) -> Side:
    proxies: list[FaultProxy] = []
    advertised = put_before(exits, proxies)
    started = KafkaCluster.start(
        name, nodes=nodes, config=config, base_dir=folder, jvm_options=_HEAP, advertised=advertised
    )
    return Side(exits.enter_context(started), proxies)


def _secured_side(name: str, nodes: int, config: Mapping[str, str], folder: Path, exits: ExitStack) -> Side:
    stores = Path(tempfile.mkdtemp(prefix=name, dir=folder))
    started = start_secured(name, stores, nodes=nodes, config=config, jvm_options=_HEAP, reauth_ms=_REAUTH_MS)
    secured = exits.enter_context(started)
    return Side(secured.cluster, secured=secured)
