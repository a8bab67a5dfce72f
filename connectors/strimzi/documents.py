"""Documents of YAML whose every field knows its line, so that what is said of one can be found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from connect.core.errors import ConfigError
from connectors.strimzi.scalars import MAX_DEPTH, KubernetesLoader, too_deep

#: Aliases can make a small text very large.
_MAX_FIELDS: Final = 100_000
#: From here on JSON has a number with an exponent; below, one without a fraction is written as an integer.
_WITH_EXPONENT: Final = 1e21
#: What a key may be: text, or ``<<``, which takes the fields of another mapping in.
_KEYS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


@dataclass(frozen=True)
class Node:
    """A field of a document, as a program reads it; ``path`` such as ``spec.mirrors[0].topicsPattern``.

    ``value`` is plain data: mappings, lists, text, numbers, booleans, None.
    """

    value: Any = field(repr=False)
    path: str
    file: str
    lines: Mapping[str, int] = field(repr=False)

    @property
    def line(self) -> int:
        """From 1; that of its parent where it has none."""
        path = self.path
        while path not in self.lines and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)

    def error(self, message: str) -> ConfigError:
        """One that names the field and its line."""
        return ConfigError(message, self.path or None, self.file, self.line)

    def __contains__(self, name: str) -> bool:
        return self.value is not None and self.mapping().get(name) is not None

    def mapping(self) -> Mapping[str, Any]:
        """Its fields; none where it is empty. Raises ConfigError where it is no mapping."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error(f"{self.path or 'the document'} should be a mapping of fields")
        return self.value

    def field(self, name: str) -> Node:
        """One field, also where it is not there: its value is None then."""
        return Node(self.mapping().get(name), f"{self.path}.{name}" if self.path else name, self.file, self.lines)

    def fields(self) -> Iterator[tuple[str, Node]]:
        """Those that are set, in the file's order."""
        for name, value in self.mapping().items():
            if value is not None:
                yield name, self.field(name)

    def items(self) -> list[Node]:
        """The entries of a list; none where it is not there. Raises ConfigError where it is no list."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.error(f"{self.path} should be a list")
        return [Node(each, f"{self.path}[{at}]", self.file, self.lines) for at, each in enumerate(self.value)]

    def texts(self) -> Iterator[Node]:
        """Every text in it, itself included where it is one."""
        if isinstance(self.value, str):
            yield self
        elif isinstance(self.value, list):
            for each in self.items():
                yield from each.texts()
        elif isinstance(self.value, dict):
            for _, each in self.fields():
                yield from each.texts()

    def text(self) -> str | None:
        """A scalar as Java's clients get it; None where it is not there. Raises ConfigError where it is none."""
        if self.value is None:
            return None
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if not isinstance(self.value, (str, int, float)):
            raise self.error(f"{self.path} should be text")
        if isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < _WITH_EXPONENT:
            return str(int(self.value))
        return str(self.value)

    def required(self, name: str) -> str:
        """The text of a field that has to be there. Raises ConfigError where it is not."""
        text = self.field(name).text()
        if not text:
            missing = self.field(name)
            raise missing.error(f"{missing.path} is missing")
        return text

    def settings(self) -> dict[str, str]:
        """A mapping of keys to scalars, as ``config`` is."""
        return {name: each.text() or "" for name, each in self.fields()}


def read_documents(text: str, file: str) -> list[Node]:
    """The documents of a text that are not empty.

    Raises:
        ConfigError: It is no YAML, holds a key twice or a tag of its own, or becomes far too large or deep.
    """
    try:
        loader = KubernetesLoader(text, file)
    except yaml.YAMLError:
        raise ConfigError("this is not YAML: it holds characters that are not allowed", file=file) from None
    try:
        found = []
        while loader.check_node():
            root = loader.get_node()
            lines: dict[str, int] = {}
            if root is None:
                break
            _walk(root, "", file, lines, [0], ())
            value = loader.construct_document(root)
            if value is not None:
                found.append(Node(value, "", file, lines))
        return found
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(f"this is not YAML: {error.problem}", None, file, line) from None
    except (ValueError, OverflowError):
        line = loader.get_mark().line + 1
        raise ConfigError("this is not YAML: an escape stands for no character", None, file, line) from None
    finally:
        loader.dispose()


def _walk(
    node: yaml.Node, path: str, file: str, lines: dict[str, int], seen: list[int], above: tuple[yaml.Node, ...]
) -> None:
    """Note the line of every field. ``above`` are the nodes that hold this one."""
    if node in above:
        line = node.start_mark.line + 1
        raise ConfigError(f"{path} refers to what it stands in", path, file, line)
    # The loader sees to what is written so; aliases make it deeper.
    if len(above) >= MAX_DEPTH:
        raise too_deep(file, node.start_mark.line + 1)
    above = (*above, node)
    seen[0] += 1
    if seen[0] > _MAX_FIELDS:
        raise ConfigError(f"has more than {_MAX_FIELDS} fields; is it a resource?", file=file)
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for at, each in enumerate(node.value):
            _walk(each, f"{path}[{at}]", file, lines, seen, above)
    elif isinstance(node, yaml.MappingNode):
        names = set()
        for key, each in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEYS:
                raise ConfigError("a key should be text", path or None, file, line)
            below = f"{path}.{key.value}" if path else key.value
            if key.value in names:
                raise ConfigError(f"{below} is written twice", below, file, line)
            names.add(key.value)
            lines.setdefault(below, line)
            _walk(each, below, file, lines, seen, above)
