"""Remote names by a table of rules: ours, for those who want neither aliases before names nor the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.errors import ConfigError, PermanentError
from connect.core.java_regex import UnsupportedRegex, compile_java
from connectors.policy import DefaultReplicationPolicy, looks_like_heartbeat, separators

RULES_KEY: Final = "replication.policy.mapping"
UNMATCHED_KEY: Final = "replication.policy.mapping.unmatched"
_ARROW: Final = "->"
_ALIAS: Final = "source"
_PLACE: Final = re.compile(r"\$(?:\{(\w+)\}|(\d+|source))")
#: An alias in a name, where it may be of any cluster.
_ANY_ALIAS: Final = r"[a-zA-Z0-9_-]+"
_ANYTHING: Final = ".*"
_LITERAL: Final = re.compile(r"[a-zA-Z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Rule:
    """``left -> right``: texts with groups between them, and with the places where these go.

    ``texts`` has one more element than ``groups``; ``places`` are the texts of the right side, and after each but the
    last what stands there: the number of a group from 1, or 0 for the source's alias.
    """

    text: str
    texts: tuple[str, ...]
    groups: tuple[str, ...]
    right: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> Rule:
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

    def backward(self, name: str) -> tuple[str | None, str] | None:
        """Alias, where the name tells it, and source topic of a remote name; None where it is not of this rule."""
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
            pattern += f"({self.groups[part - 1] if part else _ANY_ALIAS})"
        found = _match(pattern, name, number)
        if found is None:
            return None
        values = {part: found[place - 1] for part, place in seen.items()}
        topic = "".join(
            before + values.get(index, "")
            for index, before in zip(range(1, len(self.texts) + 1), self.texts, strict=True)
        )
        return values.get(0), topic


class MappingReplicationPolicy(DefaultReplicationPolicy):
    """The keys ``replication.policy.mapping`` and ``replication.policy.mapping.unmatched``.

    The first rule that matches a whole name gives the remote one. Outside of groups a rule is plain text: a dot is a
    dot. ``$1`` is a group, ``$source`` the source's alias. Where no rule has ``$source``, a name does not tell where a
    topic came from: every topic then counts as one of the source, as with Identity, and cycles cannot be seen. Topics
    that no rule matches, and heartbeats always, get the alias in front (``prefix``) or keep their name (``keep``).
    """

    def __init__(
        self, rules: tuple[Rule, ...], *, keeps: bool, source_alias: str | None, separators: tuple[str, str]
    ) -> None:
        super().__init__(*separators)
        self._rules = rules
        self._keeps = keeps
        self._source_alias = source_alias

    @property
    def tells_source(self) -> bool:
        """Whether every remote name tells where its topic came from, so that cycles are seen."""
        return not self._keeps and all(rule.tells_source for rule in self._rules)

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Raises :class:`PermanentError` where the remote name would not lead back to ``topic``."""
        name = self._forward(source_alias, topic)
        if (back := self._back(name)) is not None and back[1] != topic:
            raise PermanentError(
                f"topic {topic} is not mirrored: its remote name {name} would read as that of {back[1]}; change "
                f"{RULES_KEY}, or leave the topic out by topics.exclude"
            )
        return name

    def format_remote_prefix(self, source_alias: str, prefix: str) -> str | None:
        """What the remote names begin with of all topics that begin with ``prefix``, but for heartbeats; None where the
        rules do not say: its topics fall under several, or under one that does more than ``a.(.*) -> b.$1``."""
        for rule in self._rules:
            if rule.may_match(prefix):
                return rule.forward_prefix(source_alias, prefix)
        return prefix if self._keeps else super().format_remote_topic(source_alias, prefix)

    def topic_source(self, topic: str) -> str | None:
        back = None if looks_like_heartbeat(topic) else self._back(topic)
        return super().topic_source(topic) if back is None else back[0]

    def upstream_topic(self, topic: str) -> str | None:
        back = None if looks_like_heartbeat(topic) else self._back(topic)
        return super().upstream_topic(topic) if back is None else back[1]

    def _forward(self, alias: str, topic: str) -> str:
        if not looks_like_heartbeat(topic):
            for rule in self._rules:
                if (name := rule.forward(alias, topic)) is not None:
                    return name
            if self._keeps:
                return topic
        return super().format_remote_topic(alias, topic)

    def _back(self, name: str) -> tuple[str | None, str] | None:
        """Alias and source topic; None where the name is that of no rule and not kept either."""
        for rule in self._rules:
            back = rule.backward(name)
            if back is None:
                continue
            alias = back[0] or self._source_alias
            # A rule before it may have taken the topic elsewhere.
            if self._forward(alias or "", back[1]) == name:
                return alias, back[1]
        return (self._source_alias, name) if self._keeps else None


def make_mapping_policy(props: Mapping[str, str]) -> MappingReplicationPolicy:
    """Raises:
    ConfigError: There is no rule, or one cannot be used.
    """
    texts = [text for text in (part.strip() for part in props.get(RULES_KEY, "").split(",")) if text]
    if not texts:
        raise ConfigError(
            f"{RULES_KEY} is needed by this replication.policy.class: rules such as a.(.*) -> b.$1", RULES_KEY
        )
    unmatched = props.get(UNMATCHED_KEY, "prefix").strip()
    if unmatched not in ("prefix", "keep"):
        raise ConfigError(f"{UNMATCHED_KEY} is '{unmatched}'; it can be prefix or keep", UNMATCHED_KEY)
    return MappingReplicationPolicy(
        tuple(Rule.parse(text) for text in texts),
        keeps=unmatched == "keep",
        source_alias=props.get("source.cluster.alias"),
        separators=separators(props),
    )


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
