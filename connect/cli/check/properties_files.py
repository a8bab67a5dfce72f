"""Checks of properties files: ``mm2.properties``, a worker's, and MirrorMaker 1's consumers and producers.

Each is read as the command that takes it would; a flow's connectors are validated too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from connect.api.plugins import config_providers
from connect.cli.check import connector_config
from connect.cli.check.clusters import Looked, Sides, look_at_cluster, look_at_flow
from connect.cli.check.connector_config import of_rest, plugins_of, validated
from connect.cli.check.findings import CheckFinding, CheckOutcome, CheckReport, Level, list_with, of_error, placed
from connect.cli.commands.plan import internal_topics
from connect.cli.daemons.flow_worker import plugin_key_notices, worker_config
from connect.cli.daemons.mirror_process import link_settings
from connect.core.config.client_settings import BOOTSTRAP_SERVERS
from connect.core.config.properties import ConfigTransformer, Properties
from connect.core.config.rest_settings import REST_INTERNAL, check_access
from connect.core.config.worker_config import ClientKind, WorkerConfig, ineffective
from connect.core.config.worker_settings import WORKER
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import NewTopic
from connect.kafka.log.offsets import LATEST
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connect.runtime.plugins.plugin_errors import secrets_of
from connect.runtime.plugins.plugin_registry import check_worker
from connect.runtime.task.client_configs import producer_values
from connectors.checkpoint.connector import objections
from connectors.config.connector_configs import checkpoint_settings
from connectors.config.mm2_properties import Connector, Flow, MirrorMakerConfig, mirrored
from connectors.mirror_maker_1.config import Options, mirror_settings
from connectors.mirror_maker_1.topics import takes
from rest.rest_config import RestSettings


async def check_mirror(props: Properties, report: CheckReport, *, offline: bool) -> CheckReport:
    """Return ``report`` with the findings about the file."""
    try:
        config = MirrorMakerConfig(props)
        flows = config.flows_to_run()
        secrets = secrets_of(config.transformer, config.raw)
    except ConfigError as error:
        return report.with_findings([placed(of_error(error), props.line)])
    report = report.with_findings(_of_keys(config, flows))
    looked = Looked()
    for flow in flows:
        found = await _refusals(flow)
        # An error that flows share is reported once, by the first.
        before = {(one.key, one.line) for one in looked.findings if one.level is Level.ERROR and one.line is not None}
        looked.findings += [one for one in found if (one.key, one.line) not in before]
        looked.does = []
        try:
            if not found:
                looked.does, sides = _does(flow), _sides(flow)
                if not offline:
                    await look_at_flow(sides, looked)
        except HeliographError as error:  # because nothing else has read the settings of a flow that is not enabled
            looked.findings.append(of_error(error, Level.ERROR if flow.enabled else Level.WARNING))
        outcome = CheckOutcome(str(flow), tuple(map(secrets.mask, looked.does)))
        report = replace(report, outcomes=(*report.outcomes, outcome))
    if not any(one.level is Level.ERROR for one in looked.findings):
        looked.findings += await _of_whole(config, flows)
    looked.findings += _twins(looked)
    report = replace(report, clusters=tuple(looked.clusters.values()))
    places = (placed(one, props.line) for one in looked.findings)
    return report.with_findings(replace(one, text=secrets.mask(one.text)) for one in places)


def _of_keys(config: MirrorMakerConfig, flows: Sequence[Flow]) -> Iterator[CheckFinding]:
    """Find unknown and ineffective keys, and a file without an enabled flow."""
    for notice in (*config.key_notices(), *plugin_key_notices(config, flows)):
        yield CheckFinding(Level.WARNING, notice.text, notice.key, config.raw.line(notice.key))
    if not mirrored(flows):
        yield CheckFinding(Level.WARNING, "no flow is enabled: it would only write heartbeats")


async def _of_whole(config: MirrorMakerConfig, flows: Sequence[Flow]) -> list[CheckFinding]:
    """Find problems of values, of pairs of flows, of the control link, and of the REST server."""
    found = [CheckFinding(Level.WARNING, one.text, one.key, config.raw.line(one.key)) for one in config.notices()]
    try:
        link_settings(config, mirrored(flows))
    except ConfigError as error:
        found.append(of_error(error))
    if config.public_rest or config.internal_rest:
        props = config.top_level_properties()
        try:
            values = REST_INTERNAL.parse(props)
            if config.public_rest:
                check_access(values, props)
            found += await of_rest(RestSettings.of(values), props)
        except ConfigError as error:
            found.append(of_error(config.located(error, [error.key or ""])))
        except HeliographError as error:
            found.append(of_error(error))
    return found


def _twins(looked: Looked) -> Iterator[CheckFinding]:
    """Find aliases of the same cluster, which is seldom intended."""
    aliases: dict[str, list[str]] = defaultdict(list)
    for one in looked.clusters.values():
        aliases[one.cluster_id or one.name].append(one.name)
    for names in filter(lambda names: len(names) > 1, aliases.values()):
        yield CheckFinding(Level.WARNING, f"{' and '.join(names)} are the same cluster, by its id")


async def _refusals(flow: Flow) -> list[CheckFinding]:
    """Find everything that prevents a flow from starting, or one of its connectors from being configured."""
    # Because a worker for heartbeats only is restarted, and does not affect other flows.
    level = Level.ERROR if flow.enabled else Level.WARNING
    reported: list[CheckFinding] = []
    try:
        worker = worker_config(flow)
        transformer = ConfigTransformer(flow.config.raw, trusted=map(flow.connector_config, Connector))
        async with plugins_of(worker) as plugins:
            try:
                check_worker(worker, plugins)
            except ConfigError as error:
                raise flow.located(error) from None
            for connector in _connectors(flow):
                config = flow.connector_config(connector)
                refused, _ = await validated(config, plugins, worker, transformer)
                # A setting that the connectors share is reported once, by the first.
                before = {one.key for one in reported}
                found = [_located(flow, key, reason, level) for key, reason in refused]
                if connector is not Connector.SOURCE:
                    found += _of_producer(flow, worker, transformer.transform(config), level)
                reported += [one for one in found if one.key not in before]
    except HeliographError as error:
        # A process does not start if the settings of any of its workers are invalid.
        reported.append(_of_error(flow, error, Level.ERROR))
    for read in (flow.settings, flow.clients) if flow.enabled else (flow.clients,):
        try:
            read()
        except HeliographError as error:
            last = _of_error(flow, error, level)
            if last.key not in {one.key for one in reported}:
                reported.append(last)
    return reported


def _of_producer(
    flow: Flow, worker: WorkerConfig, connector: Mapping[str, str], level: Level
) -> Iterator[CheckFinding]:
    """Find an invalid setting of the producer of heartbeats and checkpoints; their tasks would fail."""
    try:
        producer_values(worker, connector)
    except ConfigError as error:
        key = f"producer.{error.key}"
        yield _located(flow, key, error.message.replace(error.key or "", key, 1), level)


def _connectors(flow: Flow) -> list[Connector]:
    """Return the connectors that the leader would configure."""
    if not flow.enabled:
        return [Connector.HEARTBEAT]
    has_checkpoints = not objections(flow.connector_config(Connector.CHECKPOINT))
    return [one for one in Connector if one is not Connector.CHECKPOINT or has_checkpoints]


def _located(flow: Flow, key: str, reason: str, level: Level) -> CheckFinding:
    written, line = flow.written(key)
    if line is None and (names := list_with(key)) is not None:
        named_by, line = flow.written(names)
        written = named_by.removesuffix(names) + key
    named = reason.replace(key, written, 1) if key in reason else f"{written}: {reason}"
    return CheckFinding(level, f"{flow}: {named}" if line is None else named, written, line)


def _of_error(flow: Flow, error: HeliographError, level: Level) -> CheckFinding:
    if isinstance(error, ConfigError) and error.line is None and list_with(error.key or "") is not None:
        return _located(flow, error.key or "", error.message, level)
    return of_error(error, level)


def _does(flow: Flow) -> list[str]:
    found: list[str] = []
    if flow.enabled:
        checkpoints = flow.config.resolved(flow.connector_config(Connector.CHECKPOINT))
        settings = None if objections(checkpoints) else checkpoint_settings(checkpoints)
        found += connector_config.of_source(flow.settings(), flow.connector_config())
        found += connector_config.of_checkpoints(settings, checkpoints)
    found += connector_config.of_heartbeats(flow.config.resolved(flow.connector_config(Connector.HEARTBEAT)))
    return found if flow.enabled else [f"mirrors nothing; {found[0]}"]


def _sides(flow: Flow) -> Sides:
    settings, clients = flow.settings(), flow.clients()
    topics = internal_topics(flow, settings)
    internal, group_id = (*topics.on_target, *topics.of_tasks), worker_config(flow).group_id
    admins = clients.source_admin(), clients.target_admin()
    _, line = flow.config.written([f"{flow}.enabled", "enabled"], "")
    copied = settings if flow.enabled else None
    return Sides(str(flow), flow.source, flow.target, *admins, copied, internal, group_id, line)


_READS: Final = "shares partitions with other members; starts at the {} of partitions without a committed offset"
_WRITES: Final = ("passes batches on as they are, acknowledged by all in-sync replicas",)
#: By whether it is the consumer's file. The command line names the topics, the files do not.
_NOT_LOOKED_AT: Final = {
    True: "ACLs of topics were not checked, because the command line names the topics. Needed are DESCRIBE and READ, "
    "and DESCRIBE_CONFIGS for topics that the target lacks",
    False: "ACLs of topics and transactional ids were not checked, because the command line and the group name them. "
    "Needed are DESCRIBE and WRITE on topics and on transactional ids with the group's name as prefix, and CREATE for "
    "missing topics",
}
#: Replaces the other file of the command, which is not checked here.
_OTHER: Final = Properties({"bootstrap.servers": "localhost:9092", "group.id": "other"})


async def check_client(props: Properties, report: CheckReport, *, is_consumer: bool, offline: bool) -> CheckReport:
    """Return ``report`` with the findings about the file."""
    sources, target = ([props], _OTHER) if is_consumer else ([_OTHER], props)
    said: list[str] = []
    try:
        settings = mirror_settings(sources, target, Options(takes(".*", None)), said.append)
    except HeliographError as error:
        return report.with_findings([*_of_mirror_maker_1_keys(props, said), placed(of_error(error), props.line)])
    report = report.with_findings(_of_mirror_maker_1_keys(props, said))
    (source,) = settings.sources
    outcome = CheckOutcome("the copy", _WRITES)
    if is_consumer:
        begins = "end" if source.reset_to == LATEST else "beginning"
        outcome = CheckOutcome(f"group {source.group.group_id}", (_READS.format(begins),))
    report = replace(report, outcomes=(outcome,))
    if offline:
        return report
    if is_consumer:
        looked = await look_at_cluster("source", source.connection, source.group.group_id, ())
    else:
        looked = await look_at_cluster("target", settings.target, None, ())
    findings = [*looked.findings, CheckFinding(Level.NOTE, _NOT_LOOKED_AT[is_consumer])]
    return replace(report, clusters=tuple(looked.clusters.values())).with_findings(findings)


def _of_mirror_maker_1_keys(props: Properties, said: Sequence[str]) -> Iterator[CheckFinding]:
    """Turn what the command would log about the file into findings with lines."""
    for sentence in said:
        if sentence.startswith(prefix := f"{props.file}: "):
            text = sentence.removeprefix(prefix)
            key = text.partition(":")[0]
            yield CheckFinding(Level.WARNING, text, key, props.line(key))


_KINDS: Final[tuple[ClientKind, ...]] = ("producer", "consumer", "admin")
_FILE_OF_STANDALONE = "offset.storage.file.filename"


async def check_worker_file(props: Properties, report: CheckReport, *, offline: bool) -> CheckReport:
    """Return ``report`` with the findings about the file."""
    try:
        config = WorkerConfig.parse(props, config_providers())
    except HeliographError as error:
        refused = [*_worker_refusals(props), placed(of_error(error), props.line)]
        return report.with_findings([*refused, *_of_warnings(ineffective(props), props)])
    report = report.with_findings([*_of_warnings(config.warnings, props), *_of_standalone(props)])
    topics = [config.config_topic, config.offset_topic, config.status_topic]
    outcome = CheckOutcome(f"group {config.group_id}", tuple(_what_worker_does(config, topics)))
    report = replace(report, outcomes=(outcome,))
    secrets, looked = secrets_of(config.transformer, config.raw), Looked()
    settings: ConnectionSettings | None = None
    try:
        settings = connection_settings(config.props, client_id="heliograph-check", where="worker")
    except HeliographError as error:
        looked.findings.append(of_error(config.located(error) if isinstance(error, ConfigError) else error))
    looked.findings += await connector_config.of_start(config)
    # What connectors' clients inherit from the worker is reported once.
    before = {one.key for one in looked.findings}
    looked.findings += [one for one in _of_connectors_clients(config) if one.key not in before]
    if settings is not None and not offline:
        seen = await look_at_cluster("worker", settings, config.group_id, topics)
        looked = replace(seen, findings=[*looked.findings, *seen.findings])
    found = [replace(placed(one, props.line), text=secrets.mask(one.text)) for one in looked.findings]
    return replace(report, clusters=tuple(looked.clusters.values())).with_findings(found)


def _worker_refusals(props: Properties) -> Iterator[CheckFinding]:
    """Find all invalid values; a start would report only the first."""
    yield from _of_standalone(props)
    try:
        transformer = ConfigTransformer(props, config_providers())
        resolved, secrets = transformer.transform(props), secrets_of(transformer, props)
    except ConfigError:
        return  # because the caller reports this error
    for key, value in WORKER.validate(resolved).items():
        for error in value.errors:
            yield CheckFinding(Level.ERROR, secrets.mask(error), key, props.line(key))


def _of_standalone(props: Properties) -> Iterator[CheckFinding]:
    if _FILE_OF_STANDALONE in props:
        said = f"{_FILE_OF_STANDALONE}: standalone workers are not supported. Run a group of one worker"
        yield CheckFinding(Level.ERROR, said, _FILE_OF_STANDALONE, props.line(_FILE_OF_STANDALONE))


def _of_warnings(texts: Iterable[str], props: Properties) -> Iterator[CheckFinding]:
    for text in texts:
        key = text.partition(" ")[0]
        if key != _FILE_OF_STANDALONE:  # because the error about it says what to do
            yield CheckFinding(Level.WARNING, text, key, props.line(key))


def _of_connectors_clients(config: WorkerConfig) -> Iterator[CheckFinding]:
    """Find errors in the settings of connectors' clients."""
    for kind in _KINDS:
        try:
            connection_settings(config.client_props(kind), client_id="", where=f"the {kind} of connectors")
            if kind == "producer":
                producer_values(config, {})
        except ConfigError as error:
            key = error.key or ""
            # All inherit the brokers, and admins all other keys too.
            inherits = f"{kind}.{key}" not in config.raw and (kind == "admin" or key == BOOTSTRAP_SERVERS)
            written = key if inherits else f"{kind}.{key}"
            yield of_error(config.located(ConfigError(error.message.replace(key, written, 1), written)))
        except HeliographError as error:
            yield of_error(error)


def _what_worker_does(config: WorkerConfig, topics: Sequence[NewTopic]) -> Iterator[str]:
    yield f"joins the group on {config.props['bootstrap.servers']} with protocol {config.connect_protocol}"
    yield f"stores configs, offsets and statuses in {', '.join(topic.name for topic in topics)}"
    yield f"serves REST on {', '.join(config.values.strings('listeners'))}"
    if config.exactly_once_enabled:
        yield "supports exactly-once source tasks"
