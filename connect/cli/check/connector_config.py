"""Checks a connector's config from a file, as a worker would validate it.

* Files are JSON or properties.
* The report says what the connectors of a mirror would do.
* The clusters of a mirror's connector are read as its clients reach them, key stores included. No cluster is contacted.
* Single values get findings of their own: Kerberos, and references that stay unresolved.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.api.plugins import PluginDescription, PluginKind, config_providers
from connect.cli.check.clusters import Looked, Sides, look_at_flow
from connect.cli.check.findings import CheckFinding, CheckOutcome, CheckReport, Level, of_error, placed
from connect.cli.commands.connectors import read_json
from connect.cli.daemons.spark import spark_of_worker
from connect.core.config.config_def import split_list
from connect.core.config.properties import ConfigTransformer, Properties
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.core.model import NewTopic
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.kafka.threads import LeaseThread
from connect.runtime.plugins.config_validation import validate_connector
from connect.runtime.plugins.plugin_errors import secrets_of
from connect.runtime.plugins.plugin_registry import Plugins
from connectors.checkpoint.connector import objections
from connectors.config.client_config import ClientKind, ClusterSide, flow_clients, properties_with_prefix
from connectors.config.connector_configs import (
    CheckpointSettings,
    MirrorSourceSettings,
    checkpoint_settings,
    source_settings,
)
from connectors.config.definitions import HEARTBEAT
from connectors.config.ignored_keys import connector_notices
from connectors.control_link.server import LinkSettings
from connectors.plugins import mirror_plugins
from connectors.source.worker_context import MirrorHost, SharedSpark

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


def sides_of(name: str, java_class: str, props: Mapping[str, str], worker: WorkerConfig) -> Sides:
    """Return the clusters, and what the connector ``name`` needs there; ``props`` are resolved.

    Raises:
        ConfigError: A key is missing or wrong; it is named as ``props`` have it.
        SecurityError: A key store cannot be used.
    """
    props = {**props, "name": name, "connector.class": java_class}
    settings = source_settings(props, worker.props)
    of_source, of_target = _connections(props, settings, worker)
    mirrors = java_class.endswith("MirrorSourceConnector")
    return Sides(
        name or settings.flow,
        settings.source_alias,
        settings.target_alias,
        of_source,
        of_target,
        settings if mirrors else None,
        [NewTopic(settings.map_topic, -1, settings.offsets_topic_replication_factor)] if mirrors else [],
        None,
    )


def _connections(
    props: Mapping[str, str], settings: MirrorSourceSettings, worker: WorkerConfig
) -> tuple[ConnectionSettings, ConnectionSettings]:
    def located(error: ConfigError, side: ClusterSide, kind: ClientKind | None) -> ConfigError:
        places = _places(error.key or "", side, kind)
        key = next((place for place in places if place in props), places[-1])
        return ConfigError(error.message.replace(error.key or "", key, 1), key)

    source, target = settings.source_alias, settings.target_alias
    own = {"client.id": "", **worker.props}
    clients = flow_clients(settings.flow, props, own, source=source, target=target, locate=located)
    return clients.source_admin(), clients.target_admin()


def _places(key: str, side: ClusterSide, kind: ClientKind | None) -> list[str]:
    """Where a connector's config may have a client's key, the place that wins first."""
    of_cluster = f"{side}.cluster.{key}"
    if kind is None:
        return [of_cluster]
    of_records = [f"producer.override.{key}"] if kind == "producer" else []
    return [*of_records, f"{side}.{kind}.{key}", f"{kind}.{key}", of_cluster]


_MECHANISM: Final = "sasl.mechanism"
_PROVIDERS: Final = "config.providers"
#: As references of :mod:`connect.core.config.properties`, of names that a provider may have.
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z][\w-]*):[^}]*\}")
#: What providers are called. Another name may be a piece of a password that looks like a reference.
_USUAL: Final = frozenset(
    [
        *("env", "environment", "file", "directory", "dir", "secret", "secrets", "configmaps", "vault"),
        *("strimzienv", "strimzifile", "strimzidir", "strimzisecrets"),
    ]
)


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """A value as a file has it."""

    key: str
    value: str = field(repr=False)
    line: int | None


def in_properties(props: Properties) -> list[WrittenValue]:
    """Those of a properties file."""
    return [WrittenValue(key, value, props.line(key)) for key, value in props.items()]


def in_config(config: Mapping[str, str | None], lines: Mapping[str, int]) -> list[WrittenValue]:
    """Those of a connector's config, but for nulls."""
    return [WrittenValue(key, value, lines.get(key)) for key, value in config.items() if value is not None]


