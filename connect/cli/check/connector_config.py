"""Checks a connector's config from a JSON or properties file, as a worker would validate it, and says what each mirror
connector would do.

The connection settings of its clusters are resolved as its clients do it, key stores included. Kerberos, and references
that stay unresolved, are findings.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.api.plugins import PluginDescription, PluginKind, config_providers
from connect.cli.check.clusters import Looked, Sides, look_at_flow
from connect.cli.check.findings import CheckFinding, CheckOutcome, CheckReport, Level, of_error, placed
from connect.cli.commands.connectors import read_json
from connect.cli.daemons.spark import spark_of_worker
from connect.cli.daemons.worker_process import link_settings, rest_tls
from connect.core.config.config_def import split_list
from connect.core.config.connector_access import NotAllowed
from connect.core.config.properties import ConfigTransformer, Properties
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.core.herder_api import ConfigInfosWithWarnings
from connect.core.model import NewTopic
from connect.core.wording import counted
from connect.kafka.threads import LeaseThread
from connect.runtime.plugins.config_validation import validate_connector
from connect.runtime.plugins.plugin_errors import secrets_of
from connect.runtime.plugins.plugin_registry import Plugins, check_worker
from connectors.checkpoint.connector import objections
from connectors.config import client_config, connector_configs
from connectors.config.client_config import ClientKind, ClusterSide
from connectors.config.connector_configs import CheckpointSettings, MirrorSourceSettings, source_settings
from connectors.config.definitions import HEARTBEAT
from connectors.control_link.server import LinkSettings
from connectors.plugins import mirror_plugins
from connectors.source.worker_context import MirrorHost, SharedSpark
from rest.authentication import open_access
from rest.rest_config import RestSettings

_SAMPLE: Final = "orders"


async def of_start(config: WorkerConfig) -> list[CheckFinding]:
    """Find what a worker's start would refuse or warn of besides its keys: plugins, the link, REST's keys and users.
    Each error has the place that ``config.located`` gives."""
    try:
        link_settings(config.props)
        async with plugins_of(config) as plugins:
            said = [CheckFinding(Level.WARNING, text, text.partition(" ")[0]) for text in check_worker(config, plugins)]
        return [*said, *await of_rest(RestSettings.of(config.values), config.props)]
    except ConfigError as error:
        return [of_error(config.located(error) if error.line is None else error)]
    except HeliographError as error:
        return [of_error(error)]


async def of_rest(settings: RestSettings, props: Mapping[str, str]) -> list[CheckFinding]:
    """Find what a REST server with these settings would warn of. Raises ConfigError, SecurityError if it would not
    start."""
    opened = await asyncio.to_thread(open_access, settings, rest_tls(props))
    return [CheckFinding(Level.WARNING, text, text.partition(": ")[0]) for text in opened.notices]


@asynccontextmanager
async def plugins_of(worker: WorkerConfig) -> AsyncIterator[Plugins]:
    """Give the plugins of a worker. Spark starts only if a query is to be checked."""
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


async def validated(
    config: Mapping[str, str | None], plugins: Plugins, worker: WorkerConfig, transformer: ConfigTransformer
) -> tuple[list[tuple[str, str]], Sequence[str]]:
    """Return every key that a worker would refuse, with the reason; and the warnings that it would answer."""
    try:
        infos = await validate_connector(config, plugins, worker, transformer)
    except ConfigError as error:
        return [(error.key or "", error.message)], ()
    except HeliographError as error:
        return [("connector.class", str(error))], ()
    refused = [(info.value.name, error) for info in infos.configs for error in info.value.errors]
    return refused, infos.warnings if isinstance(infos, ConfigInfosWithWarnings) else ()


def of_source(settings: MirrorSourceSettings, connector: Mapping[str, str]) -> Iterator[str]:
    wanted, renamed = connector.get("topics", ".*").strip(), ""
    but = f" except {excluded}" if (excluded := connector.get("topics.exclude", "").strip()) else ""
    with suppress(PermanentError):
        renamed = f", {_SAMPLE} as {settings.remote_topic(_SAMPLE)}"
    yield f"mirrors topics {wanted}{but}{renamed}, in at most {counted(settings.tasks_max, 'task')}"
    if settings.changing_key:
        yield f"transforms records by {settings.changing_key}"
    if settings.transactions is not None:
        yield "writes in transactions, exactly once"
    syncs = settings.offset_syncs
    where = settings.source_alias if syncs is not None and syncs.on_source else settings.target_alias
    yield f"writes offset syncs to {syncs.topic} on {where}" if syncs is not None else "writes no offset syncs"
    if settings.access.interval_s is None:
        yield "does not sync ACLs"


def of_checkpoints(settings: CheckpointSettings | None, connector: Mapping[str, str]) -> Iterator[str]:
    """Describe what MirrorCheckpoint would do; ``settings`` is None if the flow has no checkpoints."""
    if settings is None:
        yield f"writes no checkpoints: {'; '.join(objections(connector).values()) or 'they are disabled'}"
        return
    moving = "does not sync group offsets"
    if settings.sync_interval_s is not None:
        moving = f"syncs group offsets every {settings.sync_interval_s} s"
    yield f"translates the offsets of groups {connector.get('groups', '.*').strip()}, and {moving}"


def of_heartbeats(connector: Mapping[str, str]) -> Iterator[str]:
    values = HEARTBEAT.parse(connector)
    every, target = values.integer("emit.heartbeats.interval.seconds"), values.string("target.cluster.alias")
    enabled = values.boolean("emit.heartbeats.enabled")
    yield f"writes a heartbeat every {every} s to {target}" if enabled else "writes no heartbeats"


def sides_of(name: str, java_class: str, props: Mapping[str, str], worker: WorkerConfig) -> Sides:
    """Return what the connector ``name`` needs on its clusters; ``props`` are resolved. Raises ConfigError, with the
    key as in ``props``, if one is missing or wrong."""
    props = {**props, "name": name, "connector.class": java_class}
    settings = source_settings(props, worker.props)
    source, target = settings.source_alias, settings.target_alias

    def located(error: ConfigError, side: ClusterSide, kind: ClientKind | None) -> ConfigError:
        # The worker's own client is made of the connector's target, because the file does not say which worker gets it.
        return client_config.located_client(props, error, side, kind or "admin")

    own = {"client.id": "", **worker.props}
    clients = client_config.flow_clients(settings.flow, props, own, source=source, target=target, locate=located)
    admins = clients.source_admin(), clients.target_admin()
    if not java_class.endswith("MirrorSourceConnector"):
        return Sides(name or settings.flow, source, target, *admins, None, [], None)
    internal = [NewTopic(settings.map_topic, -1, settings.offsets_topic_replication_factor)]
    return Sides(name or settings.flow, source, target, *admins, settings, internal, None)


_MECHANISM: Final = "sasl.mechanism"
_PROVIDERS: Final = "config.providers"
#: References of :mod:`connect.core.config.properties` whose provider has a plausible name.
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z][\w-]*):[^}]*\}")
#: Usual names of providers. Any other name may be part of a password that looks like a reference.
_USUAL: Final = (
    *("env", "environment", "file", "directory", "dir", "secret", "secrets", "configmaps", "vault"),
    *("strimzienv", "strimzifile", "strimzidir", "strimzisecrets"),
)


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """An unresolved value of a file."""

    key: str
    value: str = field(repr=False)
    line: int | None


def in_properties(props: Properties) -> list[WrittenValue]:
    return [WrittenValue(key, value, props.line(key)) for key, value in props.items()]


def of_values(
    values: Sequence[WrittenValue], declared: Collection[str] = (), *, of_connector: bool = False
) -> Iterator[CheckFinding]:
    """Find values that may not have the intended effect: clients that log in by Kerberos, and references to unknown
    providers. ``declared`` are providers declared outside of the file; the worker of a connector may declare others."""
    for one in values:
        if one.key.endswith(_MECHANISM) and one.value.strip() == "GSSAPI":
            said = f"{one.key}: Kerberos keys are read, but login has not been tested against a real Kerberos server"
            yield CheckFinding(Level.WARNING, said, one.key, one.line)
    level, effect = Level.WARNING, "is not resolved, as in Java: config.providers does not name it"
    if of_connector:
        level, effect = Level.NOTE, "is resolved only if config.providers of the worker names it"
    for one, name in undeclared(values, declared):
        kind = "an apparent reference to a config provider"
        if name in _USUAL:
            kind = f"a reference to the config provider {name}"
        yield CheckFinding(level, f"{one.key}: {kind} {effect}", one.key, one.line)


def undeclared(values: Sequence[WrittenValue], declared: Collection[str] = ()) -> Iterator[tuple[WrittenValue, str]]:
    """Yield values with references to undeclared providers, each with the provider's name."""
    # By the prefix of the keys that they serve: a cluster's, a flow's, or all.
    known = {one.key.removesuffix(_PROVIDERS): split_list(one.value) for one in values if declares(one.key)}
    for one in values:
        for name in dict.fromkeys(_REFERENCE.findall(one.value)):
            own = (names for prefix, names in known.items() if one.key.startswith(prefix))
            if name not in declared and not any(name in names for names in own):
                yield one, name


