"""Translate a Strimzi resource to the worker and the connectors that Strimzi's operator would make of it.

The same group, internal topics, names of connectors and keys: a worker started with them takes the place of Strimzi's
pods, or joins them. From ``KafkaConnectConfigurationBuilder`` and ``KafkaMirrorMaker2Connectors`` of the operator 1.2.

``autoRestart`` becomes keys of the connector's config. Fields that mean nothing outside of Kubernetes or here are
listed, each with what takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from connect.core.config.connector_settings import ENABLED, MAX_BACKOFF_MINUTES, MAX_RESTARTS
from connect.core.errors import ConfigError
from connect.core.model import TargetState
from connectors.config.ignored_keys import connector_notices
from connectors.strimzi.resource import Mirror, Resource, resource
from connectors.strimzi.security import (
    DIRECTORY,
    PROVIDER,
    PROVIDER_CLASS,
    SecretKey,
    SecretReferences,
    client_security,
)
from connectors.strimzi.yaml_nodes import Node


def auto_restart(connector: Node) -> dict[str, str]:
    """Return the keys that a connector's field sets. Raises ConfigError for a wrong number."""
    found = connector.field("autoRestart")
    if found.value is None:
        return {}
    keys = {ENABLED: "false" if found.field("enabled").text() == "false" else "true"}
    for name, key, least in (("maxRestarts", MAX_RESTARTS, 0), ("maxBackoffMinutes", MAX_BACKOFF_MINUTES, 1)):
        value = found.field(name).value
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise found.field(name).error(f"{found.path}.{name} should be a number, {least} or more")
        keys[key] = str(value)
    return keys


@dataclass(frozen=True, slots=True)
class IgnoredField:
    """A sentence about the field at ``path``, in line ``line`` of the file."""

    path: str
    line: int
    text: str

    @classmethod
    def of(cls, node: Node, text: str) -> IgnoredField:
        return cls(node.path, node.line, text)


_SPEC: Final = {
    "version": "no image is chosen by it: this program runs, and asks the brokers what they speak",
    "replicas": "one process is one worker: start as many with the same file, they share the work as one group",
    "image": "deploy/ has the files of an image",
    "resources": "limits are those of the service or container that runs this; deploy/ has examples",
    "livenessProbe": "ask GET /health of the worker's REST server",
    "readinessProbe": "ask GET /health of the worker's REST server",
    "jvmOptions": "the JVM here is Spark's: --set spark.driver.memory=2g, --set spark.driver.extraJavaOptions=...",
    "jmxOptions": "there is no JMX: GET /metrics of the worker's REST server has the metrics",
    "logging": "--log-level, and while it runs PUT /admin/loggers/{name}",
    "clientRackInitImage": "there is no init container: see rack",
    "metrics": "metrics are always there, for Prometheus: GET /metrics of the worker's REST server",
    "metricsConfig": "metrics are always there, for Prometheus: GET /metrics of the worker's REST server",
    "tracing": "there are no traces; metrics and the log say what is done",
    "affinity": "it runs on the machine where it is started",
    "tolerations": "it runs on the machine where it is started",
    "template": "labels, volumes and the like are those of the service or container that runs this",
    "externalConfiguration": "give the process the variables and files itself; ${strimzienv:NAME} and "
    "${strimzidir:DIR:FILE} read them",
}
_CONNECTOR: Final = {
    "version": "the connectors are this program's own",
    "listOffsets": "heliograph connectors offsets NAME shows them",
    "alterOffsets": "heliograph connectors offsets NAME --set FILE sets them",
}
_CONNECTOR_FIELDS: Final = ("sourceConnector", "checkpointConnector", "heartbeatConnector")
_OAUTH_PLACE: Final = {
    "tlsTrustedCertificates": "a token endpoint is trusted by the machine's own store, or by the file that the "
    "variable SSL_CERT_FILE of the process names",
    "disableTlsHostnameVerification": "a token endpoint has to be whom its certificate names",
    "enableMetrics": "there are no metrics of logins",
    "grantType": "tokens are got by client credentials",
    "connectTimeoutSeconds": "a token endpoint has ten seconds to answer",
    "readTimeoutSeconds": "a token endpoint has ten seconds to answer",
    "httpRetries": "a token endpoint that does not answer is asked again whenever the connection is tried again",
    "httpRetryPauseMs": "a token endpoint that does not answer is asked again whenever the connection is tried again",
    "maxTokenExpirySeconds": "a token is kept for 80 % of the life that its endpoint tells",
    "accessTokenIsJwt": "nobody looks into a token: its endpoint tells how long it lives",
    "includeAcceptHeader": "a token endpoint is always told that JSON is accepted",
}
#: Which fields there are, of all versions; an asterisk stands for what is taken as it is.
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "spec": frozenset(_SPEC) | {"connectCluster", "clusters", "target", "mirrors", "rack"},
    "cluster": frozenset({"alias", "bootstrapServers", "tls", "authentication", "config"}),
    "target": frozenset(
        {"alias", "bootstrapServers", "tls", "authentication", "config"}
        | {"groupId", "configStorageTopic", "offsetStorageTopic", "statusStorageTopic"}
    ),
    "mirror": frozenset(_CONNECTOR_FIELDS)
    | {"sourceCluster", "targetCluster", "source", "topicsPattern", "topicsExcludePattern", "topicsBlacklistPattern"}
    | {"groupsPattern", "groupsExcludePattern", "groupsBlacklistPattern"},
    "connector": frozenset(_CONNECTOR) | {"tasksMax", "config", "state", "pause", "autoRestart"},
    "autoRestart": frozenset({"enabled", "maxRestarts", "maxBackoffMinutes"}),
    "rack": frozenset({"type", "topologyKey", "envVarName"}),
    "tls": frozenset({"trustedCertificates"}),
    "trusted certificate": frozenset({"secretName", "certificate", "pattern"}),
}
#: Fields of each type of authentication beside ``type``.
_PASSWORD: Final = frozenset({"username", "passwordSecret"})
_AUTHENTICATION: Final[Mapping[str, frozenset[str]]] = {
    "tls": frozenset({"certificateAndKey"}),
    "scram-sha-256": _PASSWORD,
    "scram-sha-512": _PASSWORD,
    "plain": _PASSWORD,
    "oauth": _PASSWORD
    | {"clientId", "clientSecret", "tokenEndpointUri", "scope", "audience", "saslExtensions"}
    | {"accessToken", "accessTokenLocation", "refreshToken"}
    | {"clientAssertion", "clientAssertionLocation", "clientAssertionType"},
    "custom": frozenset({"sasl", "config"}),
}
_SECRET: Final = frozenset({"secretName", "key"})
#: Fields of authentication that name a secret.
_SECRETS: Final[Mapping[str, frozenset[str]]] = {
    "certificateAndKey": _SECRET | {"certificate"},
    "passwordSecret": frozenset({"secretName", "password"}),
    **dict.fromkeys(("clientSecret", "accessToken", "refreshToken", "clientAssertion"), _SECRET),
}
_UNKNOWN: Final = "there is no such field in a KafkaMirrorMaker2; it has no effect"


