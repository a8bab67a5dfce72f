"""A connector's config in a file, as JSON or properties, looked at as a worker would that was sent it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from connect.cli.check_clusters import Looked, look_at_flow
from connect.cli.check_connectors import objections_of, of_checkpoints, of_heartbeats, of_source, plugins_of
from connect.cli.check_places import placed
from connect.cli.check_report import Finding, Level, Outcome, Report, of_error
from connect.cli.check_sides import sides_of
from connect.cli.check_values import in_config, of_connector, undeclared
from connect.cli.connector_file import read_json
from connect.core.errors import ConfigError, HeliographError
from connect.core.properties import Properties
from connect.core.providers import ConfigTransformer
from connect.core.worker_config import WorkerConfig
from connect.runtime.discovery import config_providers
from connect.runtime.traces import secrets_of
from connectors.checkpoint.connector import objections
from connectors.checkpoint.settings import checkpoint_settings
from connectors.clients import properties_with_prefix
from connectors.notices import connector_notices
from connectors.settings import source_settings

_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
_TARGET: Final = "target.cluster."
_MIRROR: Final = "org.apache.kafka.connect.mirror."
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"


@dataclass(frozen=True)
class ConnectorFile:
    """A connector's name and config; ``lines`` of its keys, as far as the file shows them."""

    file: str
    name: str
    config: Mapping[str, str | None]
    lines: Mapping[str, int]

    def finding(self, level: Level, text: str, key: str) -> Finding:
        found = Finding(level, text if not key or key in text else f"{key}: {text}", key or None)
        return placed(found, self.lines.get)


def of_properties(props: Properties, file: str) -> ConnectorFile:
    """Of a properties file, as Kafka's ``connect-standalone`` takes them."""
    lines = {key: line for key in props if (line := props.line(key)) is not None}
    return ConnectorFile(file, props.get("name", ""), dict(props), lines)


def of_json(text: str, file: str) -> ConnectorFile:
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
    return ConnectorFile(file, str(name), values, lines)


async def check_connector(file: ConnectorFile, report: Report, *, offline: bool) -> Report:
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
    outcome = Outcome(file.name or "the connector", tuple(map(secrets.mask, looked.does)))
    report = replace(report, outcomes=(outcome,), clusters=tuple(looked.clusters.values()))
    return report.with_findings(replace(one, text=secrets.mask(one.text)) for one in looked.findings)


async def _look(
    file: ConnectorFile, props: Mapping[str, str], hidden: Collection[str], looked: Looked, *, offline: bool
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


def _of_keys(file: ConnectorFile, java_class: str) -> Iterator[Finding]:
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
