"""Translation of a Strimzi resource to the worker and connectors that Strimzi's operator would create.

Group, internal topics, names of connectors and keys are the same, so the worker replaces Strimzi's pods, or joins them.
The rules are those of ``KafkaConnectConfigurationBuilder`` and ``KafkaMirrorMaker2Connectors`` of the operator 1.2.
Each field without effect has a notice with its replacement.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from connect.core.config.connector_settings import ENABLED, MAX_BACKOFF_MINUTES, MAX_RESTARTS
from connect.core.config.security_settings import SECURITY
from connect.core.errors import ConfigError
from connect.core.model import TargetState
from connectors.config.ignored_keys import connector_notices
from connectors.strimzi.resource import Mirror, Node, Resource, resource
from connectors.strimzi.security import PROVIDER, SecretKey, SecretReferences, client_security, mounted_provider


def auto_restart(connector: Node) -> dict[str, str]:
    """Return the keys that a connector's ``autoRestart`` sets. Raises ConfigError for an invalid number."""
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
    """A notice about the field at ``path`` in a line of the file."""

    path: str
    line: int
    text: str

    @classmethod
    def of(cls, node: Node, text: str) -> IgnoredField:
        return cls(node.path, node.line, text)


_SPEC: Final = {
    "version": "has no effect: there is no image to choose, and brokers report their version",
    "replicas": "has no effect: one process is one worker. Start several with the same file to share the work",
    "image": "has no effect: deploy/ has an image",
    "resources": "has no effect: set limits for the service or container; deploy/ has examples",
    "livenessProbe": "has no effect: use GET /health of the worker's REST server",
    "readinessProbe": "has no effect: use GET /health of the worker's REST server",
    "jvmOptions": "has no effect: use --set spark.driver.memory=2g, --set spark.driver.extraJavaOptions=...",
    "jmxOptions": "has no effect: use GET /metrics of the worker's REST server",
    "logging": "has no effect: use --log-level, or PUT /admin/loggers/{name} while it runs",
    "clientRackInitImage": "has no effect: there is no init container; see rack",
    "metrics": "has no effect: Prometheus metrics are at GET /metrics of the worker's REST server",
    "metricsConfig": "has no effect: Prometheus metrics are at GET /metrics of the worker's REST server",
    "tracing": "has no effect: set the OTEL_* variables, such as OTEL_EXPORTER_OTLP_ENDPOINT, to send traces",
    "affinity": "has no effect: it runs on the machine where it is started",
    "tolerations": "has no effect: it runs on the machine where it is started",
    "template": "has no effect: set labels and volumes for the service or container",
    "externalConfiguration": "has no effect: set variables and mount files for the process; ${strimzienv:NAME} and "
    "${strimzidir:DIR:FILE} read them",
}
_CONNECTOR: Final = {
    "version": "has no effect: the connectors are built in",
    "listOffsets": "has no effect: use heliograph connectors offsets NAME",
    "alterOffsets": "has no effect: use heliograph connectors offsets NAME --set FILE",
}
_CONNECTOR_FIELDS: Final = ("sourceConnector", "checkpointConnector", "heartbeatConnector")
_OAUTH_PLACE: Final = {
    "tlsTrustedCertificates": "has no effect: token endpoints are verified with the machine's trust store, or the file "
    "in the environment variable SSL_CERT_FILE",
    "disableTlsHostnameVerification": "has no effect: the host name of a token endpoint is always verified",
    "enableMetrics": "has no effect: there are no metrics of logins",
    "grantType": "has no effect: tokens are requested with client credentials",
    "connectTimeoutSeconds": "has no effect: the timeout of a token endpoint is ten seconds",
    "readTimeoutSeconds": "has no effect: the timeout of a token endpoint is ten seconds",
    "httpRetries": "has no effect: a token request is retried with each connection attempt",
    "httpRetryPauseMs": "has no effect: a token request is retried with each connection attempt",
    "maxTokenExpirySeconds": "has no effect: a token is used for 80 % of the lifetime that its endpoint reports",
    "accessTokenIsJwt": "has no effect: tokens are not parsed; their lifetime is reported by the endpoint",
    "includeAcceptHeader": "has no effect: the Accept header is always sent",
}
#: The fields of all versions.
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
#: Fields of each type of authentication, without ``type``.
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
_UNKNOWN: Final = "has no effect: a KafkaMirrorMaker2 has no such field"


