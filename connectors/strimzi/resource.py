"""Choice of a Strimzi resource in a file, and its clusters and mirrors in one shape for all API versions.

v1alpha1 and v1beta2 refer to clusters by alias (``connectCluster``, ``clusters``), v1 has them inline (``target``,
``mirrors[].source``). Checks are those of ``KafkaMirrorMaker2Connectors.validateConnectors``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from connect.core.errors import ConfigError
from connectors.strimzi.yaml_nodes import Node

#: MirrorMaker 1, in Strimzi until 0.45.
MIRROR_MAKER_1_KIND: Final = "KafkaMirrorMaker"
KIND: Final = "KafkaMirrorMaker2"
GROUP: Final = "kafka.strimzi.io/"
VERSIONS: Final = ("v1alpha1", "v1beta2", "v1")
#: Kinds of lists that ``kubectl get`` and the API return.
_LISTS: Final = ("List", f"{KIND}List")


@dataclass(frozen=True, slots=True)
class Mirror:
    """One flow into the target: its two clusters, and its own fields."""

    source: Node
    target: Node
    fields: Node

    @property
    def name(self) -> str:
        """``source->target``, by aliases."""
        return f"{self.source.required('alias')}->{self.target.required('alias')}"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource; ``target`` is the cluster that holds the worker's group and topics."""

    node: Node
    name: str
    namespace: str | None
    target: Node
    mirrors: tuple[Mirror, ...]

    @property
    def spec(self) -> Node:
        return self.node.field("spec")


def resources_in(documents: Sequence[Node], file: str) -> list[Node]:
    """Return the resources of a file, also those in lists. Raises ConfigError if there is none."""
    every = list(_unfolded(documents))
    found = [each for each in every if each.field("kind").value == KIND]
    if not found:
        older = next((each for each in every if each.field("kind").value == MIRROR_MAKER_1_KIND), None)
        if older is not None:
            raise older.error(
                f"{MIRROR_MAKER_1_KIND} is MirrorMaker 1. Use kafka-mirror-maker; docs/strimzi.md has its options and "
                "files by the fields of the resource"
            )
        kinds = ", ".join(str(each.field("kind").value) for each in every) or "nothing"
        raise ConfigError(f"holds no {KIND}, but {kinds}", file=file)
    return found


def _unfolded(documents: Sequence[Node]) -> Iterator[Node]:
    for each in documents:
        if each.field("kind").value in _LISTS:
            yield from each.field("items").items()
        else:
            yield each


def chosen(documents: Sequence[Node], name: str | None, file: str) -> Node:
    """Return the only resource of a file, or the one with the name.

    Raises:
        ConfigError: There is none, or several without a name or with the same.
    """
    found = resources_in(documents, file)
    names = [each.field("metadata").required("name") for each in found]
    if name is None and len(found) > 1:
        raise ConfigError(f"holds several resources: {', '.join(names)}. Choose one with --name", file=file)
    wanted = names[0] if name is None else name
    if wanted not in names:
        raise ConfigError(f"holds no {KIND} {wanted}, but {', '.join(names)}", "--name", file)
    if names.count(wanted) > 1:
        raise ConfigError(f"holds several resources named {wanted}. Remove all except one", "--name", file)
    return found[names.index(wanted)]


def resource(node: Node) -> Resource:
    """Return the clusters and mirrors of a resource.

    Raises:
        ConfigError: The version is not known, a cluster or mirror is missing, or they contradict each other.
    """
    version = node.required("apiVersion")
    if version.removeprefix(GROUP) not in VERSIONS or not version.startswith(GROUP):
        known = ", ".join(GROUP + each for each in VERSIONS)
        raise node.field("apiVersion").error(f"apiVersion is '{version}'. Use one of {known}")
    metadata, spec = node.field("metadata"), node.field("spec")
    mirrors = spec.field("mirrors").items()
    if not mirrors:
        raise spec.error("spec.mirrors is missing: nothing would be mirrored")
    shaped = _with_target(spec, mirrors) if "target" in spec else _with_clusters(spec, mirrors)
    target = spec.field("target") if "target" in spec else _by_alias(spec)[spec.required("connectCluster")]
    seen: set[str] = set()
    for mirror in shaped:
        if mirror.name in seen:
            raise mirror.fields.error(f"{mirror.fields.path}: {mirror.name} is mirrored twice. Merge the two mirrors")
        seen.add(mirror.name)
    return Resource(node, metadata.required("name"), metadata.field("namespace").text(), target, tuple(shaped))


def _with_target(spec: Node, mirrors: Sequence[Node]) -> list[Mirror]:
    target = spec.field("target")
    for each in mirrors:
        if "source" not in each:
            raise each.error(f"{each.path}.source is missing: with spec.target each mirror needs its source")
    return [Mirror(each.field("source"), target, each) for each in mirrors]


def _with_clusters(spec: Node, mirrors: Sequence[Node]) -> list[Mirror]:
    clusters, connect = _by_alias(spec), spec.required("connectCluster")
    if connect not in clusters:
        raise spec.field("connectCluster").error(_nowhere("spec.connectCluster", connect))
    shaped = []
    for each in mirrors:
        for name in ("sourceCluster", "targetCluster"):
            if each.required(name) not in clusters:
                alias = each.field(name)
                raise alias.error(_nowhere(alias.path, each.required(name)))
        target = clusters[each.required("targetCluster")]
        servers = target.required("bootstrapServers")
        if target.required("alias") != connect and servers != clusters[connect].required("bootstrapServers"):
            raise each.field("targetCluster").error(
                f"{each.path}.targetCluster is {target.required('alias')}, but spec.connectCluster is {connect}: a "
                "worker writes to the cluster of its internal topics. Use one resource for each target"
            )
        shaped.append(Mirror(clusters[each.required("sourceCluster")], target, each))
    return shaped


def _nowhere(path: str, alias: str) -> str:
    return f"{path} is {alias}, which is not an alias in spec.clusters"


def _by_alias(spec: Node) -> dict[str, Node]:
    clusters = spec.field("clusters").items()
    if not clusters:
        raise spec.error("neither spec.target nor spec.clusters is set. Set one of them")
    return {each.required("alias"): each for each in clusters}
