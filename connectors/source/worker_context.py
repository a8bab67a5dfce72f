"""What a worker process shares among its mirrors: one Spark and one control link server for all, and clusters for the
tasks of each connector."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.committed_offsets import WorkHeld
from connect.kafka.log.topic_admin import Admin
from connect.kafka.long_log import LongLogs
from connect.kafka.threads import LeaseLoop
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.connector_base import KeptReports, WrittenLatencies
from connectors.control_link.server import LinkServer, LinkSettings
from connectors.flow_facts import Copied, FlowHistory, FlowProgress, Tally, Trend, VerifiedFacts
from connectors.flow_progress import NOTHING_KNOWN, UNKNOWN, Contact, FlowLag, LagSnapshot, Meters, Takeovers
from connectors.formats.types import FlowName, TopicPartition
from connectors.internal_topics import PartitionState
from connectors.lag_reader import NOTHING, ContactWatch, SharedLag
from connectors.source.positions.partition_pairs import Clusters
from connectors.source.positions.stored_positions import MissingRights
from connectors.source.task import MirrorSourceTask
from connectors.spark.engine import SparkEngine
from connectors.transforms.target_names import FindPlugin
from connectors.verification.state import LastVerification

#: A look is kept for this long after it was last read.
_KEPT_S: Final = 3600.0
#: Java's class and its alias, without the package.
_ON_SPARK: Final = ("MirrorSourceConnector", "MirrorSource")


class SharedSpark:
    """The Spark of a process, started with its first task. ``make`` returns a new engine that is not started;
    ``leases`` owns the sockets of its links."""

    def __init__(self, make: Callable[[], SparkEngine], link: LinkSettings, leases: LeaseLoop) -> None:
        self._make, self._link, self._leases = make, link, leases
        #: None until a task or a start of the worker has needed it.
        self.engine: SparkEngine | None = None
        self._links: LinkServer | None = None
        self._starting = asyncio.Lock()

    def begin(self) -> None:
        """Start Spark in the background, before a task needs it."""
        if self.engine is None:
            self.engine = self._make()
            self.engine.begin()

    async def get(self) -> tuple[SparkEngine, LinkServer]:
        """Start and return both. Raises ConfigError if the link cannot listen at its address."""
        async with self._starting:
            self.begin()
            assert self.engine is not None
            if self._links is None:
                links = LinkServer(self._link, self._leases, self.engine.code)
                await links.start()
                self._links = links
            return self.engine, self._links

    def is_for(self, connector_class: str) -> bool:
        """Return whether the tasks of a connector class, full name or alias, run on Spark."""
        return connector_class.strip().rpartition(".")[2] in _ON_SPARK

    async def ready(self) -> None:
        """Start both, and wait until Spark accepts jobs. Raises ConfigError, EngineLost or EngineBroken."""
        engine, _ = await self.get()
        await engine.ready()

    def to_json(self) -> dict[str, Any]:
        """Return where Spark is, its slots (null if only Spark knows) and those in use, and why it does not run."""
        engine = self.engine
        if engine is None:
            return {"place": "", "slots": None, "used": 0, "problem": ""}
        return {
            "place": engine.settings.place,
            "slots": engine.settings.slots(),
            "used": engine.jobs,
            "problem": engine.problem,
        }

    @property
    def problem(self) -> str:
        """Why Spark does not run now; empty if it runs or was not started."""
        return "" if self.engine is None else self.engine.problem

    async def stop(self) -> None:
        """Stop Spark and its links within a few seconds."""
        if self.engine is not None:
            await self.engine.stop()
        if self._links is not None:
            await self._links.stop()


@dataclass(slots=True)
class FlowParts:
    """What the connector and the tasks of one flow share on a worker."""

    clusters: Clusters
    store: Cluster
    admin: Admin


@dataclass(slots=True)
class _SharedClusters:
    name: str
    clients: FlowClients
    parts: FlowParts
    closing: AsyncExitStack
    users: int = 0


@dataclass(slots=True)
class FlowLook:
    """What was last read of a flow for its verdict, at ``at_ms`` since 1970; concurrent readers wait for one read."""

    at_ms: int = UNKNOWN
    #: By the monotonic clock.
    fresh_until_s: float = 0.0
    lag: FlowLag = NOTHING
    states: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    checkpoint_ms: int = UNKNOWN
    verified: VerifiedFacts | None = None
    #: As of :class:`~connectors.flow_facts.FlowFacts`.
    stopped_by: str = ""
    stopped_by_ms: int = UNKNOWN
    #: What the members of the worker's group hold; None: not known.
    work: WorkHeld | None = None
    trend: Trend = field(default_factory=Trend)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class MirrorHost:
    """One worker, as its MirrorSource connectors and tasks see it.

    Args:
        worker: The worker's properties, with references resolved.
        spark: Shared with other workers of the process.
        find_plugin: Finds the worker's plugins.
        holds: Whether the worker still owns what its group assigned to it; called in the lease thread.
    """

    worker: Mapping[str, str] = field(repr=False)
    spark: SharedSpark
    find_plugin: FindPlugin
    holds: Callable[[], bool]
    #: The tasks that run here, by connector and task number, for metrics and reports.
    running: dict[tuple[str, int], MirrorSourceTask] = field(default_factory=dict)
    #: How many tasks of each connector have started here.
    starts: Counter[str] = field(default_factory=Counter)
    _shared: list[_SharedClusters] = field(default_factory=list)
    #: The last lag snapshot of each connector, whether its tasks run or not.
    seen: dict[str, LagSnapshot] = field(default_factory=dict)
    #: Whether the clusters of each connector's flow answer.
    watches: dict[str, ContactWatch] = field(default_factory=dict)
    #: When a fetch and a produce request of each connector were last answered, by its tasks that have ended here.
    _moved_ms: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: What was counted of each connector's tasks that have ended here.
    _takeovers: dict[str, Takeovers] = field(default_factory=dict)
    _lags: dict[str, SharedLag] = field(default_factory=dict)
    _looks: dict[str, FlowLook] = field(default_factory=dict)
    _histories: dict[str, FlowHistory] = field(default_factory=dict)
    #: The settings and the last verification of each connector's flow.
    verified: dict[str, tuple[MirrorSourceSettings, LastVerification | None]] = field(default_factory=dict)
    kept: KeptReports = field(default_factory=KeptReports)
    written: WrittenLatencies = field(default_factory=WrittenLatencies)
    #: The position topics, which each task reads at its start.
    long_logs: LongLogs = field(default_factory=LongLogs)

    @property
    def group_id(self) -> str:
        return self.worker["group.id"]

    @asynccontextmanager
    async def parts(self, name: str, clients: FlowClients, source: str, target: str) -> AsyncIterator[FlowParts]:
        """Open the clusters of the connector ``name``; concurrent users share them."""
        shared = next((one for one in self._shared if one.name == name and one.clients == clients), None)
        if shared is None:
            shared = self._opened(name, clients, source, target)
            self._shared.append(shared)
        shared.users += 1
        try:
            yield shared.parts
        finally:
            shared.users -= 1
            if not shared.users:
                self._shared.remove(shared)
                await shared.closing.aclose()

    def progress(self, name: str, flow: FlowName, now_ms: int) -> FlowProgress:
        """Return the progress of one connector's tasks here."""
        tasks = [task for (connector, _), task in self.running.items() if connector == name]
        return FlowProgress(
            flow=flow,
            state=_state([task.state for task in tasks]),
            spark_epoch=max((task.epoch for task in tasks), default=0),
            tally=sum((task.ledger.tally(task.meters, now_ms) for task in tasks), Tally()),
            contact=self.contact(name),
            at_ms=now_ms,
        )

    def contact(self, name: str) -> Contact:
        """Return what is known here about the clusters of the connector ``name``."""
        found = self.watches[name].contact if name in self.watches else NOTHING_KNOWN
        fetched_ms, produced_ms = self._moved_ms.get(name, (UNKNOWN, UNKNOWN))
        meters, now_ms = self.meters_of(name), wall_ms()
        throttled = [one.throttled(now_ms) for one in meters]
        return found.moved(
            max([fetched_ms, *(one.fetched_ms for one in meters)]),
            max([produced_ms, *(one.produced_ms for one in meters)]),
            (max((one for one, _ in throttled), default=0.0), max((one for _, one in throttled), default=0.0)),
        )

    def takeovers(self, name: str) -> Takeovers:
        """Return what was counted of the tasks of the connector ``name``, also of those that have ended here."""
        return sum((meters.takeovers for meters in self.meters_of(name)), self._takeovers.get(name, Takeovers()))

    def meters_of(self, name: str) -> list[Meters]:
        """Return the meters of the tasks of the connector ``name`` that run here."""
        return [task.meters for (connector, _), task in self.running.items() if connector == name]

    def copied(self, name: str) -> Copied:
        """Return what the tasks of the connector ``name`` here have copied."""
        return {id(meters): (meters.records, meters.bytes) for meters in self.meters_of(name)}

    def history_of(self, name: str) -> FlowHistory:
        """Return the last hour of the connector ``name`` here."""
        return self._histories.setdefault(name, FlowHistory())

    def sample(self, name: str) -> None:
        seen, is_known = self.seen.get(name), self.contact(name).knows_lag
        lag = seen.whole() if seen is not None and is_known else None
        self.history_of(name).observe(wall_ms(), self.copied(name), lag)

    def forget(self, name: str) -> None:
        """Forget the connector ``name``, which no longer concerns this worker."""
        known: dict[str, Any]
        for known in (self._moved_ms, self._takeovers, self._histories, self._lags, self._looks, self.verified):
            known.pop(name, None)

    def lag_of(self, name: str) -> SharedLag:
        """Return the lag reader of the connector ``name``, which concurrent callers share."""
        return self._lags.setdefault(name, SharedLag())

    def look_of(self, name: str) -> FlowLook:
        """Return what was last read of the flow of the connector ``name``."""
        if name not in self._looks:
            # Reports do not hear of connectors that are deleted.
            old_s = time.monotonic() - _KEPT_S
            for one in [one for one, look in self._looks.items() if 0 < look.fresh_until_s < old_s]:
                del self._looks[one]
                self._lags.pop(one, None)
        return self._looks.setdefault(name, FlowLook())

    @contextlib.contextmanager
    def shown(self, name: str, index: int, task: MirrorSourceTask) -> Iterator[None]:
        """List ``task`` in :attr:`running` within the context."""
        self.starts[name] += 1
        self.running[name, index] = task
        try:
            yield
        finally:
            contact = self.contact(name)
            self._moved_ms[name] = contact.source.moved_ms, contact.target.moved_ms
            if self.running.get((name, index)) is task:
                del self.running[name, index]
                self._takeovers[name] = self._takeovers.get(name, Takeovers()) + task.meters.takeovers

    def _opened(self, name: str, clients: FlowClients, source_alias: str, target_alias: str) -> _SharedClusters:
        closing = AsyncExitStack()
        missing_rights = MissingRights(clients.label, f"{self.group_id}-{name}-")
        parts = _parts(closing, clients, source_alias, target_alias, missing_rights, self.long_logs)
        return _SharedClusters(name, clients, parts, closing)


@asynccontextmanager
async def looked_at_parts(
    clients: FlowClients, source: str, target: str, long_logs: LongLogs | None = None
) -> AsyncIterator[FlowParts]:
    """Open the clusters of a flow for reading only."""
    async with AsyncExitStack() as closing:
        yield _parts(closing, clients, source, target, MissingRights(), long_logs)


def _parts(
    closing: AsyncExitStack,
    clients: FlowClients,
    source: str,
    target: str,
    missing_rights: MissingRights,
    long_logs: LongLogs | None,
) -> FlowParts:
    here, there = Cluster(clients.source_admin(), source), Cluster(clients.target_admin(), target)
    store = Cluster(clients.offsets(), target, long_logs=long_logs)
    admin = clients.open_admin(clients.target_admin(), target)
    for one in (here, there, store, admin):
        closing.push_async_callback(one.close)
    return FlowParts(Clusters(here, there, missing_rights=missing_rights), store, admin)


def _state(states: list[str]) -> str:
    for state in ("failed", "recovering", "starting", "running"):
        if state in states:
            return state
    return "stopped" if states else "starting"