def notices(resource: Node) -> Iterator[IgnoredField]:
    """Those of a whole resource, in the order of its parts."""
    for name, each in resource.field("metadata").field("annotations").fields():
        if name.startswith("strimzi.io/"):
            yield IgnoredField.of(
                each, "annotations are read by nobody here; heliograph connectors pauses and restarts"
            )
    spec = resource.field("spec")
    yield from _of(spec, "spec", _SPEC)
    yield from _of(spec.field("rack"), "rack", {})
    for cluster in spec.field("clusters").items():
        yield from _of_cluster(cluster, "cluster")
    if "target" in spec:
        yield from _of_cluster(spec.field("target"), "target")
    for mirror in spec.field("mirrors").items():
        yield from _of(mirror, "mirror", {})
        if "source" in mirror:
            yield from _of_cluster(mirror.field("source"), "cluster")
        for name in _CONNECTOR_FIELDS:
            yield from _of(mirror.field(name), "connector", _CONNECTOR)
            yield from _of(mirror.field(name).field("autoRestart"), "autoRestart", {})


def _of_cluster(cluster: Node, kind: str) -> Iterator[IgnoredField]:
    yield from _of(cluster, kind, {})
    tls = cluster.field("tls")
    yield from _of(tls, "tls", {})
    for certificate in tls.field("trustedCertificates").items():
        yield from _of(certificate, "trusted certificate", {})
    yield from _of_authentication(cluster.field("authentication"))


def _of_authentication(authentication: Node) -> Iterator[IgnoredField]:
    kind = authentication.field("type").text() or ""
    if kind not in _AUTHENTICATION:
        return  # it is refused
    without_meaning = _OAUTH_PLACE if kind == "oauth" else {}
    for name, each in authentication.fields():
        if name in without_meaning:
            yield IgnoredField.of(each, without_meaning[name])
        elif name not in _AUTHENTICATION[kind] and name != "type":
            yield IgnoredField.of(each, f"authentication of type {kind} has no such field; it has no effect")
        elif name in _SECRETS:
            yield from (IgnoredField.of(one, _UNKNOWN) for inner, one in each.fields() if inner not in _SECRETS[name])


