"""A process of MirrorMaker 1: its streams, on one Spark and one control link, until it is stopped or one ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final

from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, unless
from connect.kafka.lease_thread import LeaseThread
from connectors.flow_name import FlowName
from connectors.mirror_maker_1.lent import Lent
from connectors.mirror_maker_1.listener import Listener
from connectors.mirror_maker_1.settings import MirrorSettings, SourceSettings
from connectors.mirror_maker_1.stream import Stream
from connectors.source.links import LinkServer, LinkSettings
from connectors.source.progress import FlowProgress
from connectors.source.takeover import Clusters
from connectors.source.unfenced import MissingRights
from connectors.spark.engine import SparkEngine

log = logging.getLogger(__name__)

_INSTANCE_BYTES: Final = 5
#: For so long the loop may stand still before heartbeats and leases stop.
_PROGRESS_TIMEOUT_S: Final = 30.0


class MirrorMaker1:
    """Runs the streams of ``settings`` on an ``engine`` that has begun, and is the caller's to stop."""

    def __init__(self, settings: MirrorSettings, engine: SparkEngine) -> None:
        self._settings = settings
        self._engine = engine
        self._instance = secrets.token_hex(_INSTANCE_BYTES)
        self._streams: dict[FlowName, list[Stream]] = {}
        self._over = asyncio.Event()
        self._leases = LeaseThread(_PROGRESS_TIMEOUT_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set.

        Raises:
            PermanentError: what one stream ended of; the others are stopped in order before.
        """
        async with AsyncExitStack() as closing:
            self._leases.start()
            closing.push_async_callback(self._leases.stop)
            links = LinkServer(LinkSettings(), self._leases, self._engine.code)
            await links.start()
            closing.push_async_callback(links.stop)
            admin = Admin(self._settings.target, "target", fewer_replicas="set their default.replication.factor lower")
            closing.push_async_callback(admin.close)
            # Each by itself: one that does not answer keeps none of the others waiting.
            async with Scope("kafka-mirror-maker") as scope:
                sources = [
                    scope.spawn(self._copy(source, closing, links, admin), f"copy {source.flow}")
                    for source in self._settings.sources
                ]
                stopping = scope.spawn(stop.wait(), "stop of kafka-mirror-maker")
                await asyncio.wait([*sources, stopping], return_when="FIRST_COMPLETED")
                self._over.set()
                await asyncio.wait(sources)
                _raise_first(sources)

    def progress(self) -> list[FlowProgress]:
        """A picture of every source."""
        return [
            FlowProgress(flow, "running", 0, [one for stream in streams for one in stream.view()])
            for flow, streams in self._streams.items()
        ]

    async def _copy(self, source: SourceSettings, closing: AsyncExitStack, links: LinkServer, admin: Admin) -> None:
        """The streams of one source, until it is over or one of them ends of something, which is raised."""
        clusters = await self._clusters(source, closing)
        if clusters is None:
            return
        streams = self._streams[source.flow_name] = [
            self._stream(source, clusters, number, links, admin) for number in range(self._settings.options.streams)
        ]
        async with Scope(source.flow) as scope:
            running = [scope.spawn(stream.run(), f"{source.flow} stream {at}") for at, stream in enumerate(streams)]
            over = scope.spawn(self._over.wait(), f"end of {source.flow}")
            await asyncio.wait([*running, over], return_when="FIRST_COMPLETED")
            for stream in streams:
                stream.stop()
            # The others end in order; then the error that ended one of them is raised.
            await asyncio.wait(running)
            _raise_first(running)

    async def _clusters(self, source: SourceSettings, closing: AsyncExitStack) -> Clusters | None:
        """Both clusters, once they answer; None where it was over before."""
        here = Cluster(source.connection.with_client_id(f"{source.group.client_id}-admin"), source.name)
        closing.push_async_callback(here.close)
        there = Cluster(self._settings.target.with_client_id(f"{self._settings.target.client_id}-admin"), "target")
        closing.push_async_callback(there.close)
        for cluster in (here, there):
            if not await reached(cluster, self._over):
                return None
        return Clusters(here, there, missing_rights=MissingRights(source.flow, f"{source.group.group_id}-"))

    def _stream(
        self, source: SourceSettings, clusters: Clusters, number: int, links: LinkServer, admin: Admin
    ) -> Stream:
        lent = Lent(self._settings, source, number, self._instance, self._engine, links, self._leases, clusters, admin)
        listener = self._settings.options.listener
        return Stream(lent, Listener(listener) if listener is not None else None)


def _raise_first(ended: Iterable[asyncio.Task[None]]) -> None:
    """Raise the error of the first one that failed; the log names those of the others."""
    failed = [error for task in ended if (error := task.exception()) is not None]
    for error in failed[1:]:
        log.error("%s", error)
    if failed:
        raise failed[0]


async def reached(cluster: Cluster, stop: asyncio.Event) -> bool:
    """Whether a broker answers before ``stop`` is set. Raises SecurityError where one refuses us."""

    async def reach() -> bool:
        await cluster.wait_reachable(lambda error: log.warning("%s; trying again", error))
        return True

    return await unless(stop, reach(), f"reach cluster {cluster.name}") is not None
