"""One rule of the table by which remote topics are named: taken apart, and applied there and back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.errors import ConfigError

RULES_KEY: Final = "replication.policy.mapping"
_ARROW: Final = "->"
_ALIAS: Final = "source"
_PLACE: Final = re.compile(r"\$(?:\{(\w+)\}|(\d+|source))")
#: An alias in a name, where it may be of any cluster.
_ANY_ALIAS: Final = r"[a-zA-Z0-9_-]+"
_ANYTHING: Final = ".*"
#: So many ways to read a name, right or wrong, are tried before it counts as none of a rule's: milliseconds.
_MOST_TRIES: Final = 2_000
_LITERAL: Final = re.compile(r"[a-zA-Z0-9._-]*")


@dataclass(frozen=True, slots=True)
class MappingRule:
    """``left -> right``: texts with groups between them, and with the places where these go.

    ``texts`` has one more element than ``groups``; ``places`` are the texts of the right side, and after each but the
    last what stands there: the number of a group from 1, or 0 for the source's alias.
    """

    text: str
    texts: tuple[str, ...]
    groups: tuple[str, ...]
    right: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> MappingRule:
        """Raises:
        ConfigError: It has no arrow, something other than text and groups, or does not tell each group again.
        """
        left, arrow, right = (part.strip() for part in text.partition(_ARROW))
        if not arrow or not left or not right:
            raise _wrong(text, f"is no rule; one is written as orders.(.*) {_ARROW} eu.$1.orders")
        texts, groups = _split(text, left)
        places = _places(text, right, len(groups))
        if lost := set(range(1, len(groups) + 1)).difference(place for place in places if isinstance(place, int)):
            raise _wrong(
                text, f"does not use group {min(lost)}: the source's name could not be told from the remote one"
            )
        return cls(text, texts, groups, places)

    @property
    def tells_source(self) -> bool:
        return 0 in self.right

    @property
    def marks(self) -> bool:
        """Whether its remote names have text of its own; else all names may look like its."""
        return any(self.right[::2])

    def forward(self, alias: str, topic: str) -> str | None:
        """The remote name; None where the rule does not match."""
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
        """What the remote names begin with of all that begins with ``prefix``; None where the rule is not one text in
        front for another, so that it cannot be told."""
        head = self.texts[0]
        moves_all = self.groups == (_ANYTHING,) and self.texts[1] == "" and self.right[-2:] == (1, "")
        if not moves_all or 1 in self.right[:-2] or not prefix.startswith(head):
            return None
        front = "".join(alias if part == 0 else str(part) for part in self.right[:-2])
        return front + prefix.removeprefix(head)

    def names_on_purpose(self, alias: str) -> bool:
        """Whether what stands before all groups on its right side begins with ``alias`` by itself, so that names with
        this alias in front are meant by it."""
        return not self.tells_source and str(self.right[0]).startswith(alias)

    def backward(self, name: str, alias: str | None = None) -> Iterator[tuple[str | None, str]]:
        """Alias, where the name tells it, and source topic, by each way to read a remote name; none where it is not of
        this rule. First comes what the regular expression takes, then the ways with the longest parts in front.

        Where an alias ends and the rest begins a name need not tell: ``alias`` is the only one that it can be, None
        for any. Where a group ends neither: of ``c-a-b`` only going there again shows what ``$2-$1`` was of.
        """
        any_alias = _ANY_ALIAS if alias is None else re.escape(alias)
        longest = self._longest(name, any_alias)
        if longest is None:
            return
        yield self._told(longest)
        patterns = (any_alias, *self.groups)
        for values in islice(_ways(self.right, patterns, name, {}), _MOST_TRIES):
            if values is not None and values != longest:
                yield self._told(values)

    def _longest(self, name: str, any_alias: str) -> dict[int, str] | None:
        """What stands in a name's places by the regular expression's own choice."""
        seen: dict[int, int] = {}
        pattern, number = "", 0
        for part in self.right:
            if isinstance(part, str):
                pattern += re.escape(part)
                continue
            if part in seen:
                pattern += rf"(?:\{seen[part]})"
                continue
            number += 1
            seen[part] = number
            pattern += f"({self.groups[part - 1] if part else any_alias})"
        found = _match(pattern, name, number)
        return None if found is None else {part: found[place - 1] for part, place in seen.items()}

    def _told(self, values: Mapping[int, str]) -> tuple[str | None, str]:
        topic = "".join(
            before + values.get(index, "")
            for index, before in zip(range(1, len(self.texts) + 1), self.texts, strict=True)
        )
        return values.get(0), topic


def _ways(
    right: tuple[str | int, ...], patterns: tuple[str, ...], name: str, values: Mapping[int, str]
) -> Iterator[Mapping[int, str] | None]:
    """Each way to read a name by ``right``, whose other places have ``values``; None for each try that led nowhere, so
    that tries can be counted."""
    text, *places = right
    rest = name.removeprefix(str(text))
    if not name.startswith(str(text)) or (rest and not places):
        yield None
    elif not places:
        yield values
    else:
        place = int(places[0])
        longest = len(rest) - sum(len(part) for part in places if isinstance(part, str))
        shortest = 0 if places[2:] else max(longest, 0)
        for end in range(longest, shortest - 1, -1):
            value = rest[:end]
            if values.get(place, value) == value and re.fullmatch(patterns[place], value, re.ASCII):
                yield from _ways(tuple(places[1:]), patterns, rest[end:], {**values, place: value})
            else:
                yield None


def _split(rule: str, left: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts and groups of a left side."""
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
        raise _wrong(rule, "has a parenthesis that is not closed")
    for text in texts:
        if _LITERAL.fullmatch(text) is None:
            raise _wrong(rule, f"has '{text}' outside of a group; only letters, digits, dots, dashes and _ go there")
    return tuple(texts), tuple(groups)


def _group(rule: str, source: str) -> str:
    only_itself = f"has ({source}): a group may hold no other, nor flags or a name; write (?:...) inside"
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
            raise _wrong(rule, f"uses ${name}, and has {groups} groups and $source")
        places += [right[end : found.start()], number]
        end = found.end()
    places.append(right[end:])
    for text in places:
        if isinstance(text, str) and _LITERAL.fullmatch(text) is None:
            raise _wrong(rule, f"has '{text}' on its right side, which no topic's name may have")
    return tuple(places)


def _match(pattern: str, text: str, groups: int) -> tuple[str, ...] | None:
    found = re.fullmatch(pattern, text, re.ASCII)
    return None if found is None else tuple(found.groups())[:groups]


def _wrong(rule: str, why: str) -> ConfigError:
    return ConfigError(f"{RULES_KEY}: «{rule}» {why}", RULES_KEY)
