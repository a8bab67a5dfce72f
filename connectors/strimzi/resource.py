"""The resources of a YAML file: read with the line of every field, chosen by name, in one shape for all API versions.

YAML is read by the rules of go-yaml v2 (``resolve.go`` of ``sigs.k8s.io/yaml``): no dates, no numbers of base 60.
v1alpha1 and v1beta2 refer to clusters by alias (``connectCluster``, ``clusters``), v1 has them inline (``target``,
``mirrors[].source``). Checks are those of ``KafkaMirrorMaker2Connectors.validateConnectors``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any, Final

import yaml
from yaml.composer import ComposerError

from connect.core.errors import ConfigError

#: MirrorMaker 1, in Strimzi until 0.45.
_MIRROR_MAKER_1_KIND: Final = "KafkaMirrorMaker"
_KIND: Final = "KafkaMirrorMaker2"
_GROUP: Final = "kafka.strimzi.io/"
_VERSIONS: Final = ("v1alpha1", "v1beta2", "v1")
#: Kinds of lists that ``kubectl get`` and the API return.
_LISTS: Final = ("List", f"{_KIND}List")
#: Deeper than any resource; limits recursion.
_MAX_DEPTH: Final = 100
#: JSON writes larger numbers with an exponent, smaller ones without a fraction as integers.
_WITH_EXPONENT: Final = 1e21
#: Python converts this number of digits under any limit; no number in Go has as many.
_MAX_DIGITS: Final = 640
#: Also capitalized, or in capitals.
_WORDS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("y", "yes", "true", "on"), True),
    **dict.fromkeys(("n", "no", "false", "off"), False),
    **dict.fromkeys(("", "~", "null"), None),
}
_INTEGER: Final = re.compile(r"[-+]?(0[bB][01]+|0[oO][0-7]+|0[xX][0-9a-fA-F]+|(?P<octal>0[0-7]+)|0|[1-9][0-9]*)")
_DECIMAL: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Node:
    """A field of a document; ``path`` is like ``spec.mirrors[0].topicsPattern``. ``value`` is plain data: mappings,
    lists, text, numbers, booleans, None."""

    value: Any = field(repr=False)
    path: str
    file: str
    lines: Mapping[str, int] = field(repr=False)

    @property
    def line(self) -> int:
        """Its line, counted from 1, or that of its parent."""
        path = self.path
        while path not in self.lines and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)

    def error(self, message: str) -> ConfigError:
        return ConfigError(message, self.path or None, self.file, self.line)

    def __contains__(self, name: str) -> bool:
        return self.value is not None and self.mapping().get(name) is not None

    def mapping(self) -> Mapping[str, Any]:
        """Return the fields; empty if there is no value. Raises ConfigError if it is not a mapping."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error(f"{self.path or 'the document'} must be a mapping of fields")
        return self.value

    def field(self, name: str) -> Node:
        """Return one field; its value is None if it does not exist."""
        return Node(self.mapping().get(name), f"{self.path}.{name}" if self.path else name, self.file, self.lines)

    def fields(self) -> Iterator[tuple[str, Node]]:
        """Yield the fields that are set, in the file's order."""
        for name, value in self.mapping().items():
            if value is not None:
                yield name, self.field(name)

    def items(self) -> list[Node]:
        """Return the entries of a list; empty if there is no value. Raises ConfigError if it is not a list."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.error(f"{self.path} must be a list")
        return [Node(each, f"{self.path}[{at}]", self.file, self.lines) for at, each in enumerate(self.value)]

    def texts(self) -> Iterator[Node]:
        """Yield every text in it, or itself."""
        if isinstance(self.value, str):
            yield self
        elif isinstance(self.value, list):
            for each in self.items():
                yield from each.texts()
        elif isinstance(self.value, dict):
            for _, each in self.fields():
                yield from each.texts()

    def text(self) -> str | None:
        """Return a scalar as Java's clients get it, or None. Raises ConfigError if it is not a scalar."""
        if self.value is None:
            return None
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if not isinstance(self.value, (str, int, float)):
            raise self.error(f"{self.path} must be text")
        if isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < _WITH_EXPONENT:
            return str(int(self.value))
        return str(self.value)

    def required(self, name: str) -> str:
        """Return the text of a required field. Raises ConfigError if it is missing."""
        found = self.field(name)
        if not (text := found.text()):
            raise found.error(f"{found.path} is missing")
        return text

    def settings(self) -> dict[str, str]:
        """Return a mapping of keys to scalars, such as ``config``."""
        return {name: each.text() or "" for name, each in self.fields()}


