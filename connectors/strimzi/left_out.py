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
    "metricsConfig": "metrics are always there, for Prometheus: GET /metrics of the worker's REST server",
    "tracing": "there are no traces; metrics and the log say what is done",
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
}
_UNKNOWN: Final = "there is no such field in a KafkaMirrorMaker2; it has no effect"


def notices(resource: Node) -> Iterator[Notice]:
    """Those of a whole resource, in the order of its parts."""
    for name, each in resource.field("metadata").field("annotations").fields():
        if name.startswith("strimzi.io/"):
            yield Notice.of(each, "annotations are read by nobody here; heliograph connectors pauses and restarts")
    spec = resource.field("spec")
    yield from _of(spec, "spec", _SPEC)
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
    authentication = cluster.field("authentication")
    if authentication.field("type").value == "oauth":
        for name, each in authentication.fields():
            if name in _OAUTH_PLACE:
                yield Notice.of(each, _OAUTH_PLACE[name])


def _of(node: Node, kind: str, without_meaning: Mapping[str, str]) -> Iterator[Notice]:
    for name, each in node.fields():
        if name in without_meaning:
            yield Notice.of(each, without_meaning[name])
        elif name not in _KNOWN[kind]:
            yield Notice.of(each, _UNKNOWN)
