"""MirrorSource's plugin, with Java's class name, creates its connector and tasks from properties. Any worker of the
group can report the mirror's lag and the states of its partitions over REST."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Final

from connect.api.connector import Props
from connect.api.source import ConnectorReport, EngineTask, ExactlyOnceSupport, TaskReport
from connect.core.config.config_def import ConfigDef, ConfigValue, add_errors
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.kafka.concurrency import Scope, is_set_within
from connect.kafka.log.shared_transactions import SharedTransactions
from connect.kafka.log.transactions import Superseded
from connect.kafka.security.connection_settings import open_stores
from connectors.config import client_config
from connectors.config.connector_configs import CONVERTERS, MirrorSourceSettings, source_settings
from connectors.config.definitions import SOURCE
from connectors.connector_base import MirrorConnector, check_offsets
from connectors.control_link.protocol import SliceSettings
from connectors.internal_topics import PARTITION_STATES, Records, record_settings
from connectors.source.connector import MirrorSourceConnector
from connectors.source.exactly_once_task import MAX_RUNS_PER_CHUNK, ExactlyOnceTask
from connectors.source.mirror_reports import KINDS, RATES, Asked, mirror_report, rates_report
from connectors.source.offset_sync_writer import sync_writer, syncs_topic
from connectors.source.positions.position_store import MirrorPositionStore, StoreSettings
from connectors.source.slice_handle import SliceFenced, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask
from connectors.source.worker_context import FlowParts, MirrorHost
from connectors.topic_sync.acl_plan import Names
from connectors.topic_sync.acl_sync import ACLS, AccessFlow, AccessSync
from connectors.topic_sync.partition_assignment import ASSIGNED_PARTITIONS, begin_of, decode_partitions
from connectors.transforms.smt_chain import ChainPlan
from connectors.transforms.sql_query import KEY as QUERY_KEY
from connectors.transforms.target_names import chain_plan, check_chain

log = logging.getLogger(__name__)

#: A connector counts as started after this time, even if its clusters have not answered.
_FIRST_LOOK_S: Final = 10.0
_LOOK_AGAIN_S: Final = 5.0
#: Another task that fences the writers of its partitions may interrupt our claim. The group decides who owns a task, so
#: the claim is repeated. After this many interruptions in a row another process must use the id, outside the group.
_MAX_CLAIMS: Final = 5
_CLAIM_AGAIN_S: Final = 0.5
_APART: Final = 8
_EMIT_SYNCS: Final = "emit.offset-syncs.enabled"
_OF_SYNCS: Final = ("offset-syncs-", "offset-syncs.topic.")
#: A task that has copied this long before an interruption counts its claims from 1 again.
_LONG_S: Final = 60.0
#: Keys of a task's config that only the connector uses, and the task's partitions.
_OF_THE_CONNECTOR: Final = frozenset(
    {
        ASSIGNED_PARTITIONS,
        "tasks.max",
        "topics",
        "topics.exclude",
        "topics.blacklist",
        "refresh.topics.enabled",
        "refresh.topics.interval.seconds",
    }
)


#: Returns a report that this package cannot make, because its parts import this package; None for an unknown kind.
MoreReports = Callable[
    [str, Props, MirrorSourceSettings, client_config.FlowClients, Mapping[str, str], MirrorHost],
    Awaitable[Mapping[str, Any] | None],
]


class MirrorSource(MirrorConnector):
    """Finds topics, creates remote topics and assigns partitions to tasks, on the clusters of one flow."""

    def __init__(self, host: MirrorHost, more_reports: MoreReports | None = None) -> None:
        self._host, self._more_reports = host, more_reports
        self._inner: MirrorSourceConnector | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def task_class(cls) -> str:
        return "org.apache.kafka.connect.mirror.MirrorSourceTask"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return SOURCE

    async def start(self, props: Props) -> None:
        """Start, and wait for clusters that do not answer. Raises PermanentError if settings or ACLs are wrong."""
        settings, clients = settings_of(props, self._host)
        for warning in settings.warnings:
            log.warning("%s: %s", settings.flow, warning)
        if not settings.enabled:
            return
        parts = await self._closing.enter_async_context(_parts(self._host, settings, clients))
        syncs, access = syncs_topic(settings, clients), access_of(settings, parts)
        if syncs is not None:
            self._closing.push_async_callback(syncs.close)
        source, target = parts.clusters.source, parts.clusters.target
        self._inner = MirrorSourceConnector(settings, props, source, target, parts.admin, access, syncs)
        self._closing.push_async_callback(self._inner.stop)
        scope = await self._closing.enter_async_context(Scope(f"{settings.flow}: connector"))
        looking = scope.spawn(self._look(settings, parts), f"first look of {settings.flow}")
        await asyncio.wait({looking}, timeout=_FIRST_LOOK_S)
        if looking.done():
            looking.result()
        else:
            log.warning("%s: its topics have not been read yet; continuing in the background", settings.flow)

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        if self._inner is None:
            return []
        return self._inner.task_configs(max_tasks, self.context.present_task_configs)

    def make_task(self) -> MirrorSourceEngineTask:
        return MirrorSourceEngineTask(self._host)

    async def stop(self) -> None:
        await self._closing.aclose()

    async def validate(self, props: Props, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        """Validate settings together: converters, transforms, whether exactly-once is possible, offset syncs that are
        disabled and configured (Java's ``validateEmitOffsetSyncConfigs``), and the query, by Spark."""
        if props.get(_EMIT_SYNCS) == "false" and any(key.startswith(_OF_SYNCS) for key in props):
            said = f"MirrorSourceConnector can't setup offset-syncs feature while {_EMIT_SYNCS} set to false"
            add_errors(values, _EMIT_SYNCS, said)
        if any(value.errors for value in values.values()):
            return values
        try:
            # Whether exactly-once can be required is checked below, with Java's messages.
            asked = {**props, "exactly.once.support": "requested"}
            converters = {key: self._host.worker[key] for key in CONVERTERS if key in self._host.worker}
            settings = source_settings(asked, {"offset.storage.topic": "offsets", **converters})
            if chain := chain_plan(settings.transforms, settings.source_alias, self._host.find_plugin, settings.names):
                check_chain(chain)
            if settings.enabled and settings.transform_sql:
                engine, _ = await self._host.spark.get()
                if problem := await engine.problem_of_query(settings.transform_sql):
                    raise ConfigError(problem, QUERY_KEY)
        except ConfigError as error:
            add_errors(values, error.key or "name", error.message)
        add_errors(values, "exactly.once.support", *client_config.support_errors(props))
        return values

    def exactly_once_support(self, props: Props) -> ExactlyOnceSupport:
        return client_config.exactly_once_support(props)

    async def report(
        self, kind: str, props: Props, tasks: Sequence[TaskReport], query: Mapping[str, str], connector: ConnectorReport
    ) -> Mapping[str, Any] | None:
        if kind == RATES:
            return rates_report(self._host, props["name"])
        await open_stores(props)
        settings, clients = settings_of(props, self._host)
        if kind not in KINDS:
            more = self._more_reports
            return None if more is None else await more(kind, props, settings, clients, query, self._host)
        async with _parts(self._host, settings, clients) as parts:
            return await mirror_report(kind, Asked(self._host, settings, connector, tasks), parts, query)

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Check offsets as Java does (``MirrorUtils.validateSourcePartition`` and others); a reset is always valid."""
        return check_offsets(offsets, "cluster", "topic", "partition", only_zero=False)

    async def _look(self, settings: MirrorSourceSettings, parts: FlowParts) -> None:
        """Start the inner connector once both clusters answer, then request task configs; report permanent errors."""
        assert self._inner is not None

        def waiting(error: RetriableError) -> None:
            log.warning("%s: %s; retrying", settings.flow, error)

        source, target = parts.clusters.source, parts.clusters.target
        await asyncio.gather(source.wait_reachable(waiting), target.wait_reachable(waiting))
        while True:
            try:
                await self._inner.start(self.context)
            except RetriableError as error:
                log.warning("%s: %s; retrying in %.0f s", settings.flow, error, _LOOK_AGAIN_S)
                await asyncio.sleep(_LOOK_AGAIN_S)
            except PermanentError as error:
                self.context.raise_error(error)
                raise
            else:
                break
        self.context.request_task_reconfiguration()


class MirrorSourceEngineTask(EngineTask):
    """One task: a slice in Spark, epoch after epoch."""

    def __init__(self, host: MirrorHost) -> None:
        self._host = host
        self._inner: MirrorSourceTask | None = None
        self._stopping = asyncio.Event()
        self._props: Props = {}

    async def run(self) -> None:
        props = self._props = self.context.configs
        settings, clients = settings_of(props, self._host)
        index = int(props["task.index"])
        engine, links = await self._host.spark.get()
        async with _parts(self._host, settings, clients) as parts, sync_writer(settings, clients, index) as syncs:
            attempt = 0
            while True:
                attempt += 1
                began_s = time.monotonic()
                states = Records(PARTITION_STATES, parts.store, parts.admin, record_settings(settings))
                of_task = syncs, states, self._host.holds, self.meter, self.topic_used
                services = TaskServices(engine, links, parts.clusters, parts.admin, *of_task)
                task_settings = _task_settings(settings, clients, self._props, self._host)
                task = self._task(settings, task_settings, services, parts)
                try:
                    await self._copy(task, settings.name, index)
                except (Superseded, SliceFenced) as error:
                    if time.monotonic() - began_s > _LONG_S:
                        attempt = 1
                    if attempt == _MAX_CLAIMS:
                        raise
                    log.warning("%s task %d: %s; claiming it again", settings.flow, index, error)
                    # A delay by task number, so that two tasks that interrupt each other do not do so again.
                    delay_s = _CLAIM_AGAIN_S * attempt * (1 + index % _APART)
                    await is_set_within(self._stopping, delay_s)
                else:
                    return

    def stop(self) -> None:
        self._stopping.set()
        if self._inner is not None:
            self._inner.stop()

    def reconfigure(self, props: Props) -> bool:
        """Change the task's partitions while it copies. Return False if it has to restart: for any other change, and
        under exactly-once."""
        changed = {key for key in {*props, *self._props} if props.get(key) != self._props.get(key)}
        if changed - _OF_THE_CONNECTOR or isinstance(self._inner, ExactlyOnceTask):
            return False
        self._props = props
        if self._inner is not None:
            self._inner.reconfigure(tuple(decode_partitions(props[ASSIGNED_PARTITIONS])))
        return True

    def _task(
        self, settings: MirrorSourceSettings, of_task: TaskSettings, services: TaskServices, parts: FlowParts
    ) -> MirrorSourceTask:
        own_id = f"{of_task.transactional_id}-commit"
        if settings.transactions is None:
            return MirrorSourceTask(of_task, services, _store(settings, own_id, parts, None))
        timeout_ms = settings.transactions.timeout_ms
        shared = SharedTransactions(parts.store, of_task.transactional_id, transaction_timeout_ms=timeout_ms)
        store = _store(settings, own_id, parts, shared)
        return ExactlyOnceTask(of_task, services, store, shared, settings.transactions, own_id, self.check_newest)

    async def _copy(self, task: MirrorSourceTask, name: str, index: int) -> None:
        if self._stopping.is_set():
            return
        self._inner = task
        with self._host.shown(name, index, task):
            await task.run()


def settings_of(props: Props, host: MirrorHost) -> tuple[MirrorSourceSettings, client_config.FlowClients]:
    """Parse the properties of a connector or task. Raises ConfigError."""
    settings = source_settings(props, host.worker)
    clients = client_config.flow_clients(
        settings.flow,
        props,
        {"client.id": "", **host.worker},
        source=settings.source_alias,
        target=settings.target_alias,
        locate=partial(client_config.located_client, props),
    )
    return settings, clients


def _parts(
    host: MirrorHost, settings: MirrorSourceSettings, clients: client_config.FlowClients
) -> AbstractAsyncContextManager[FlowParts]:
    return host.parts(settings.name, clients, settings.source_alias, settings.target_alias)


def _store(
    settings: MirrorSourceSettings, own_id: str, parts: FlowParts, shared: SharedTransactions | None
) -> MirrorPositionStore:
    return MirrorPositionStore(
        parts.store,
        parts.admin,
        StoreSettings(
            connector=settings.name,
            source_alias=settings.source_alias,
            offsets_topic=settings.offsets_topic,
            read_topics=settings.offsets_topics,
            map_topic=settings.map_topic,
            transactional_id=own_id,
            replication_factor=settings.offsets_topic_replication_factor,
            partitions=settings.offsets_topic_partitions,
            max_runs_per_chunk=MAX_RUNS_PER_CHUNK if shared else None,
        ),
        parts.clusters.missing_rights,
        shared,
    )


def access_of(settings: MirrorSourceSettings, parts: FlowParts) -> AccessSync | None:
    """Return the sync of ACLs, if the flow has one."""
    if settings.access.interval_s is None:
        return None
    names = Names(settings.names, settings.should_mirror, settings.access.takes_group, settings.target_alias)
    records = Records(ACLS, parts.store, parts.admin, record_settings(settings))
    # The reverse flow keeps its records on our source cluster, under its source alias.
    flow = AccessFlow(settings.flow, names, f"mm2-offset-map.{settings.target_alias}.internal")
    return AccessSync(settings.access, flow, parts.clusters.source, parts.clusters.target, parts.admin, records)


def _task_settings(
    settings: MirrorSourceSettings, clients: client_config.FlowClients, props: Props, host: MirrorHost
) -> TaskSettings:
    index = int(props["task.index"])
    chain = chain_plan(settings.transforms, settings.source_alias, host.find_plugin, settings.names)
    return TaskSettings(
        flow=settings.flow_name,
        # By KIP-618's rule, so that any fencing by that rule works.
        transactional_id=f"{host.group_id}-{settings.name}-{index}",
        partitions=tuple(decode_partitions(props[ASSIGNED_PARTITIONS])),
        remote_topic=settings.remote_topic,
        ways=settings.names.ways,
        slice=_slice_settings(settings, clients, index, chain),
        epoch_ms=settings.epoch_ms,
        flush_interval_ms=settings.flush_interval_ms,
        logs_skipped=settings.logs_skipped,
        connector=settings.name,
        gap_policy=settings.gap_policy,
        initial_group=settings.initial_offsets_group,
        transaction_timeout_ms=settings.transactions.timeout_ms if settings.transactions else None,
        reset_to=begin_of(settings).reset_to,
    )


def _slice_settings(
    settings: MirrorSourceSettings, clients: client_config.FlowClients, index: int, chain: ChainPlan | None
) -> SliceSettings:
    """Return a slice's settings; client settings that the user did not set keep the slice's defaults."""
    named: dict[str, Any] = {
        "fetch_max_bytes": settings.fetch_max_bytes,
        "partition_max_bytes": settings.max_partition_fetch_bytes,
        "fetch_max_wait_ms": settings.fetch_max_wait_ms,
        "fetch_min_bytes": settings.fetch_min_bytes,
        "batch_bytes": settings.batch_bytes,
    }
    return SliceSettings(
        flow=settings.flow,
        task=index,
        source=clients.replication_consumer(index).to_wire(),
        target=clients.record_producer(index).to_wire(),
        read_committed=settings.read_committed,
        rack=settings.client_rack,
        lease_ms=settings.lease_ms,
        skip_refused=settings.skips_refused,
        compression=settings.compression,
        transform_sql=settings.transform_sql,
        chain=chain.to_wire() if chain else None,
        source_alias=settings.source_alias,
        target_alias=settings.target_alias,
        **{name: value for name, value in named.items() if value is not None},
    )