def _of(node: Node, kind: str, without_meaning: Mapping[str, str]) -> Iterator[IgnoredField]:
    for name, each in node.fields():
        if name in without_meaning:
            yield IgnoredField.of(each, without_meaning[name])
        elif name not in _KNOWN[kind]:
            yield IgnoredField.of(each, _UNKNOWN)


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
class WantedConnector:
    """A connector as the resource wants it, and its field there; ``state`` is None where it says nothing."""

    name: str
    config: Mapping[str, str]
    state: TargetState | None
    node: Node = field(repr=False)


@dataclass(frozen=True)
class TranslatedResource:
    """What a resource says: a worker's properties, its connectors, notices on fields, secrets that are not there.

    ``variables`` are those of the environment that it refers to, each with the field that does.
    """

    name: str
    worker: Mapping[str, str]
    connectors: tuple[WantedConnector, ...]
    notices: tuple[IgnoredField, ...]
    missing: tuple[SecretKey, ...] = field(repr=False)
    variables: tuple[tuple[str, Node], ...] = field(repr=False)
    target: Node = field(repr=False)

    def with_settings(self, settings: Mapping[str, str]) -> TranslatedResource:
        """The same with other settings of the worker above its own."""
        return replace(self, worker={**self.worker, **settings})

    def located(self, error: ConfigError, wanted: WantedConnector | None = None) -> ConfigError:
        """The same error with the line of its key, in the connector ``wanted`` or the worker's settings."""
        node = self.target if wanted is None else wanted.node
        path = f"{node.path}.config.{error.key}"
        line = node.lines.get(path, node.line)
        return ConfigError(error.message, error.key, node.file, line)


def translate(node: Node, secrets_dir: str | None, secret_keys: Mapping[str, frozenset[str]]) -> TranslatedResource:
    """What the resource ``node`` says; ``secret_keys`` are those in ``secrets_dir``, by the names of their secrets.

    Raises:
        ConfigError: A field is missing or wrong; its line is named.
    """
    found = resource(node)
    secrets = SecretReferences(found.namespace, secret_keys)
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
    return TranslatedResource(
        found.name, worker, connectors, tuple(said), tuple(secrets.missing()), variables, found.target
    )


def _texts(found: Resource) -> list[Node]:
    """What may hold references: all that is said of the worker's cluster and of the mirrors, each field once."""
    parts = [found.target]
    for mirror in found.mirrors:
        parts += [mirror.target, mirror.source, mirror.fields]
    return list({text.path: text for part in parts for text in part.texts()}.values())


def _worker(found: Resource, secrets: SecretReferences, said: list[IgnoredField]) -> dict[str, str]:
    target = found.target
    with_target = "target" in found.spec
    forbidden = (*_FORBIDDEN, *_GROUP) if with_target else _FORBIDDEN
    config: dict[str, str] = {}
    for key, each in target.field("config").fields():
        if key.lower().startswith(forbidden) and not key.lower().startswith(_ALLOWED):
            said.append(
                IgnoredField.of(each, "Strimzi sets this itself, and leaves it out of a worker's settings; --set does")
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
        said.append(IgnoredField.of(rack, f"has no effect here: {word}"))
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


def _connectors(
    found: Resource, mirror: Mirror, secrets: SecretReferences, said: list[IgnoredField]
) -> Iterator[WantedConnector]:
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
        yield WantedConnector(full, config, _state(each), each)


def _cluster(cluster: Node, prefix: str, secrets: SecretReferences) -> dict[str, str]:
    props = {
        "alias": cluster.required("alias"),
        "bootstrap.servers": cluster.required("bootstrapServers"),
        **client_security(cluster, secrets),
        **cluster.field("config").settings(),
    }
    return {prefix + key: value for key, value in props.items()}


def _own_settings(connector: Node, said: list[IgnoredField]) -> dict[str, str]:
    config = connector.field("config")
    for key, each in config.fields():
        if key in _NOT_IN_CONFIG:
            said.append(IgnoredField.of(each, "Strimzi sets this itself, and leaves it out of a connector's config"))
    own = {key: value for key, value in config.settings().items() if key not in _NOT_IN_CONFIG}
    said += [IgnoredField.of(config.field(one.key), one.text) for one in connector_notices(own)]
    return own


def _patterns(mirror: Node, said: list[IgnoredField]) -> dict[str, str]:
    found = {}
    for key, name, old in _PATTERNS:
        text = mirror.field(name).text()
        if old is not None and (old_text := mirror.field(old).text()) is not None:
            if text is None:
                text = old_text
            else:
                said.append(IgnoredField.of(mirror.field(old), f"{name} is there too, and wins"))
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
