"""Assembles one worker of a Connect group: internal topics, group, herder, connectors and tasks, REST API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Final

from connect.api.plugins import KAFKA_VERSION
from connect.api.source import ConnectorHere, TaskReport
from connect.core.audit import AUDITED
from connect.core.config.worker_config import ClientRole, WorkerConfig
from connect.core.config_topic import ConfigLog, config_removal_record
from connect.core.errors import HeliographError, RetriableError
from connect.core.herder import events
from connect.core.herder.herder import Herder
from connect.core.herder.membership import MalformedMembership, decode_metadata, held_by
from connect.core.herder_api import WorkerInfo
from connect.core.model import TargetState
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, together, wall_ms
from connect.kafka.group_member import GroupMember
from connect.kafka.group_protocol import GroupSettings
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings, open_stores
from connect.kafka.threads import LeaseThread
from connect.runtime.audit import AuditLog
from connect.runtime.herder.config_and_status_topics import ConfigStore, LeaderWriter, StatusStore
from connect.runtime.herder.driver import HerderDriver, WorkerFailed
from connect.runtime.herder.effects_and_fencing import AutoRestarts, EffectHandler, InternalRequests, ZombieFence
from connect.runtime.herder.loggers import Loggers
from connect.runtime.herder.offsets_and_reports import OffsetsApi, Reports
from connect.runtime.herder.rebalance_stages import Engine, Rebalances, Stages, prepare
from connect.runtime.herder.rest_herder import RuntimeHerder
from connect.runtime.plugins.plugin_registry import Plugins
from connect.runtime.task.client_configs import client_connection
from connect.runtime.task.connector_offsets import OffsetTopic
from connect.runtime.worker import Worker

log = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 60.0
_CANCELLING_S: Final = 1.0
_LEAST_GRACE_S: Final = 0.2
#: For the answers of Java's workers. Less than the time that a connector has to stop, because a rebalance may move it
#: meanwhile.
_JAVA_ANSWER_S: Final = 3.0


class DistributedWorker:
    """One worker (Kafka's ``DistributedHerder`` with all that it uses). Created in a running loop.

    Args:
        name: Prefix of log lines.
        cluster: The group's cluster in messages; None: its addresses.
        url: This worker's REST URL, with a slash at the end, or Java's ``NOTUSED``.
        worker_id: The worker in statuses: host:port, or the flow.
        leases: Sends the heartbeats; started before this worker and stopped after it.
        elected: Called when this worker becomes the leader of its group.
        obsolete: Given the config topic, returns the connectors not to start. The leader removes those that no member
            runs before it assigns work.
        loaded: Called with the config topic as read before this worker first joins.
        engine: Started before this worker joins a group with other members, if its connectors need it.
    """

    def __init__(
        self,
        config: WorkerConfig,
        plugins: Plugins,
        internal: InternalRequests,
        *,
        name: str,
        cluster: str | None = None,
        url: str,
        worker_id: str,
        leases: LeaseThread,
        elected: Callable[[], None] = lambda: None,
        obsolete: Callable[[ConfigLog], Collection[str]] = lambda _: (),
        loaded: Callable[[ConfigLog], None] = lambda _: None,
        engine: Engine | None = None,
    ) -> None:
        self.config = config
        self.made_ms = wall_ms()
        #: The clock for rebalances, which is never adjusted.
        self.steady_ms = _steady_ms()
        self._name = name
        self._cluster_name = cluster
        self._plugins = plugins
        self._elected = elected
        self._obsolete = obsolete
        self._loaded = loaded
        self._engine = engine
        self._was_leader = False
        self._started = asyncio.Event()
        self._scope = Scope(name)
        self._closing = AsyncExitStack()
        self._stages = Stages(wall_ms)
        self._loggers = Loggers(wall_ms)
        self._cluster = self._opened("shared-admin")
        self._admin = Admin(_connection(config, "shared-admin"), cluster)
        self._closing.push_async_callback(self._admin.close)
        self.statuses = StatusStore(self._opened("statuses"), self._admin, config.status_topic)
        self.core = Herder(config, url, self.statuses.log, plugins.runs)
        self._configs = ConfigStore(
            self._opened("configs"),
            self._admin,
            config.config_topic,
            self._put,
            lambda: self._put(events.ConfigLogReset()),
            leader=LeaderWriter(self._opened("configs-leader"), config.transactional_id)
            if config.transactional_leader
            else None,
            read_committed=config.exactly_once_enabled,
        )
        self._driver = HerderDriver(
            self.core,
            self._configs,
            self._stages,
            self.steady_ms,
            name=name,
            # From the end of the lease to the end of the session, less the time that cancelling takes.
            last_grace_s=max((config.session_timeout_ms - config.lease_ms) / 1000 - _CANCELLING_S, _LEAST_GRACE_S),
            prepare=self._prepared,
            before_assigning=self._remove_obsolete,
        )
        self._offsets = self._offset_topic()
        self.audit = AuditLog(self._cluster, self._admin, config.audit_topic, worker_id)
        self._fence = ZombieFence(
            config.group_id, self.core, self._driver, self._configs, self._fencing_connection, self._is_source
        )
        self.restarts = AutoRestarts(lambda: self.core.snapshot, self.statuses.log, wall_ms)
        effect_handler = EffectHandler(
            config,
            self.core,
            self._driver,
            self._configs,
            self.statuses,
            self.restarts,
            self._fence,
            internal,
            self._loggers,
            worker_id=worker_id,
            now_ms=wall_ms,
            changed=self._changed,
        )
        group = _group_settings(config, worker_id)
        # The coordinator builds member ids from the client id.
        group_client = _connection(config, "shared-admin").with_client_id(group.client_id)
        self.group = GroupMember(self._kept(Cluster(group_client, cluster)), group, self._driver, leases)
        self.worker = Worker(
            config,
            plugins,
            effect_handler,
            transformer=config.transformer,
            offsets=self._offsets,
            explain=JavaMembers(self.core, self.group.members, internal).explain,
        )
        effect_handler.worker = self.worker
        self._driver.connect(self.group, self.worker, effect_handler)
        self.herder = RuntimeHerder(
            core=self.core,
            driver=self._driver,
            config=config,
            registry=plugins,
            statuses=self.statuses,
            offsets=OffsetsApi(config, plugins, self.worker.stores.opened, self._fence),
            reports=Reports(config, plugins, lambda: self.core.snapshot, self.statuses.log),
            fencing=self._fence,
            internal=internal,
            levels=self._loggers,
            stages=self._stages,
            audit=self.audit,
            started=self._started.wait,
            silent_s=lambda: self.group.silent_s,
        )

    @property
    def holds(self) -> bool:
        """Whether this worker may still use its assignment; also called by the lease thread."""
        return self.group.holds

    @property
    def rebalances(self) -> Rebalances:
        return self._driver.rebalances

    def connectors_here(
        self, is_of: Callable[[str], bool], always: Collection[str] = ()
    ) -> dict[str, Callable[[], ConnectorHere]]:
        """Return a getter per connector whose class satisfies ``is_of``, and which runs here, has tasks here, or is in
        ``always``. A getter raises ConfigError if a reference cannot be resolved."""
        names = {*always, *self.worker.connectors, *(task.connector for task in self.worker.tasks)}
        configs = {name: self.core.snapshot.connector_config(name) or {} for name in sorted(names)}
        return {
            name: partial(self._connector_here, name, config)
            for name, config in configs.items()
            if is_of(config.get("connector.class", ""))
        }

    def _connector_here(self, name: str, config: Mapping[str, str]) -> ConnectorHere:
        transform = self.config.transformer.connector_props
        tasks = [
            TaskReport(task.task, runner.state.value, "", transform(raw))
            for task, runner in sorted(self.worker.tasks.items(), key=lambda item: item[0].task)
            if task.connector == name and (raw := self.core.snapshot.task_config(task)) is not None
        ]
        is_stopped = name in self.worker.connectors and self.core.snapshot.target_state(name) is TargetState.STOPPED
        return ConnectorHere(transform(config), tasks, is_stopped)

    async def start(self) -> None:
        """Read the internal topics; the group is joined in the background. Raises ConfigError for an internal topic
        with a wrong configuration, SecurityError, or RetriableError if the cluster did not answer in time."""
        # For all that this worker runs from now on.
        AUDITED.set(self.audit.put)
        with self._stages.doing("initializing and reading to the end of internal topics"):
            await self._cluster.wait_reachable(lambda error: log.warning("%s: %s; retrying", self._name, error))
            cluster_id = (await self._cluster.metadata([])).cluster_id
            await ensure_compacted_topic(self._admin, self.config.offset_topic)
            await asyncio.gather(
                self._patiently(self.statuses.start),
                self._patiently(self._configs.start),
                self._patiently(partial(self._offsets.start, _START_TIMEOUT_S)),
            )
        self.herder.info = WorkerInfo(KAFKA_VERSION, f"heliograph-{version('heliograph')}", cluster_id)
        for topic, followed in (
            (self.config.config_topic, self._configs.followed),
            (self.config.status_topic, self.statuses.followed),
            (self.config.offset_topic, self._offsets.followed),
        ):
            self._scope.spawn(self._watch(topic.name, followed), f"watch {topic.name}")
        self.audit.start()
        self._driver.put(events.Ready())
        self._driver.start()

    async def _patiently(self, start: Callable[[], Awaitable[None]]) -> None:
        """Retry: a killed worker's open transaction blocks readers of a topic until the transaction times out."""
        while True:
            try:
                return await start()
            except RetriableError as error:
                log.warning("%s: %s; still waiting", self._name, error)

    async def ended(self) -> None:
        """Return once the worker has stopped. Raises WorkerFailed if it cannot stay in its group."""
        await asyncio.shield(self._driver.ended)

    async def stop(self) -> None:
        """Stop all work, leave the group, and close everything, in bounded time."""
        await self._scope.close()
        await self._fence.stop()
        await self._driver.stop()
        await self.worker.stop()
        await self.group.close()
        for stopping in (self.audit.stop(), self.statuses.stop(), self._configs.stop(), self._offsets.stop()):
            await stopping
        await self._closing.aclose()

    async def _watch(self, topic: str, followed: CompactedLog) -> None:
        """Fail the worker when it can no longer read an internal topic, because it would act on old decisions."""
        if (error := await followed.ended()) is not None:
            self._driver.fail(WorkerFailed(f"the internal topic {topic} can no longer be read: {error}"))

    # -- changes ---------------------------------------------------------------------------------------

    def _put(self, event: events.Event) -> None:
        self._driver.put(event)

    def _changed(self) -> None:
        if self.core.is_ready:
            self._started.set()
        if self.core.is_leader and not self._was_leader:
            self._elected()
        self._was_leader = self.core.is_leader

    async def _prepared(self) -> None:
        self._loaded(self.core.snapshot)
        configs = map(self.core.snapshot.connector_config, self.core.snapshot.connectors())
        classes = [config.get("connector.class", "") for config in configs if config is not None]
        await prepare(self._name, self._engine, classes, self.group.members, self._stages)

    async def _remove_obsolete(self, members: Mapping[str, bytes]) -> None:
        """Remove obsolete connectors; raise RetriableError or PermanentError if the config topic is not writable."""
        obsolete = set(self._obsolete(self.core.snapshot))
        if obsolete and (names := sorted(obsolete - held_by(members))):
            log.info("%s: removing the stored configs of %s, which the file replaces", self._name, ", ".join(names))
            await self._configs.write([[config_removal_record(name) for name in names]])

    # -- parts -----------------------------------------------------------------------------------------

    def _opened(self, role: ClientRole) -> Cluster:
        return self._kept(Cluster(_connection(self.config, role), self._cluster_name))

    def _kept(self, cluster: Cluster) -> Cluster:
        self._closing.push_async_callback(cluster.close)
        return cluster

    def _offset_topic(self) -> OffsetTopic:
        cluster, name = self._opened("offsets"), self.config.offset_topic.name

        def opened(on_record: Callable[[LogRecord], None], on_reset: Callable[[], None]) -> CompactedLog:
            # MirrorSource writes its offsets in transactions, with or without exactly-once.
            return CompactedLog(cluster, name, on_record, on_reset, read_committed=True, only_last=True)

        return OffsetTopic(name, opened)

    async def _fencing_connection(self, name: str, props: Mapping[str, str]) -> ConnectionSettings:
        resolved = self.config.transformer.connector_props(props)
        await open_stores(resolved)
        return client_connection(self.config, resolved, "admin", name)

    def _is_source(self, props: Mapping[str, str]) -> bool:
        # Of a class that only Java members have, they ask the leader to fence source connectors only.
        return self._plugins.connector_type(props.get("connector.class")) != "sink"


def _connection(config: WorkerConfig, role: ClientRole) -> ConnectionSettings:
    props = config.internal_client(role)
    return connection_settings(props, client_id=props["client.id"], where="worker")


def _group_settings(config: WorkerConfig, worker_id: str) -> GroupSettings:
    return GroupSettings(
        group_id=config.group_id,
        client_id=config.client_id or f"connect-{worker_id}",
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        lease_ms=config.lease_ms,
        retry_backoff_ms=config.values.integer("retry.backoff.ms"),
        retry_backoff_max_ms=config.values.integer("retry.backoff.max.ms"),
    )


def _steady_ms() -> Callable[[], int]:
    """Return a clock that starts at the present time and is never adjusted."""
    ahead_ms = wall_ms() - time.monotonic_ns() // 1_000_000
    return lambda: ahead_ms + time.monotonic_ns() // 1_000_000


@dataclass(eq=False)
class JavaMembers:
    """Says why a Java leader gave this worker a connector of a class that it does not have, and which members have it.
    Java's leader gives every member any connector: the metadata of a group's members has no word about plugins, and
    work that a member gives back is assigned as new work, first to the member with the least (decision 33). Classes are
    explained one after the other, each once in a generation. ``members``: returns the metadata of the group's members;
    raises a HeliographError."""

    core: Herder
    members: Callable[[], Awaitable[Sequence[bytes]]]
    internal: InternalRequests
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _said: dict[tuple[str, int], str | None] = field(default_factory=dict, init=False)

    async def explain(self, connector_class: str) -> str | None:
        """Return which class this worker does not have, who gave it work of the class, which workers have the class,
        and the remedy; None unless one of Java's workers leads."""
        async with self._asking:
            key = connector_class, self.core.generation
            if key not in self._said:
                said = await self._explained(connector_class)
                self._said = {known: old for known, old in self._said.items() if known[1] == key[1]} | {key: said}
            return self._said[key]

    async def _explained(self, connector_class: str) -> str | None:
        leader = self.core.leader_url
        if leader is None or self.core.is_leader:
            return None
        having: dict[str, bool | None] = {}

        async def ask(url: str) -> None:
            with suppress(HeliographError):
                having[url] = await self.internal.has_class(url, connector_class)

        try:
            async with asyncio.timeout(_JAVA_ANSWER_S):
                having = dict.fromkeys(_java_urls(await self.members()))
                if leader not in having:
                    return None
                await together(f"who has {connector_class}", map(ask, having))
        except (HeliographError, TimeoutError):
            if leader not in having:
                return None
        return (
            f"This worker does not run the class {connector_class}. The worker that leads the group, {leader}, is one "
            f"of Java's, and those give every member any connector. {_remedy(having)}"
        )


def _java_urls(members: Sequence[bytes]) -> Iterator[str]:
    for metadata in members:
        try:
            member = decode_metadata(metadata)
        except MalformedMembership:
            continue
        if member.lease_ms is None:
            yield member.url


def _remedy(having: dict[str, bool | None]) -> str:
    if all(has is False for has in having.values()):
        return (
            f"None of Java's workers has the class: install its plugin on {_listed(having)}, or delete the connector."
        )
    remedy = (
        "A restart of the connector does not move it. Restart the worker that leads, until a worker of Heliograph "
        "leads: it gives such connectors to Java's workers only."
    )
    found = [url for url, has in having.items() if has]
    if not found:
        return f"Which of Java's workers have the class is not known, because they did not answer. {remedy}"
    return f"Workers that have the class: {_listed(found)}. {remedy}"


def _listed(urls: Iterable[str]) -> str:
    return ", ".join(sorted(urls))
