"""YAML as Kubernetes reads it: by the rules of go-yaml v2 (``resolve.go`` of ``sigs.k8s.io/yaml``), for which a date is
text and a number has no base 60."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isinf
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

from connect.core.errors import ConfigError

#: No resource lies as deep; what reads one goes a level down for each.
MAX_DEPTH: Final = 100

#: What Python converts under any limit; no number of Go's has as many.
_MAX_DIGITS: Final = 640
_TAG: Final = "tag:yaml.org,2002:"
_STR, _INT, _FLOAT, _BOOL, _NULL, _MERGE = (
    f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "merge")
)
#: As they are written in small letters, with a capital, or in capitals.
_WORDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("y", "yes", "true", "on"), True),
    **dict.fromkeys(("n", "no", "false", "off"), False),
    **dict.fromkeys(("", "~", "null"), None),
}
_NO_NUMBERS: Final[Mapping[str, float]] = {
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{f"{sign}{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_INTEGER: Final = re.compile(r"[-+]?(0[bB][01]+|0[oO][0-7]+|0[xX][0-9a-fA-F]+|(?P<octal>0[0-7]+)|0|[1-9][0-9]*)")
_DECIMAL: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolved(text: str) -> tuple[str, Any]:
    """The tag and the value of what stands without quotes and without a tag."""
    lower = text.lower()
    if lower in _WORDS and text in (lower, lower.capitalize(), lower.upper()):
        return (_NULL if _WORDS[lower] is None else _BOOL), _WORDS[lower]
    if text in _NO_NUMBERS:
        return _FLOAT, _NO_NUMBERS[text]
    if text == "<<":
        return _MERGE, text
    # Underscores among digits mean nothing.
    plain = text.replace("_", "") if text[0] in "+-0123456789" else text
    if integer := _INTEGER.fullmatch(plain):
        if len(plain) <= _MAX_DIGITS:
            return _INT, int(plain, 8 if integer["octal"] else 0)
    elif _DECIMAL.fullmatch(plain) and not isinf(float(plain)):
        return _FLOAT, float(plain)
    return _STR, text


def too_deep(file: str, line: int) -> ConfigError:
    """The error where mappings and lists lie too deep in one another."""
    return ConfigError(
        f"holds more than {MAX_DEPTH} mappings and lists in one another; is it a resource?", None, file, line
    )


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConstructorError(None, None, "an escape stands for half a character", node.start_mark) from None
    return text


def _value(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    tag, value = resolved(str(loader.construct_scalar(node)))
    if tag == node.tag or (tag, node.tag) == (_INT, _FLOAT):
        return value
    name = node.tag.removeprefix(_TAG)
    raise ConstructorError(None, None, f"what is marked as !!{name} is none", node.start_mark)


def _unknown(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    del loader
    name = node.tag.replace(_TAG, "!!")
    raise ConstructorError(None, None, f"no resource has a tag {name}", node.start_mark)


#: What JSON has; any other tag is refused.
_CONSTRUCTORS: Final[dict[str | None, Any]] = {
    f"{_TAG}map": yaml.SafeLoader.construct_yaml_map,
    f"{_TAG}seq": yaml.SafeLoader.construct_yaml_seq,
    **dict.fromkeys((_STR, _MERGE), _text),
    **dict.fromkeys((_INT, _FLOAT, _BOOL, _NULL), _value),
    None: _unknown,
}


class KubernetesLoader(yaml.SafeLoader):
    """Loads mappings, lists and the scalars above. ``file`` is named in errors."""

    yaml_constructors = _CONSTRUCTORS

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A node with all in it. Raises ConfigError where it lies too deep."""
        if self._depth >= MAX_DEPTH:
            raise too_deep(self._file, self.get_mark().line + 1)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Keys as JSON has them: what reads as a number or as true is its text."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag in (_BOOL, _INT, _FLOAT):
                tag, value = resolved(key.value) if key.value else (_NULL, None)
                if tag == key.tag:
                    key.tag, key.value = _STR, json.dumps(value)
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node that has none of its own."""
        if kind is not yaml.ScalarNode:
            return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        return resolved(value)[0] if implicit[0] else _STR