def read_documents(text: str, file: str) -> list[Node]:
    """Return the documents of a text that are not empty. Raises ConfigError if it is not plain YAML."""
    found = []
    try:
        for root in yaml.compose_all(text, Loader=_Loader):
            lines: dict[str, int] = {}
            if (value := _read(root, "", file, lines, 1)) is not None:
                found.append(Node(value, "", file, lines))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(f"this is not YAML: {error.problem}", None, file, line) from None
    except yaml.YAMLError:
        raise ConfigError("this is not YAML: it has characters that are not allowed", file=file) from None
    except (ValueError, OverflowError):
        raise ConfigError("this is not YAML: an escape is not a valid character", file=file) from None
    except RecursionError:
        raise _too_deep(file, None) from None
    return found


class _Loader(yaml.BaseLoader):
    """A loader without tags and aliases, because resources have none and aliases can make a small text very large."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise ComposerError(None, None, "aliases and tags are not supported. Write the value", event.start_mark)
        return super().compose_node(parent, index)


def _read(node: yaml.Node, path: str, file: str, lines: dict[str, int], depth: int) -> Any:
    """Return the value of a node, and store the line of every field."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, path, file)
    if depth > _MAX_DEPTH:
        raise _too_deep(file, line)
    if isinstance(node, yaml.SequenceNode):
        return [_read(each, f"{path}[{at}]", file, lines, depth + 1) for at, each in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key, each in node.value:
        line = key.start_mark.line + 1
        name = _scalar(key, path, file) if isinstance(key, yaml.ScalarNode) else None
        if name is None or (name == "<<" and key.style is None):
            raise ConfigError("a key must be text", path or None, file, line)
        # As in JSON, a key such as 1 or true is text.
        name = name if isinstance(name, str) else json.dumps(name)
        below = f"{path}.{name}" if path else name
        if name in found:
            raise ConfigError(f"{below} is set twice", below, file, line)
        lines.setdefault(below, line)
        found[name] = _read(each, below, file, lines, depth + 1)
    return found


def _scalar(node: yaml.ScalarNode, path: str, file: str) -> Any:
    text = str(node.value)
    if node.style is None:
        return _resolved(text)
    if any("\ud800" <= char <= "\udfff" for char in text):
        line = node.start_mark.line + 1
        raise ConfigError("this is not YAML: an escape is half a character", path or None, file, line)
    return text


def _resolved(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    lower = text.lower()
    if lower in _WORDS and text in (lower, lower.capitalize(), lower.upper()):
        return _WORDS[lower]
    # Underscores between digits are ignored.
    plain = text.replace("_", "") if text[0] in "+-0123456789" else text
    if integer := _INTEGER.fullmatch(plain):
        if len(plain) <= _MAX_DIGITS:
            return int(plain, 8 if integer["octal"] else 0)
    elif _DECIMAL.fullmatch(plain) and not isinf(float(plain)):
        return float(plain)
    return text


def _too_deep(file: str, line: int | None) -> ConfigError:
    return ConfigError(f"is nested more than {_MAX_DEPTH} levels deep. Is it a resource?", None, file, line)


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
    every = list[Node]()
    for each in documents:
        every += each.field("items").items() if each.field("kind").value in _LISTS else [each]
    found = [each for each in every if each.field("kind").value == _KIND]
    if not found:
        older = next((each for each in every if each.field("kind").value == _MIRROR_MAKER_1_KIND), None)
        if older is not None:
            raise older.error(
                f"{_MIRROR_MAKER_1_KIND} is MirrorMaker 1. Use kafka-mirror-maker; docs/strimzi.md has its options and "
                "files by the fields of the resource"
            )
        kinds = ", ".join(str(each.field("kind").value) for each in every) or "nothing"
        raise ConfigError(f"holds no {_KIND}, but {kinds}", file=file)
    return found


def chosen(documents: Sequence[Node], name: str | None, file: str) -> Node:
    """Return the only resource of a file, or the one with the name. Raises ConfigError if there is none, or several
    without a name or with the same."""
    found = resources_in(documents, file)
    names = [each.field("metadata").required("name") for each in found]
    if name is None and len(found) > 1:
        raise ConfigError(f"holds several resources: {', '.join(names)}. Choose one with --name", file=file)
    wanted = names[0] if name is None else name
    if wanted not in names:
        raise ConfigError(f"holds no {_KIND} {wanted}, but {', '.join(names)}", "--name", file)
    if names.count(wanted) > 1:
        raise ConfigError(f"holds several resources named {wanted}. Remove all except one", "--name", file)
    return found[names.index(wanted)]


def resource(node: Node) -> Resource:
    """Return the clusters and mirrors of a resource. Raises ConfigError if they are not as its version says."""
    version = node.required("apiVersion")
    if version.removeprefix(_GROUP) not in _VERSIONS or not version.startswith(_GROUP):
        known = ", ".join(_GROUP + each for each in _VERSIONS)
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
