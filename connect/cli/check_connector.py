"""A connector's config in a file, as JSON or properties, looked at as a worker would that was sent it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from connect.cli.check_clusters import Looked, Sides, look_at_flow
from connect.cli.check_connectors import objections_of, of_checkpoints, of_heartbeats, of_source, plugins_of
from connect.cli.check_places import placed
from connect.cli.check_report import Finding, Level, Outcome, Report, of_error
from connect.cli.check_values import in_config, of_connector
from connect.core.errors import ConfigError, HeliographError
from connect.core.properties import Properties
from connect.core.worker_config import WorkerConfig
from connect.kafka.admin import NewTopic
from connect.runtime.discovery import config_providers
from connect.runtime.plugins import Plugins
from connectors.checkpoint.connector import objections
from connectors.checkpoint.settings import checkpoint_settings
from connectors.clients import Kind, Side, flow_clients, properties_with_prefix
from connectors.notices import connector_notices
from connectors.settings import source_settings

_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
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
    try:
        document: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"this is not JSON: {error.msg}", None, file, error.lineno) from None
    except (ValueError, RecursionError):  # what JSON allows, and Python does not read
        raise ConfigError(
            "a number or the nesting in it is beyond reading; is it a connector's config?", file=file
        ) from None
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
    report = report.with_findings(of_connector(in_config(file.config, file.lines)))
    # REST takes the name of the address or the body into the config.
    config = {**file.config, **({"name": file.name} if file.name else {})}
    worker = _sample_worker(config)
    async with plugins_of(worker.props) as plugins:
        refused = await objections_of(config, plugins, worker, worker.transformer)
        java_class = plugins.full_name(config.get("connector.class") or "") or ""
        found = [file.finding(Level.ERROR, reason, key) for key, reason in refused]
        found += _of_keys(file, java_class, plugins)
    if refused:
        return report.with_findings(found)
    props = {key: value for key, value in config.items() if value is not None}
    looked = Looked(findings=found)
    try:
        looked.does += does_of(java_class, props, worker)
        if not offline and java_class.startswith(_MIRROR):
            await look_at_flow(sides_of(file, java_class, props, worker), looked)
    except HeliographError as error:
        key = error.key or "" if isinstance(error, ConfigError) else ""
        looked.findings.append(file.finding(Level.ERROR, of_error(error).text, key))
    outcome = Outcome(file.name or "the connector", tuple(looked.does))
    report = replace(report, outcomes=(outcome,), clusters=tuple(looked.clusters.values()))
    return report.with_findings(looked.findings)


def _sample_worker(config: Mapping[str, str | None]) -> WorkerConfig:
    """A worker with defaults: the file does not say which one it will be sent to."""
    of_target = {
        key: value
        for key, value in properties_with_prefix(
            {key: value for key, value in config.items() if value is not None}, "target.cluster."
        ).items()
        if key != "alias"
    }
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
            "exactly.once.source.support": "enabled" if _requires_exactly_once(config) else "disabled",
        },
        config_providers(),
    )


def _requires_exactly_once(config: Mapping[str, str | None]) -> bool:
    return (config.get("exactly.once.support") or "").strip().lower() == "required"


def _of_keys(file: ConnectorFile, java_class: str, plugins: Plugins) -> Iterator[Finding]:
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


def sides_of(file: ConnectorFile, java_class: str, props: Mapping[str, str], worker: WorkerConfig) -> Sides:
    """The clusters of a mirror's connector, and what it needs there. Raises ConfigError, SecurityError."""

    def located(error: ConfigError, side: Side, kind: Kind | None) -> ConfigError:
        key = f"{side}.cluster.{error.key}"
        return ConfigError(error.message.replace(error.key or "", key, 1), key)

    settings = source_settings({"connector.class": java_class, **props}, worker.props)
    source, target = settings.source_alias, settings.target_alias
    own = {"client.id": "", **worker.props}
    clients = flow_clients(settings.flow, props, own, source=source, target=target, locate=located)
    mirrors = java_class.endswith("MirrorSourceConnector")
    return Sides(
        file.name or settings.flow,
        source,
        target,
        clients.source_admin(),
        clients.target_admin(),
        settings if mirrors else None,
        [NewTopic(settings.map_topic, -1, settings.offsets_topic_replication_factor)] if mirrors else [],
        None,
    )


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
