"""A resource as the worker and the connectors that Strimzi's operator would make of it.

The same group, internal topics, names of connectors and keys: a worker started with them takes the place of Strimzi's
pods, or joins them. From ``KafkaConnectConfigurationBuilder`` and ``KafkaMirrorMaker2Connectors`` of the operator 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from connect.core.errors import ConfigError
from connect.core.model import TargetState
from connectors.notices import connector_notices
from connectors.strimzi.auto_restart import auto_restart
from connectors.strimzi.documents import Node
from connectors.strimzi.left_out import Notice, notices
from connectors.strimzi.resource import Mirror, Resource, resource
from connectors.strimzi.secrets import DIRECTORY, PROVIDER, PROVIDER_CLASS, SecretKey, Secrets
from connectors.strimzi.security import client_security

_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_JAVA_PROVIDERS: Final = "org.apache.kafka.common.config.provider."
#: ``KafkaMirrorMaker2Configuration.DEFAULTS``; the first four for resources without ``target``.
_GROUP: Final = {
    "group.id": "mirrormaker2-cluster",
    "config.storage.topic": "mirrormaker2-cluster-configs",
    "offset.storage.topic": "mirrormaker2-cluster-offsets",
    "status.storage.topic": "mirrormaker2-cluster-status",
}
_CONVERTERS: Final = dict.fromkeys(("key.converter", "value.converter", "header.converter"), _BYTES)
_TARGET_FIELDS: Final = {
    "group.id": "groupId",
    "config.storage.topic": "configStorageTopic",
    "offset.storage.topic": "offsetStorageTopic",
    "status.storage.topic": "statusStorageTopic",
}
#: ``FORBIDDEN_PREFIXES`` of a worker's ``config``: the operator leaves these out.
_FORBIDDEN: Final = (
    *("ssl.", "sasl.", "security.", "listeners", "plugin.path", "rest.", "bootstrap.servers"),
    *("consumer.interceptor.classes", "producer.interceptor.classes"),
)
_ALLOWED: Final = (
    *("ssl.endpoint.identification.algorithm", "ssl.cipher.suites", "ssl.protocol", "ssl.enabled.protocols"),
)
_CLIENTS: Final = ("", "producer.", "consumer.", "admin.")
_CONNECTORS: Final = {
    "sourceConnector": "MirrorSourceConnector",
    "checkpointConnector": "MirrorCheckpointConnector",
    "heartbeatConnector": "MirrorHeartbeatConnector",
}
_NOT_IN_CONFIG: Final = ("name", "connector.class", "tasks.max", "connector.plugin.version")
_PATTERNS: Final = (
    ("topics", "topicsPattern", None),
    ("topics.exclude", "topicsExcludePattern", "topicsBlacklistPattern"),
    ("groups", "groupsPattern", None),
    ("groups.exclude", "groupsExcludePattern", "groupsBlacklistPattern"),
)
_STATES: Final = {"running": TargetState.STARTED, "paused": TargetState.PAUSED, "stopped": TargetState.STOPPED}
_RACK: Final = "consumer.client.rack"
_VARIABLE: Final = re.compile(r"\$\{strimzienv:([^}:]*)\}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A connector as the resource wants it, and its field there; ``state`` is None where it says nothing."""

    name: str
    config: Mapping[str, str]
    state: TargetState | None
    node: Node = field(repr=False)


@dataclass(frozen=True)
class Translation:
    """What a resource says: a worker's properties, its connectors, notices on fields, secrets that are not there.

    ``variables`` are those of the environment that it refers to, each with the field that does.
    """

    name: str
    worker: Mapping[str, str]
    connectors: tuple[Wanted, ...]
    notices: tuple[Notice, ...]
    missing: tuple[SecretKey, ...] = field(repr=False)
    variables: tuple[tuple[str, Node], ...] = field(repr=False)
    target: Node = field(repr=False)

    def with_settings(self, settings: Mapping[str, str]) -> Translation:
        """The same with other settings of the worker above its own."""
        return replace(self, worker={**self.worker, **settings})

    def located(self, error: ConfigError, wanted: Wanted | None = None) -> ConfigError:
        """The same error with the line of its key, in the connector ``wanted`` or the worker's settings."""
        node = self.target if wanted is None else wanted.node
        path = f"{node.path}.config.{error.key}"
        line = node.lines.get(path, node.line)
        return ConfigError(error.message, error.key, node.file, line)


def translate(node: Node, secrets_dir: str | None, secret_keys: Mapping[str, frozenset[str]]) -> Translation:
    """What the resource ``node`` says; ``secret_keys`` are those in ``secrets_dir``, by the names of their secrets.

    Raises:
        ConfigError: A field is missing or wrong; its line is named.
    """
    found = resource(node)
    secrets = Secrets(found.namespace, secret_keys)
    said = list(notices(node))
    worker = _worker(found, secrets, said)
    connectors = tuple(wanted for mirror in found.mirrors for wanted in _connectors(found, mirror, secrets, said))
    if not connectors:
        raise found.spec.field("mirrors").error(f"no mirror has one of {', '.join(_CONNECTORS)}: nothing would run")
    worker |= _providers(worker.get("config.providers"), secrets_dir)
    said.sort(key=lambda notice: notice.line)
    texts = _texts(found)
    for text in texts:
        secrets.written(text)
    variables = tuple((name, text) for text in texts for name in _VARIABLE.findall(text.value))
    return Translation(found.name, worker, connectors, tuple(said), tuple(secrets.missing()), variables, found.target)


