"""Fields of a resource that mean nothing outside of Kubernetes or here, each with what takes its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from connectors.strimzi.documents import Node


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence about the field at ``path``, in line ``line`` of the file."""

    path: str
    line: int
    text: str

    @classmethod
    def of(cls, node: Node, text: str) -> Notice:
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
_CONNECTORS: Final = ("sourceConnector", "checkpointConnector", "heartbeatConnector")
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
    "mirror": frozenset(_CONNECTORS)
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


def notices(resource: Node) -> Iterator[Notice]:
    """Those of a whole resource, in the order of its parts."""
    for name, each in resource.field("metadata").field("annotations").fields():
        if name.startswith("strimzi.io/"):
            yield Notice.of(each, "annotations are read by nobody here; heliograph connectors pauses and restarts")
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
        for name in _CONNECTORS:
            yield from _of(mirror.field(name), "connector", _CONNECTOR)
            yield from _of(mirror.field(name).field("autoRestart"), "autoRestart", {})


def _of_cluster(cluster: Node, kind: str) -> Iterator[Notice]:
    yield from _of(cluster, kind, {})
    tls = cluster.field("tls")
    yield from _of(tls, "tls", {})
    for certificate in tls.field("trustedCertificates").items():
        yield from _of(certificate, "trusted certificate", {})
    yield from _of_authentication(cluster.field("authentication"))


def _of_authentication(authentication: Node) -> Iterator[Notice]:
    kind = authentication.field("type").text() or ""
    if kind not in _AUTHENTICATION:
        return  # it is refused
    without_meaning = _OAUTH_PLACE if kind == "oauth" else {}
    for name, each in authentication.fields():
        if name in without_meaning:
            yield Notice.of(each, without_meaning[name])
        elif name not in _AUTHENTICATION[kind] and name != "type":
            yield Notice.of(each, f"authentication of type {kind} has no such field; it has no effect")
        elif name in _SECRETS:
            yield from (Notice.of(one, _UNKNOWN) for inner, one in each.fields() if inner not in _SECRETS[name])


def _of(node: Node, kind: str, without_meaning: Mapping[str, str]) -> Iterator[Notice]:
    for name, each in node.fields():
        if name in without_meaning:
            yield Notice.of(each, without_meaning[name])
        elif name not in _KNOWN[kind]:
            yield Notice.of(each, _UNKNOWN)