def notices(resource: Node) -> Iterator[IgnoredField]:
    """Yield the notices about a resource, in the order of its parts."""
    for name, each in resource.field("metadata").field("annotations").fields():
        if name.startswith("strimzi.io/"):
            yield IgnoredField.of(each, "has no effect: use heliograph connectors to pause and restart connectors")
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
        return  # because it is refused elsewhere
    without_meaning = _OAUTH_PLACE if kind == "oauth" else {}
    for name, each in authentication.fields():
        if name in without_meaning:
            yield IgnoredField.of(each, without_meaning[name])
        elif name not in _AUTHENTICATION[kind] and name != "type":
            yield IgnoredField.of(each, f"has no effect: authentication of type {kind} has no such field")
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
#: ``KafkaMirrorMaker2Configuration.DEFAULTS`` for resources without ``target``.
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
#: ``FORBIDDEN_PREFIXES`` of a worker's ``config``, which the operator leaves out.
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
    """A connector of the resource, its mirror, and its field; ``state`` is None if the resource does not set it."""

    name: str
    config: Mapping[str, str]
    state: TargetState | None
    mirror: Mirror = field(repr=False)
    node: Node = field(repr=False)


@dataclass(frozen=True)
class TranslatedResource:
    """A resource as a worker's properties and its connectors, with notices on fields and missing secrets. ``variables``
    are the environment variables that it refers to, each with the field."""

    name: str
    worker: Mapping[str, str]
    connectors: tuple[WantedConnector, ...]
    notices: tuple[IgnoredField, ...]
    missing: tuple[SecretKey, ...] = field(repr=False)
    variables: tuple[tuple[str, Node], ...] = field(repr=False)
    target: Node = field(repr=False)

    def with_settings(self, settings: Mapping[str, str]) -> TranslatedResource:
        """Return the same with worker settings that override its own."""
        return replace(self, worker={**self.worker, **settings})

    def start_notices(self, environment: Collection[str]) -> Iterator[IgnoredField]:
        """Yield what a start warns of: the notices, and variables that the ``environment`` lacks."""
        yield from self.notices
        for name, node in self.variables:
            if name not in environment:
                text = f"environment variable {name} is not set, so the reference to it is not resolved, as in Java"
                yield IgnoredField(node.path, node.line, text)

    def located(self, error: ConfigError, wanted: WantedConnector | None = None) -> ConfigError:
        """Return the error with the line of its key: in the connector ``wanted`` or the worker's settings, or in the
        cluster whose clients have it."""
        node, key = self.target if wanted is None else wanted.node, error.key or ""
        line = node.lines.get(f"{node.path}.config.{key}", node.line)
        if key in SECURITY.settings:
            line = _line_in(self.target, key)
        elif wanted is not None:
            sides = (("source.cluster.", wanted.mirror.source), ("target.cluster.", wanted.mirror.target))
            for prefix, cluster in sides:
                if key.startswith(prefix):
                    line = _line_in(cluster, key.removeprefix(prefix))
        return ConfigError(error.message, error.key, node.file, line)


def _line_in(cluster: Node, key: str) -> int:
    """Return the line of a client's key in a cluster, or of the field that it is derived from."""
    written = (f"{cluster.path}.{part}.{key}" for part in ("config", "authentication.config"))
    derived = cluster.field("tls" if key.startswith("ssl.truststore") else "authentication")
    return next((cluster.lines[place] for place in written if place in cluster.lines), derived.line)