def _texts(found: Resource) -> list[Node]:
    """What may hold references: all that is said of the worker's cluster and of the mirrors, each field once."""
    parts = [found.target]
    for mirror in found.mirrors:
        parts += [mirror.target, mirror.source, mirror.fields]
    return list({text.path: text for part in parts for text in part.texts()}.values())


def _worker(found: Resource, secrets: Secrets, said: list[Notice]) -> dict[str, str]:
    target = found.target
    with_target = "target" in found.spec
    forbidden = (*_FORBIDDEN, *_GROUP) if with_target else _FORBIDDEN
    config: dict[str, str] = {}
    for key, each in target.field("config").fields():
        if key.lower().startswith(forbidden) and not key.lower().startswith(_ALLOWED):
            said.append(
                Notice.of(each, "Strimzi sets this itself, and leaves it out of a worker's settings; --set does")
            )
        else:
            config[key] = each.text() or ""
    group = {key: target.required(name) for key, name in _TARGET_FIELDS.items()} if with_target else _GROUP
    props = {"bootstrap.servers": target.required("bootstrapServers"), **group, **_CONVERTERS, **config}
    security = client_security(target, secrets)
    props |= {f"{client}{key}": value for client in _CLIENTS for key, value in security.items()}
    rack = found.spec.field("rack")
    if rack.value is not None and not _rack(rack):
        word = "labels of a node are known to Kubernetes alone; consumer.client.rack of a sourceConnector's config does"
        said.append(Notice.of(rack, f"has no effect here: {word}"))
    return props | _rack(rack)


def _rack(rack: Node) -> dict[str, str]:
    """By the name of an environment variable; labels of a node are known to Kubernetes alone."""
    if rack.field("type").text() != "environment-variable":
        return {}
    return {_RACK: f"${{strimzienv:{rack.required('envVarName')}}}"}


def _providers(own: str | None, secrets_dir: str | None) -> dict[str, str]:
    """The providers that the operator declares, secrets as files among them where there is a folder of them."""
    names = ["strimzienv", "strimzifile", "strimzidir"]
    props = {
        "config.providers.strimzienv.class": f"{_JAVA_PROVIDERS}EnvVarConfigProvider",
        "config.providers.strimzienv.param.allowlist.pattern": ".*",
        "config.providers.strimzifile.class": f"{_JAVA_PROVIDERS}FileConfigProvider",
        "config.providers.strimzidir.class": f"{_JAVA_PROVIDERS}DirectoryConfigProvider",
    }
    if secrets_dir is not None:
        names.append(PROVIDER)
        props[f"config.providers.{PROVIDER}.class"] = PROVIDER_CLASS
        props[f"config.providers.{PROVIDER}.param.{DIRECTORY}"] = secrets_dir
    return {"config.providers": ",".join([own, *names] if own else names), **props}


def _connectors(found: Resource, mirror: Mirror, secrets: Secrets, said: list[Notice]) -> Iterator[Wanted]:
    for name, cls in _CONNECTORS.items():
        if name not in mirror.fields.mapping() or mirror.fields.field(name).value is None:
            continue
        each = mirror.fields.field(name)
        full = f"{mirror.name}.{cls}"
        config = {"name": full, "connector.class": f"org.apache.kafka.connect.mirror.{cls}"}
        if "tasksMax" in each:
            config["tasks.max"] = each.required("tasksMax")
        # In the operator's order: what comes later wins.
        config |= _cluster(mirror.target, "target.cluster.", secrets)
        config |= _cluster(mirror.source, "source.cluster.", secrets)
        config |= _own_settings(each, said)
        config |= _patterns(mirror.fields, said if name == "sourceConnector" else [])
        config |= _rack(found.spec.field("rack"))
        config |= auto_restart(each)
        yield Wanted(full, config, _state(each), each)


def _cluster(cluster: Node, prefix: str, secrets: Secrets) -> dict[str, str]:
    props = {
        "alias": cluster.required("alias"),
        "bootstrap.servers": cluster.required("bootstrapServers"),
        **client_security(cluster, secrets),
        **cluster.field("config").settings(),
    }
    return {prefix + key: value for key, value in props.items()}


def _own_settings(connector: Node, said: list[Notice]) -> dict[str, str]:
    config = connector.field("config")
    for key, each in config.fields():
        if key in _NOT_IN_CONFIG:
            said.append(Notice.of(each, "Strimzi sets this itself, and leaves it out of a connector's config"))
    own = {key: value for key, value in config.settings().items() if key not in _NOT_IN_CONFIG}
    said += [Notice.of(config.field(one.key), one.text) for one in connector_notices(own)]
    return own


def _patterns(mirror: Node, said: list[Notice]) -> dict[str, str]:
    found = {}
    for key, name, old in _PATTERNS:
        text = mirror.field(name).text()
        if old is not None and (old_text := mirror.field(old).text()) is not None:
            if text is None:
                text = old_text
            else:
                said.append(Notice.of(mirror.field(old), f"{name} is there too, and wins"))
        if text is not None:
            found[key] = text
    return found


def _state(connector: Node) -> TargetState | None:
    state = connector.field("state").text()
    if state is None:
        return TargetState.PAUSED if connector.field("pause").text() == "true" else None
    if state not in _STATES:
        known = ", ".join(_STATES)
        raise ConfigError(
            f"{connector.path}.state is '{state}'; it can be {known}",
            None,
            connector.file,
            connector.field("state").line,
        )
    return _STATES[state]
