"""A worker's properties looked at, as ``connect-distributed`` would take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from connect.cli.check_clusters import Looked, look_at_cluster
from connect.cli.check_connectors import plugins_of
from connect.cli.check_places import placed
from connect.cli.check_report import Finding, Level, Outcome, Report, of_error
from connect.cli.node import link_settings
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import NewTopic
from connect.core.properties import Properties
from connect.core.providers import ConfigTransformer
from connect.core.worker_config import ClientKind, WorkerConfig
from connect.core.worker_defs import WORKER
from connect.kafka.settings import connection_settings
from connect.runtime.discovery import config_providers
from connect.runtime.traces import secrets_of
from connect.runtime.worker_check import check_worker
from rest.settings import RestSettings

_KINDS: Final[tuple[ClientKind, ...]] = ("producer", "consumer", "admin")
_FILE_OF_STANDALONE = "offset.storage.file.filename"


async def check_worker_file(props: Properties, report: Report, *, offline: bool) -> Report:
    """``report`` with what is found of the file."""
    try:
        config = await _parsed(props)
    except HeliographError as error:
        return report.with_findings([*_refusals(props), placed(of_error(error), props.line)])
    report = report.with_findings(_of_keys(config, props))
    topics = [config.config_topic, config.offset_topic, config.status_topic]
    outcome = Outcome(f"group {config.group_id}", tuple(_does(config, topics)))
    report = replace(report, outcomes=(outcome,))
    secrets, looked = secrets_of(config.transformer, config.raw), Looked()
    try:
        settings = connection_settings(config.props, client_id="heliograph-check", where="the worker's cluster")
        looked.findings += _of_connectors_clients(config)
        if not offline:
            seen = await look_at_cluster("worker", settings, config.group_id, topics)
            looked = replace(seen, findings=[*looked.findings, *seen.findings])
    except HeliographError as error:
        looked.findings.append(of_error(config.located(error) if isinstance(error, ConfigError) else error))
    found = [replace(placed(one, props.line), text=secrets.mask(one.text)) for one in looked.findings]
    return replace(report, clusters=tuple(looked.clusters.values())).with_findings(found)


async def _parsed(props: Properties) -> WorkerConfig:
    """Raises as a worker's start would, but for what only its cluster tells."""
    config = WorkerConfig.parse(props, config_providers())
    try:
        RestSettings.of(config.values)
        link_settings(config.props)
        async with plugins_of(config) as plugins:
            check_worker(config, plugins)
    except ConfigError as error:
        raise config.located(error) if error.line is None else error from None
    return config


def _refusals(props: Properties) -> Iterator[Finding]:
    """All values that are refused, where a start would tell of the first."""
    if _FILE_OF_STANDALONE in props:
        said = f"{_FILE_OF_STANDALONE} is of a standalone worker; there is none here, but a group of one worker"
        yield Finding(Level.ERROR, said, _FILE_OF_STANDALONE, props.line(_FILE_OF_STANDALONE))
    try:
        transformer = ConfigTransformer(props, config_providers())
        resolved, secrets = transformer.transform(props), secrets_of(transformer, props)
    except ConfigError:
        return  # that is the error which the start tells
    for key, value in WORKER.validate(resolved).items():
        for error in value.errors:
            yield Finding(Level.ERROR, secrets.mask(error), key, props.line(key))


def _of_keys(config: WorkerConfig, props: Properties) -> Iterator[Finding]:
    for text in config.warnings:
        key = text.partition(" ")[0]
        yield Finding(Level.WARNING, text, key, props.line(key))
    if _FILE_OF_STANDALONE in props:
        yield from _refusals(props)


def _of_connectors_clients(config: WorkerConfig) -> Iterator[Finding]:
    """What keeps connectors from making the clients that the file describes, its own being well."""
    for kind in _KINDS:
        try:
            connection_settings(config.client_props(kind), client_id="", where=f"the {kind} of connectors")
        except ConfigError as error:
            key = error.key or ""
            written = f"{kind}.{key}" if f"{kind}.{key}" in config.raw or kind != "admin" else key
            yield of_error(config.located(ConfigError(error.message.replace(key, written, 1), written)))
        except HeliographError as error:
            yield of_error(error)


def _does(config: WorkerConfig, topics: Sequence[NewTopic]) -> Iterator[str]:
    yield f"joins it, protocol {config.connect_protocol}, on {config.props['bootstrap.servers']}"
    yield f"keeps configs, offsets and statuses in {', '.join(topic.name for topic in topics)}"
    yield f"serves REST on {', '.join(config.values.strings('listeners'))}"
    if config.exactly_once_enabled:
        yield "lets source tasks write in transactions, exactly once"