def translate(node: Node, secrets_dir: str | None, secret_keys: Mapping[str, frozenset[str]]) -> TranslatedResource:
    """Translate the resource ``node``; ``secret_keys`` are the keys in ``secrets_dir`` by secret. Raises ConfigError if
    a field is missing or wrong; the error has its line."""
    found = resource(node)
    secrets = SecretReferences(found.namespace, secret_keys)
    said = list(notices(node))
    worker = _worker(found, secrets, said)
    connectors = tuple(wanted for mirror in found.mirrors for wanted in _connectors(found, mirror, secrets, said))
    if not connectors:
        raise found.spec.field("mirrors").error(f"no mirror has a connector. Add one of {', '.join(_CONNECTORS)}")
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
    """Return the texts that may hold references: those of the worker's cluster and the mirrors, each field once."""
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
            said.append(IgnoredField.of(each, "is ignored, as by Strimzi, which sets it itself in a worker. Use --set"))
        else:
            config[key] = each.text() or ""
    group = {key: target.required(name) for key, name in _TARGET_FIELDS.items()} if with_target else _GROUP
    props = {"bootstrap.servers": target.required("bootstrapServers"), **group, **_CONVERTERS, **config}
    security = client_security(target, secrets)
    props |= {f"{client}{key}": value for client in _CLIENTS for key, value in security.items()}
    rack = found.spec.field("rack")
    if rack.value is not None and not _rack(rack):
        word = "labels of a node exist only in Kubernetes. Set consumer.client.rack in a sourceConnector's config"
        said.append(IgnoredField.of(rack, f"has no effect: {word}"))
    return props


def _rack(rack: Node) -> dict[str, str]:
    """Return the rack from an environment variable; labels of a node exist only in Kubernetes."""
    if rack.field("type").text() != "environment-variable":
        return {}
    return {_RACK: f"${{strimzienv:{rack.required('envVarName')}}}"}


def _providers(own: str | None, secrets_dir: str | None) -> dict[str, str]:
    """Return the providers that the operator declares; that of secrets only if there is a folder of them."""
    names = ["strimzienv", "strimzifile", "strimzidir"]
    props = {
        "config.providers.strimzienv.class": f"{_JAVA_PROVIDERS}EnvVarConfigProvider",
        "config.providers.strimzienv.param.allowlist.pattern": ".*",
        "config.providers.strimzifile.class": f"{_JAVA_PROVIDERS}FileConfigProvider",
        "config.providers.strimzidir.class": f"{_JAVA_PROVIDERS}DirectoryConfigProvider",
    }
    if secrets_dir is not None:
        names.append(PROVIDER)
        props |= mounted_provider(secrets_dir)
    return {"config.providers": ",".join([own, *names] if own else names), **props}


def _connectors(
    found: Resource, mirror: Mirror, secrets: SecretReferences, said: list[IgnoredField]
) -> Iterator[WantedConnector]:
    for name, cls in _CONNECTORS.items():
        if name not in mirror.fields:
            continue
        each = mirror.fields.field(name)
        full = f"{mirror.name}.{cls}"
        config = {"name": full, "connector.class": f"org.apache.kafka.connect.mirror.{cls}"}
        if "tasksMax" in each:
            config["tasks.max"] = each.required("tasksMax")
        # In the operator's order; later ones win.
        config |= _cluster(mirror.target, "target.cluster.", secrets)
        config |= _cluster(mirror.source, "source.cluster.", secrets)
        config |= _own_settings(each, said)
        config |= _patterns(mirror.fields, said if name == "sourceConnector" else [])
        config |= _rack(found.spec.field("rack"))
        config |= auto_restart(each)
        yield WantedConnector(full, config, _state(each), mirror, each)


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
            said.append(IgnoredField.of(each, "is ignored, as by Strimzi, which sets it itself in a connector"))
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
                said.append(IgnoredField.of(mirror.field(old), f"has no effect: {name} is set too, and wins"))
        if text is not None:
            found[key] = text
    return found


def _state(connector: Node) -> TargetState | None:
    state = connector.field("state").text()
    if state is None:
        return TargetState.PAUSED if connector.field("pause").text() == "true" else None
    if state not in _STATES:
        said = f"{connector.path}.state is '{state}'. Use one of {', '.join(_STATES)}"
        raise ConfigError(said, None, connector.file, connector.field("state").line)
    return _STATES[state]
