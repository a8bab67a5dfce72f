"""The composition root of a dedicated mirror: one Spark, one control link, and a connector runner for each flow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from connect.core.errors import ConfigError, PermanentError
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST
from connect.runtime.standalone import ConnectorRunner
from connectors.clients import FlowClients
from connectors.dataplane.plan import SliceSettings
from connectors.flows import Flow, MirrorMakerConfig
from connectors.settings import MirrorSourceSettings
from connectors.source.connector import MirrorSourceConnector
from connectors.source.engine import SparkEngine
from connectors.source.links import LISTENER_KEY, LinkServer, LinkSettings
from connectors.source.progress import FlowProgress
from connectors.source.second_line import SecondLine
from connectors.source.store import MirrorPositionStore, StoreSettings
from connectors.source.takeover import Clusters
from connectors.source.task import MirrorSourceTask, TaskServices, TaskSettings
from connectors.source.topology import decode_partitions

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25


class FlowsFailed(PermanentError):
    """No flow goes on any more."""


class StopFailed(PermanentError):
    """A flow failed while it was stopped: what it copied last may not be stored, and the next start finds it out."""


class MirrorMaker:
    """Mirrors ``flows`` until stopped, on an ``engine`` that may have begun already and is stopped with it."""

    def __init__(self, config: MirrorMakerConfig, flows: Sequence[Flow], engine: SparkEngine) -> None:
        self._config = config
        self._mirrors = [_FlowMirror(flow) for flow in flows]
        self._links = LinkServer(_link_settings(config, [mirror.settings for mirror in self._mirrors]), engine.code)
        self._engine = engine

    async def start(self) -> None:
        """Start every flow; clusters that do not answer are waited for, and said so every few seconds."""
        await self._links.start()
        self._engine.begin()
        await asyncio.gather(*(mirror.start(self._engine, self._links) for mirror in self._mirrors))

    async def run_until(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set; raises :class:`FlowsFailed` when no flow goes on any more."""
        while not stop.is_set():
            if all(mirror.has_failed for mirror in self._mirrors):
                reasons = "; ".join(f"{mirror.flow}: {mirror.failure}" for mirror in self._mirrors)
                raise FlowsFailed(f"no flow goes on: {reasons}")
            try:
                await asyncio.wait_for(stop.wait(), _LOOK_S)
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Stop copying, store positions, end Spark; within a few seconds.

        Raises :class:`StopFailed` where a flow failed meanwhile.
        """
        failed_before = {mirror.flow for mirror in self._mirrors if mirror.failure is not None}
        stopped = await asyncio.gather(*(mirror.stop() for mirror in self._mirrors), return_exceptions=True)
        await self._engine.stop()
        await self._links.stop()
        failed = []
        for mirror, raised in zip(self._mirrors, stopped, strict=True):
            error = raised or (mirror.failure if mirror.flow not in failed_before else None)
            if error is not None:
                log.error("%s did not stop in order", mirror.flow, exc_info=error)
                failed.append(f"{mirror.flow}: {error}")
        if failed:
            raise StopFailed(f"not all was stopped in order: {'; '.join(failed)}")

    def progress(self) -> list[FlowProgress]:
        """A picture of every flow."""
        now_ms = int(time.time() * 1000)
        return [mirror.progress(now_ms) for mirror in self._mirrors]


class _FlowMirror:
    """One flow: its clusters, its connector and its tasks."""

    def __init__(self, flow: Flow) -> None:
        self.flow = str(flow)
        self.settings = flow.settings()
        self._clients: FlowClients = flow.clients()
        self._group = flow.worker_config()["group.id"]
        self._props = flow.connector_config()
        self._runner: ConnectorRunner | None = None
        self._closing = AsyncExitStack()

    @property
    def failure(self) -> BaseException | None:
        return self._runner.failure if self._runner else None

    @property
    def has_failed(self) -> bool:
        return self._runner is not None and self._runner.has_failed

    async def start(self, engine: SparkEngine, links: LinkServer) -> None:
        settings = self.settings
        source = self._opened(Cluster(self._clients.source_admin(), settings.source_alias))
        target = self._opened(Cluster(self._clients.target_admin(), settings.target_alias))
        admin = Admin(self._clients.target_admin(), settings.target_alias)
        self._closing.push_async_callback(admin.close)
        waiting = _waiting(self.flow)
        await asyncio.gather(source.wait_reachable(waiting), target.wait_reachable(waiting))
        second_line = SecondLine(self.flow, f"{self._group}-{settings.name}-")
        services = TaskServices(engine, links, Clusters(source, target, second_line=second_line), admin)
        store_cluster = self._opened(Cluster(self._clients.offsets(), settings.target_alias))
        self._runner = ConnectorRunner(
            f"{self.flow} {settings.name}",
            MirrorSourceConnector(settings, self._props, source, target, admin),
            lambda props: self._task(props, services, store_cluster),
            settings.tasks_max,
        )
        await self._runner.start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.stop()
        await self._closing.aclose()

    def progress(self, now_ms: int) -> FlowProgress:
        tasks = [task for task in (self._runner.tasks if self._runner else []) if isinstance(task, MirrorSourceTask)]
        return FlowProgress(
            flow=self.flow,
            state=_state([task.state for task in tasks]),
            spark_epoch=max((task.epoch for task in tasks), default=0),
            partitions=tuple(view for task in tasks for view in task.view(now_ms)),
        )

    def _opened(self, cluster: Cluster) -> Cluster:
        self._closing.push_async_callback(cluster.close)
        return cluster

    def _task(self, props: Mapping[str, str], services: TaskServices, store_cluster: Cluster) -> MirrorSourceTask:
        settings, index = self.settings, int(props["task.index"])
        transactional_id = f"{self._group}-{settings.name}-{index}"
        store = MirrorPositionStore(
            store_cluster,
            services.admin,
            StoreSettings(
                connector=settings.name,
                source_alias=settings.source_alias,
                offsets_topic=settings.offsets_topic,
                map_topic=f"mm2-offset-map.{settings.source_alias}.internal",
                transactional_id=f"{transactional_id}-commit",
                replication_factor=settings.offsets_topic_replication_factor,
                partitions=settings.offsets_topic_partitions,
            ),
            services.clusters.second_line,
        )
        task = TaskSettings(
            flow=self.flow,
            transactional_id=transactional_id,
            partitions=tuple(decode_partitions(props["task.assigned.partitions"])),
            remote_topic=settings.remote_topic,
            slice=_slice_settings(settings, self._clients, index),
            epoch_ms=settings.epoch_ms,
            commit_interval_ms=settings.commit_interval_ms,
            logs_skipped=settings.logs_skipped,
            reset_to=LATEST if settings.auto_offset_reset == "latest" else EARLIEST,
        )
        return MirrorSourceTask(task, services, store)


def _slice_settings(settings: MirrorSourceSettings, clients: FlowClients, index: int) -> SliceSettings:
    """What a slice is told; fetch settings that the user did not name keep the copy's own defaults."""
    named = {
        "fetch_max_bytes": settings.fetch_max_bytes,
        "partition_max_bytes": settings.max_partition_fetch_bytes,
        "fetch_max_wait_ms": settings.fetch_max_wait_ms,
        "fetch_min_bytes": settings.fetch_min_bytes,
    }
    return SliceSettings(
        flow=settings.flow,
        task=index,
        source=clients.replication_consumer(index).to_wire(),
        target=clients.record_producer(index).to_wire(),
        read_committed=settings.read_committed,
        lease_ms=settings.lease_ms,
        skip_refused=settings.skips_refused,
        compression=settings.compression,
        **{name: value for name, value in named.items() if value is not None},
    )


def _link_settings(config: MirrorMakerConfig, settings: Sequence[MirrorSourceSettings]) -> LinkSettings:
    """One listener serves all flows, so they must agree on it."""
    found = dict.fromkeys((one.link_listener, one.link_advertised_address) for one in settings)
    if len(found) > 1:
        raise config.located(
            ConfigError(
                f"{LISTENER_KEY} differs between flows; one listener serves all, so write it at the top", LISTENER_KEY
            ),
            [LISTENER_KEY],
        )
    ((listener, advertised),) = found
    try:
        return LinkSettings.parse(listener, advertised)
    except ConfigError as error:
        raise config.located(error, [error.key or ""]) from None


def _state(states: Sequence[str]) -> str:
    for state in ("failed", "recovering", "starting", "running"):
        if state in states:
            return state
    return "stopped" if states else "starting"


def _waiting(flow: str) -> Callable[[str], None]:
    return lambda line: log.warning("%s: %s", flow, line)