def of_values(values: Sequence[WrittenValue], declared: Collection[str] = ()) -> Iterator[CheckFinding]:
    """What a start would take otherwise than may be meant. ``declared`` are providers beside those of the file."""
    yield from of_kerberos(values)
    for one, name in undeclared(values, declared):
        said = f"{_check_values_named(one.key, name)} stays as it is, as in Java: config.providers does not name it"
        yield CheckFinding(Level.WARNING, said, one.key, one.line)


def of_connector(values: Sequence[WrittenValue]) -> Iterator[CheckFinding]:
    """The same of a connector's config, which a worker is sent that may have the providers."""
    yield from of_kerberos(values)
    for one, name in undeclared(values):
        said = f"{_check_values_named(one.key, name)} is resolved only where config.providers of the worker names it"
        yield CheckFinding(Level.NOTE, said, one.key, one.line)


def of_kerberos(values: Iterable[WrittenValue]) -> Iterator[CheckFinding]:
    """A sentence for each client that is to log in by it."""
    for one in values:
        if one.key.endswith(_MECHANISM) and one.value.strip() == "GSSAPI":
            said = f"{one.key}: Kerberos; its keys are read, but no login at a real one has been tried yet"
            yield CheckFinding(Level.WARNING, said, one.key, one.line)


def undeclared(values: Sequence[WrittenValue], declared: Collection[str] = ()) -> Iterator[tuple[WrittenValue, str]]:
    """References to providers that nothing declares, each with the provider's name."""
    known = _declared(values)
    for one in values:
        for name in dict.fromkeys(_REFERENCE.findall(one.value)):
            own = (names for prefix, names in known.items() if one.key.startswith(prefix))
            if name not in declared and not any(name in names for names in own):
                yield one, name


def _declared(values: Sequence[WrittenValue]) -> dict[str, tuple[str, ...]]:
    """Names of providers by the beginning of the keys that they are declared for: a cluster's, a flow's, all."""
    return {one.key.removesuffix(_PROVIDERS): split_list(one.value) for one in values if declares(one.key)}


def declares(key: str) -> bool:
    """Whether it is ``config.providers``, of a part of the file perhaps."""
    return key == _PROVIDERS or key.endswith(f".{_PROVIDERS}")


def _check_values_named(key: str, provider: str) -> str:
    if provider in _USUAL:
        return f"{key}: a reference to the config provider {provider}"
    return f"{key}: what looks like a reference to a config provider"


_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
_TARGET: Final = "target.cluster."
_MIRROR: Final = "org.apache.kafka.connect.mirror."
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"


@dataclass(frozen=True)
class CheckedConnector:
    """A connector's name and config; ``lines`` of its keys, as far as the file shows them."""

    file: str
    name: str
    config: Mapping[str, str | None]
    lines: Mapping[str, int]

    def finding(self, level: Level, text: str, key: str) -> CheckFinding:
        found = CheckFinding(level, text if not key or key in text else f"{key}: {text}", key or None)
        return placed(found, self.lines.get)


def of_properties(props: Properties, file: str) -> CheckedConnector:
    """Of a properties file, as Kafka's ``connect-standalone`` takes them."""
    lines = {key: line for key in props if (line := props.line(key)) is not None}
    return CheckedConnector(file, props.get("name", ""), dict(props), lines)


def of_json(text: str, file: str) -> CheckedConnector:
    """Of JSON: a config, or a name and a config. Raises ConfigError where it is neither; the line is named."""
    document = read_json(text, file)
    inner = document.get("config") if isinstance(document, dict) else None
    config = inner if isinstance(inner, dict) else document
    if not isinstance(config, dict):
        raise ConfigError("a connector's config is a JSON object", file=file)
    lines = {
        found.group(1): text.count("\n", 0, found.start()) + 1 for found in _STRING.finditer(text) if found.group(2)
    }
    nested = next((key for key, value in config.items() if isinstance(value, (dict, list))), None)
    if nested is not None:
        raise ConfigError(f"{nested} is no text; a connector's values are texts", nested, file, lines.get(nested))
    values = {key: _text(value) for key, value in config.items()}
    name = document.get("name") or values.get("name") or ""
    return CheckedConnector(file, str(name), values, lines)