def declares(key: str) -> bool:
    """Whether the key is ``config.providers``, with a prefix or without."""
    return key == _PROVIDERS or key.endswith(f".{_PROVIDERS}")


_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
_TARGET: Final = "target.cluster."
_MIRROR: Final = "org.apache.kafka.connect.mirror."
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"


@dataclass(frozen=True)
class CheckedConnector:
    """A connector's name and config; ``lines`` by key, as far as they are known."""

    file: str
    name: str
    config: Mapping[str, str | None]
    lines: Mapping[str, int]

    def finding(self, level: Level, text: str, key: str) -> CheckFinding:
        found = CheckFinding(level, text if not key or key in text else f"{key}: {text}", key or None)
        return placed(found, self.lines.get)


def of_properties(props: Properties, file: str) -> CheckedConnector:
    """Read a connector from properties, as Kafka's ``connect-standalone`` does."""
    lines = {key: line for key in props if (line := props.line(key)) is not None}
    return CheckedConnector(file, props.get("name", ""), dict(props), lines)


def of_json(text: str, file: str) -> CheckedConnector:
    """Read a connector from JSON: a config, or a name and a config. Raises ConfigError, with the line, for others."""
    document = read_json(text, file)
    inner = document.get("config") if isinstance(document, dict) else None
    config = inner if isinstance(inner, dict) else document
    if not isinstance(config, dict):
        raise ConfigError("a connector's config is a JSON object", file=file)
    keys = [found for found in _STRING.finditer(text) if found[2]]
    lines = {found[1]: text.count("\n", 0, found.start()) + 1 for found in keys}
    nested = next((key for key, value in config.items() if isinstance(value, (dict, list))), None)
    if nested is not None:
        raise ConfigError(f"{nested} is not a string. All values must be strings", nested, file, lines.get(nested))
    values = {key: _text(value) for key, value in config.items()}
    name = document.get("name") or values.get("name") or ""
    return CheckedConnector(file, str(name), values, lines)


