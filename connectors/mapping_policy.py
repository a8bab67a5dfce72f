"""Remote names by a table of rules: ours, for those who want neither aliases before names nor the same names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from connect.core.errors import ConfigError, PermanentError
from connectors.mapping_rules import RULES_KEY, Rule
from connectors.policy import LONGEST_NAME, DefaultReplicationPolicy, looks_like_heartbeat, separators

UNMATCHED_KEY: Final = "replication.policy.mapping.unmatched"
#: So many clusters in a row may have named a topic by rules that write no alias: rules can make names ever longer.
_MOST_UNTOLD: Final = 16
#: The ways by which rules read a name: the first of each goes before all the others, so that plain names stay theirs.
_FIRST_AND_ALL: Final = (1, None)


class _Reading(NamedTuple):
    """Where a remote topic came from. ``is_told``: its name says so; else it only counts as one of the source.

    ``is_marked``: the name has text that its rule writes, so that not just any name could be one of this rule.
    """

    source: str | None
    topic: str
    is_told: bool
    is_marked: bool = False


class MappingReplicationPolicy(DefaultReplicationPolicy):
    """The keys ``replication.policy.mapping`` and ``replication.policy.mapping.unmatched``.

    The first rule that matches a whole name gives the remote one. Outside of groups a rule is plain text: a dot is a
    dot. ``$1`` is a group, ``$source`` the source's alias. Where no rule has ``$source``, a name does not tell where a
    topic came from: every topic then counts as one of the source, as with Identity, and cycles cannot be seen. Topics
    that no rule matches, and heartbeats always, get the alias in front (``prefix``) or keep their name (``keep``).

    A name may be read in several ways: ``us.clicks`` as ``clicks`` with the alias in front, and by a rule
    ``legacy.(.*) -> $1`` as ``legacy.us.clicks``. One counts, and the topic of any other is refused: what tells the
    alias of a cluster that is known goes first, with the rules that write this alias out; then the rules, in order, and
    of the ways to read it by one rule the first that leads to the name again. Ways other than a rule's first, as where
    ``$2-$1`` has more dashes, count where no rule's first does and the name is not a kept one.
    """

    def __init__(
        self, rules: tuple[Rule, ...], *, keeps: bool, source_alias: str | None, separators: tuple[str, str]
    ) -> None:
        super().__init__(*separators)
        self._rules = rules
        self._keeps = keeps
        self._source_alias = source_alias
        self._telling = tuple(rule for rule in rules if rule.tells_source)

    @property
    def tells_source(self) -> bool:
        """Whether every remote name tells where its topic came from, so that cycles are seen."""
        return not self._keeps and all(rule.tells_source for rule in self._rules)

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Raises :class:`PermanentError` where the remote name would not lead back to ``topic``."""
        name = self._forward(source_alias, topic)
        if looks_like_heartbeat(topic):
            return name
        back = self._read(name, (source_alias,))
        if back is None or back.topic != topic:
            raise PermanentError(
                f"topic {topic} is not mirrored: its remote name {name} would {_read_as(back)}; change {RULES_KEY}, or "
                "leave the topic out by topics.exclude"
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
        back = self._read(topic)
        return None if back is None else back.source

    def upstream_topic(self, topic: str) -> str | None:
        back = self._read(topic)
        return None if back is None else back.topic

    def original_topic(self, topic: str) -> str:
        for back in self._way(topic):
            topic = back.topic
        return topic

    def has_passed(self, topic: str, alias: str) -> bool:
        return any(back.source == alias for back in self._way(topic, alias))

    def _way(self, topic: str, *aliases: str) -> Iterator[_Reading]:
        """Hop by hop to where a topic began; ``aliases`` are known beside the source's. It ends where no name tells the
        hop behind one that no name tells, and where there are too many of these."""
        seen, untold = {topic}, 0
        back = self._read(topic, aliases)
        while back is not None:
            yield back
            name, topic = topic, back.topic
            untold += not back.is_told
            is_lost = max(len(topic), len(seen)) > LONGEST_NAME or untold > _MOST_UNTOLD
            if is_lost or (back.is_told and topic in seen):
                return
            seen.add(topic)
            back = self._read(topic, aliases) if back.is_told else self._told_behind(name, back, aliases, seen)

    def _told_behind(
        self, name: str, untold: _Reading, aliases: tuple[str, ...], seen: Collection[str]
    ) -> _Reading | None:
        """What the name behind an untold hop tells, or where that proves nothing, ``name`` itself.

        By ``legacy.(.*) -> $1`` each name would have one of the cluster legacy before it, and so would its own."""
        for asked in (untold.topic, name) if untold.is_marked else (name,):
            told = self._read(asked, aliases, self._telling)
            if told is None or not told.is_told:
                return None
            if told.topic not in seen:
                return told
        return None

    def _forward(self, alias: str, topic: str) -> str:
        if not looks_like_heartbeat(topic):
            for rule in self._rules:
                if (name := rule.forward(alias, topic)) is not None:
                    return name
            if self._keeps:
                return topic
        return super().format_remote_topic(alias, topic)

    def _read(self, name: str, aliases: tuple[str, ...] = (), rules: tuple[Rule, ...] | None = None) -> _Reading | None:
        """By all rules unless ``rules`` says which. None where it is no remote topic."""
        asked = self._rules if rules is None else rules
        if not looks_like_heartbeat(name) and (back := self._read_mapped(name, aliases, asked)) is not None:
            return back
        source = super().topic_source(name)
        return None if source is None else _Reading(source, name[len(source) + len(self._separator) :], True)

    def _read_mapped(self, name: str, aliases: tuple[str, ...], rules: tuple[Rule, ...]) -> _Reading | None:
        """None where the name is neither that of a rule, nor kept, nor begins with an alias that is known."""
        for alias in dict.fromkeys((*aliases, self._source_alias)):
            if alias and (back := self._read_as_of(name, alias, rules)) is not None:
                return back
        for ways in _FIRST_AND_ALL:
            for rule in rules:
                if (back := self._read_by(rule, name, ways=ways)) is not None:
                    return back
            if self._keeps and (ways is None or self._forward(self._source_alias or "", name) == name):
                return _Reading(self._source_alias, name, False)
        return None

    def _read_as_of(self, name: str, alias: str, rules: tuple[Rule, ...]) -> _Reading | None:
        topic = name.removeprefix(alias + self._separator)
        is_prefixed = not self._keeps and topic not in ("", name) and self._forward(alias, topic) == name
        for ways in _FIRST_AND_ALL:
            for rule in rules:
                on_purpose = alias == self._source_alias and rule.names_on_purpose(alias)
                if (rule.tells_source or on_purpose) and (back := self._read_by(rule, name, alias, ways)) is not None:
                    return back
            if is_prefixed:
                return _Reading(alias, topic, True)
        return None

    def _read_by(self, rule: Rule, name: str, alias: str | None = None, ways: int | None = None) -> _Reading | None:
        for told, topic in islice(rule.backward(name, alias), ways):
            source = told or self._source_alias
            # The parts may have been others, and a rule before it may have taken the topic elsewhere.
            if self._forward(source or "", topic) == name:
                return _Reading(source, topic, rule.tells_source, rule.marks)
        return None


def _read_as(back: _Reading | None) -> str:
    return "not lead back to it" if back is None else f"read as that of {back.topic}"


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