async def check_connector(file: CheckedConnector, report: CheckReport, *, offline: bool) -> CheckReport:
    """``report`` with what is found of it."""
    if file.name:  # REST takes the name of the address or the body into the config
        file = replace(file, config={**file.config, "name": file.name})
    values = in_config(file.config, file.lines)
    report = report.with_findings(of_connector(values))
    props = {key: value for key, value in file.config.items() if value is not None}
    try:
        # The worker's own providers are not known here.
        transformer = ConfigTransformer({}, config_providers())
        resolved, secrets = transformer.transform(props), secrets_of(transformer, props)
    except ConfigError as error:
        return report.with_findings([file.finding(Level.ERROR, error.message, error.key or "")])
    looked, hidden = Looked(), frozenset(one.key for one, _ in undeclared(values))
    try:
        await _look(file, resolved, hidden, looked, offline=offline)
    except HeliographError as error:
        key = error.key or "" if isinstance(error, ConfigError) else ""
        looked.findings.append(file.finding(Level.ERROR, of_error(error).text, key))
    outcome = CheckOutcome(file.name or "the connector", tuple(map(secrets.mask, looked.does)))
    report = replace(report, outcomes=(outcome,), clusters=tuple(looked.clusters.values()))
    return report.with_findings(replace(one, text=secrets.mask(one.text)) for one in looked.findings)


async def _look(
    file: CheckedConnector, props: Mapping[str, str], hidden: Collection[str], looked: Looked, *, offline: bool
) -> None:
    """As a worker would that is sent it, and then at its clusters. Raises ConfigError, SecurityError."""
    worker = _sample_worker({key: value for key, value in props.items() if key not in hidden})
    async with plugins_of(worker) as plugins:
        refused = await objections_of(file.config, plugins, worker, worker.transformer)
        java_class = plugins.full_name(file.config.get("connector.class") or "") or ""
    looked.findings += [file.finding(Level.ERROR, reason, key) for key, reason in refused]
    looked.findings += _of_keys(file, java_class)
    if refused:
        return
    looked.does += does_of(java_class, props, worker)
    if not java_class.startswith(_MIRROR):
        return
    if hidden:
        if not offline:
            key = sorted(hidden)[0]
            said = f"the clusters could not be asked: {key} refers to what only the worker's config providers know"
            looked.findings.append(file.finding(Level.UNKNOWN, said, key))
        return
    sides = sides_of(file.name, java_class, props, worker)
    if not offline:
        await look_at_flow(sides, looked)


def _sample_worker(props: Mapping[str, str]) -> WorkerConfig:
    """A worker with defaults: the file does not say which one it will be sent to. Raises ConfigError."""
    of_target = properties_with_prefix(props, _TARGET)
    of_target.pop("alias", None)
    try:
        return WorkerConfig.parse(
            {
                "bootstrap.servers": "localhost:9092",
                **of_target,
                "group.id": "connect-cluster",
                "config.storage.topic": "connect-configs",
                "offset.storage.topic": "connect-offsets",
                "status.storage.topic": "connect-status",
                "key.converter": _BYTES,
                "value.converter": _BYTES,
                # Whether the worker can is not this file's to say.
                "file.stream.source.enable": "true",
                "exactly.once.source.support": "enabled" if _requires_exactly_once(props) else "disabled",
            },
            config_providers(),
        )
    except ConfigError as error:
        key = f"{_TARGET}{error.key}"
        raise ConfigError(error.message.replace(error.key or "", key, 1), key) from None


def _requires_exactly_once(props: Mapping[str, str]) -> bool:
    return props.get("exactly.once.support", "").strip().lower() == "required"


def _of_keys(file: CheckedConnector, java_class: str) -> Iterator[CheckFinding]:
    if not file.name:
        yield file.finding(Level.WARNING, "has no name; REST needs one in the address or in the body", "name")
    if java_class.startswith(_MIRROR):
        props = {key: value for key, value in file.config.items() if value is not None}
        for notice in connector_notices(props):
            yield file.finding(Level.WARNING, notice.text, notice.key)


def does_of(java_class: str, props: Mapping[str, str], worker: WorkerConfig) -> Iterator[str]:
    """What a connector would do, a sentence each. Raises ConfigError where its settings do not fit together."""
    match java_class.removeprefix(_MIRROR):
        case "MirrorSourceConnector":
            yield from of_source(source_settings(props, worker.props), props)
        case "MirrorCheckpointConnector":
            yield from of_checkpoints(None if objections(props) else checkpoint_settings(props), props)
        case "MirrorHeartbeatConnector":
            yield from of_heartbeats(props)
        case _:
            yield f"is a {java_class}, with {props.get('tasks.max', '1')} task(s) at most"


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