async def check_connector(file: CheckedConnector, report: CheckReport, *, offline: bool) -> CheckReport:
    """Return ``report`` with the findings about a connector."""
    if file.name:  # because REST copies the name from the path or the body to the config
        file = replace(file, config={**file.config, "name": file.name})
    props = {key: value for key, value in file.config.items() if value is not None}
    values = [WrittenValue(key, value, file.lines.get(key)) for key, value in props.items()]
    report = report.with_findings(of_values(values, of_connector=True))
    try:
        # The worker's config providers are not known here.
        transformer = ConfigTransformer({}, config_providers())
        resolved, secrets = transformer.transform(props), secrets_of(transformer, props)
    except ConfigError as error:
        return report.with_findings([file.finding(Level.ERROR, error.message, error.key or "")])
    try:
        transformer.connector_props(props)
    except NotAllowed as error:
        # A worker refuses it, unless its file, which is not known here, has it in this list.
        report = report.with_findings([file.finding(Level.WARNING, error.message, error.key or "")])
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
    """Validate the config as a worker would, then check its clusters. Raises ConfigError, SecurityError."""
    worker = _sample_worker({key: value for key, value in props.items() if key not in hidden})
    async with plugins_of(worker) as plugins:
        refused, warnings = await validated(file.config, plugins, worker, worker.transformer)
        java_class = plugins.full_name(file.config.get("connector.class") or "") or ""
    looked.findings += [file.finding(Level.ERROR, reason, key) for key, reason in refused]
    if not file.name:
        said = "the connector has no name. REST needs one in the path or the body"
        looked.findings.append(file.finding(Level.WARNING, said, "name"))
    looked.findings += [file.finding(Level.WARNING, text, text.partition(" ")[0]) for text in warnings]
    if refused:
        return
    looked.does += does_of(java_class, props, worker)
    if not java_class.startswith(_MIRROR):
        return
    if hidden:
        if not offline:
            key = sorted(hidden)[0]
            said = f"the clusters were not checked: {key} refers to a config provider of the worker"
            looked.findings.append(file.finding(Level.UNKNOWN, said, key))
        return
    sides = sides_of(file.name, java_class, props, worker)
    if not offline:
        await look_at_flow(sides, looked)


def _sample_worker(props: Mapping[str, str]) -> WorkerConfig:
    """Return a worker with defaults, because the file does not say which one gets it. Raises ConfigError."""
    of_target = client_config.properties_with_prefix(props, _TARGET)
    of_target.pop("alias", None)
    needs_transactions = props.get("exactly.once.support", "").strip().lower() == "required"
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
                # Depends on the worker, which is not known here.
                "file.stream.source.enable": "true",
                "exactly.once.source.support": "enabled" if needs_transactions else "disabled",
            },
            config_providers(),
            [props],
        )
    except ConfigError as error:
        key = f"{_TARGET}{error.key}"
        raise ConfigError(error.message.replace(error.key or "", key, 1), key) from None


def does_of(java_class: str, props: Mapping[str, str], worker: WorkerConfig) -> Iterator[str]:
    """Describe what a connector would do, a sentence each. Raises ConfigError if its settings contradict each other."""
    match java_class.removeprefix(_MIRROR):
        case "MirrorSourceConnector":
            yield from of_source(source_settings(props, worker.props), props)
        case "MirrorCheckpointConnector":
            settings = None if objections(props) else connector_configs.checkpoint_settings(props)
            yield from of_checkpoints(settings, props)
        case "MirrorHeartbeatConnector":
            yield from of_heartbeats(props)
        case _:
            yield f"runs {java_class} with tasks.max = {props.get('tasks.max', '1')}"


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
