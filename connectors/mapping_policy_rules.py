"""Parse a rule of the table that names remote topics, and apply it in both directions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.errors import ConfigError

RULES_KEY: Final = "replication.policy.mapping"
_ARROW: Final = "->"
_ALIAS: Final = "source"
_PLACE: Final = re.compile(r"\$(?:\{(\w+)\}|(\d+|source))")
#: An alias in a name, if it may be of any cluster.
_ANY_ALIAS: Final = r"[a-zA-Z0-9_-]+"
_ANYTHING: Final = ".*"
_LITERAL: Final = re.compile(r"[a-zA-Z0-9._-]*")


@dataclass(frozen=True, slots=True)
class MappingRule:
    """``left -> right``: texts with groups between them, and with references to these groups. ``texts`` has one more
    element than ``groups``; ``right`` alternates the texts of the right side with references: the number of a group
    from 1, or 0 for the source's alias."""

    text: str
    texts: tuple[str, ...]
    groups: tuple[str, ...]
    right: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> MappingRule:
        """Parse a rule. Raises ConfigError if it has no arrow, has more than text and groups, or leaves out a group."""
        left, arrow, right = (part.strip() for part in text.partition(_ARROW))
        if not arrow or not left or not right:
            raise _wrong(text, f"is not a rule. Write it like orders.(.*) {_ARROW} eu.$1.orders")
        texts, groups = _split(text, left)
        places = _places(text, right, len(groups))
        if lost := set(range(1, len(groups) + 1)).difference(place for place in places if isinstance(place, int)):
            raise _wrong(
                text, f"does not use group {min(lost)}: the source's name could not be derived from the remote one"
            )
        return cls(text, texts, groups, places)

    @property
    def names_source(self) -> bool:
        return 0 in self.right

    @property
    def marks(self) -> bool:
        """Whether its remote names have text of their own; otherwise any name may look like one of its."""
        return any(self.right[::2])

    def forward(self, alias: str, topic: str) -> str | None:
        """Return the remote name; None if the rule does not match."""
        pattern = "".join(
            re.escape(before) + f"({group})" for before, group in zip(self.texts, (*self.groups, ""), strict=True)
        )
        found = _match(pattern, topic, len(self.groups) + 1)
        if found is None:
            return None
        return "".join((alias, *found)[part] if isinstance(part, int) else part for part in self.right)

    def may_match(self, prefix: str) -> bool:
        """Whether it could match a topic that begins with ``prefix``."""
        head = self.texts[0]
        return head.startswith(prefix) or prefix.startswith(head)

    def forward_prefix(self, alias: str, prefix: str) -> str | None:
        """Return the common prefix of remote names of topics that begin with ``prefix``; None if unknown, because the
        rule does more than replace one prefix by another."""
        head = self.texts[0]
        moves_all = self.groups == (_ANYTHING,) and self.texts[1] == "" and self.right[-2:] == (1, "")
        if not moves_all or 1 in self.right[:-2] or not prefix.startswith(head):
            return None
        front = "".join(alias if part == 0 else str(part) for part in self.right[:-2])
        return front + prefix.removeprefix(head)

    def names_on_purpose(self, alias: str) -> bool:
        """Whether its right side begins with ``alias`` literally, before any group, so that it deliberately makes names
        with this alias."""
        return not self.names_source and str(self.right[0]).startswith(alias)

    def backward(self, name: str, alias: str | None = None) -> tuple[str | None, str] | None:
        """Return the alias, if the name has it, and the source topic of a remote name, as the regular expression reads
        it; None if the name is not this rule's. A name need not show where an alias ends: ``alias`` is the only one
        possible, None for any."""
        pattern, groups = "", dict[int, int]()
        for part in self.right:
            if isinstance(part, str):
                pattern += re.escape(part)
            elif part in groups:
                pattern += rf"(?:\{groups[part]})"
            else:
                groups[part] = len(groups) + 1
                of_alias = _ANY_ALIAS if alias is None else re.escape(alias)
                pattern += f"({self.groups[part - 1] if part else of_alias})"
        found = _match(pattern, name, len(groups))
        if found is None:
            return None
        values = {part: found[place - 1] for part, place in groups.items()}
        topic = "".join(before + values.get(index, "") for index, before in enumerate(self.texts, 1))
        return values.get(0), topic


def _split(rule: str, left: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a left side into texts and groups."""
    texts, groups, start, depth, at = [""], [], 0, 0, 0
    in_class = False
    while at < len(left):
        char = left[at]
        if char == "\\" and depth:
            at += 1
        elif in_class or (char == "[" and depth):
            in_class = char != "]"
        elif char == "(":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif char == ")" and depth:
            depth -= 1
            if not depth:
                groups.append(_group(rule, left[start:at]))
                texts.append("")
        elif not depth and char != "\\":
            texts[-1] += char
        at += 1
    if depth:
        raise _wrong(rule, "has an unclosed parenthesis")
    for text in texts:
        if _LITERAL.fullmatch(text) is None:
            raise _wrong(rule, f"has '{text}' outside a group; only letters, digits, dots, dashes and _ are allowed")
    return tuple(texts), tuple(groups)


def _group(rule: str, source: str) -> str:
    only_itself = f"has ({source}): a group must not contain other groups, flags or a name. Write (?:...) inside"
    if source.startswith("?"):
        raise _wrong(rule, only_itself)
    try:
        found = compile_java(source)
    except UnsupportedRegex as error:
        raise _wrong(rule, f"has ({source}): {error}") from None
    if found.groups:
        raise _wrong(rule, only_itself)
    return found.pattern


def _places(rule: str, right: str, groups: int) -> tuple[str | int, ...]:
    places: list[str | int] = []
    end = 0
    for found in _PLACE.finditer(right):
        name = found[1] or found[2]
        number = 0 if name == _ALIAS else int(name) if name.isdigit() else -1
        if number > groups or number < 0 or name == "0":
            raise _wrong(rule, f"uses ${name}, but has only {groups} groups and $source")
        places += [right[end : found.start()], number]
        end = found.end()
    places.append(right[end:])
    for text in places:
        if isinstance(text, str) and _LITERAL.fullmatch(text) is None:
            raise _wrong(rule, f"has '{text}' on its right side, which is not allowed in a topic's name")
    return tuple(places)


def _match(pattern: str, text: str, groups: int) -> tuple[str, ...] | None:
    found = re.fullmatch(pattern, text, re.ASCII)
    return None if found is None else tuple(found.groups())[:groups]


def _wrong(rule: str, why: str) -> ConfigError:
    return ConfigError(f"{RULES_KEY}: «{rule}» {why}", RULES_KEY)
