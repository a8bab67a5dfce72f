"""A connector's config as a worker would validate it, and what a mirror's connectors would do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from connect.api.plugins import PluginDescription, PluginKind
from connect.cli.spark import spark_of_worker
from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.core.providers import ConfigTransformer
from connect.core.worker_config import WorkerConfig
from connect.kafka.lease_thread import LeaseThread
from connect.runtime.plugins import Plugins
from connect.runtime.validation import validate_connector
from connectors.checkpoint.connector import objections
from connectors.checkpoint.settings import CheckpointSettings
from connectors.config_defs import HEARTBEAT
from connectors.plugins import mirror_plugins
from connectors.settings import MirrorSourceSettings
from connectors.source.host import MirrorHost, SharedSpark
from connectors.source.links import LinkSettings

_SAMPLE: Final = "orders"


@asynccontextmanager
async def plugins_of(worker: WorkerConfig) -> AsyncIterator[Plugins]:
    """Those of a worker. Spark begins where a query is to be checked, and nowhere else."""
    leases = LeaseThread(worker.progress_timeout_ms / 1000)
    leases.start()
    spark = SharedSpark(lambda: spark_of_worker(worker.props, frozenset()), LinkSettings(), leases)

    def find(kinds: Sequence[PluginKind], name: str, version: str | None) -> PluginDescription:
        return plugins.find(kinds, name, version)

    host = MirrorHost(worker.props, spark, find, lambda: False)  # no task runs here
    plugins = Plugins.discover(mirror_plugins(host), may_read_files=worker.may_read_files)
    try:
        yield plugins
    finally:
        await spark.stop()
        await leases.stop()


async def objections_of(
    config: Mapping[str, str | None], plugins: Plugins, worker: WorkerConfig, transformer: ConfigTransformer
) -> list[tuple[str, str]]:
    """Every key that a worker would refuse, with the reason."""
    try:
        infos = await validate_connector(config, plugins, worker, transformer)
    except ConfigError as error:
        return [(error.key or "", error.message)]
    except HeliographError as error:
        return [("connector.class", str(error))]
    return [(info.value.name, error) for info in infos.configs for error in info.value.errors]


def of_source(settings: MirrorSourceSettings, connector: Mapping[str, str]) -> Iterator[str]:
    """What MirrorSource would do."""
    wanted = connector.get("topics", ".*").strip()
    but = f", but {connector['topics.exclude'].strip()}" if connector.get("topics.exclude", "").strip() else ""
    yield f"mirrors the topics {wanted}{but}{_named(settings)}, in {settings.tasks_max} task(s) at most"
    if settings.changing_key:
        yield f"changes records on their way, by {settings.changing_key}"
    if settings.transactions is not None:
        yield "writes in transactions, exactly once"
    syncs = settings.offset_syncs
    where = settings.source_alias if syncs is not None and syncs.on_source else settings.target_alias
    yield f"writes offset syncs to {syncs.topic} on {where}" if syncs is not None else "writes no offset syncs"
    if settings.access.interval_s is None:
        yield "leaves access rules alone"


def of_checkpoints(settings: CheckpointSettings | None, connector: Mapping[str, str]) -> Iterator[str]:
    """What MirrorCheckpoint would do; None where it is left out."""
    if settings is None:
        yield f"has no checkpoints: {'; '.join(objections(connector).values()) or 'they are switched off'}"
        return
    groups = connector.get("groups", ".*").strip()
    moving = (
        "moves no group" if settings.sync_interval_s is None else f"moves groups every {settings.sync_interval_s} s"
    )
    yield f"translates the offsets of the groups {groups}, and {moving}"


def of_heartbeats(connector: Mapping[str, str]) -> Iterator[str]:
    """What MirrorHeartbeat would do."""
    values = HEARTBEAT.parse(connector)
    if values.boolean("emit.heartbeats.enabled"):
        every = values.integer("emit.heartbeats.interval.seconds")
        yield f"writes a heartbeat every {every} s to {values.string('target.cluster.alias')}"
    else:
        yield "writes no heartbeats"


def _named(settings: MirrorSourceSettings) -> str:
    try:
        return f", {_SAMPLE} as {settings.remote_topic(_SAMPLE)}"
    except PermanentError:
        return ""
