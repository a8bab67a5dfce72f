"""Define the replication policies that ``replication.policy.class`` can name, find their classes, and detect cycles.

MirrorMaker 2 has two policies. The third, ours, maps names by a table of rules, for users who want neither aliases
before names nor unchanged names. Settings can name this project's classes, also under Java's names, and those of
installed packages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from connect.api.plugins import named
from connect.api.policy import ReplicationPolicy
from connect.core.errors import ConfigError, PermanentError
from connectors.mapping_policy_rules import RULES_KEY, MappingRule

_HEARTBEATS: Final = "heartbeats"
_DEFAULT_SEPARATOR: Final = "."
#: The longest name of a topic (Kafka ``Topic.MAX_NAME_LENGTH``).
LONGEST_NAME: Final = 249
#: The characters of such names (``Topic.validate``).
IN_NAMES: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
#: Topics whose names never use the policy's separator: a worker's, and the offset map.
_ALWAYS_DOTTED: Final = ("mm2-configs.", "mm2-offsets.", "mm2-status.", "mm2-offset-map.", "mm2-audit.")


class DefaultReplicationPolicy:
    """``us.orders``: the source's alias, a separator, the topic. ``separator``: ``replication.policy.separator``.
    ``internal_separator``: separator in the names of the topics of checkpoints and offset syncs."""

    def __init__(self, separator: str = _DEFAULT_SEPARATOR, internal_separator: str | None = None) -> None:
        self._separator = separator
        between = separator if internal_separator is None else internal_separator
        self._between = between
        self._internal_suffix = f"{between}internal"
        self._checkpoints_suffix = f"{between}checkpoints{self._internal_suffix}"

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{source_alias}{self._separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        if not self._separator:
            # Java's split then returns a part for each character.
            return topic[0] if len(topic) > 1 else None
        # Java's split drops trailing empty parts, so "us." and "us.." have one part and are not remote topics.
        source, separator, rest = topic.partition(self._separator)
        return source if separator and rest.replace(self._separator, "") else None

    def upstream_topic(self, topic: str) -> str | None:
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self._separator) :]

    def original_topic(self, topic: str) -> str:
        while (upstream := self.upstream_topic(topic)) is not None and upstream != topic:
            topic = upstream
        return topic

    def heartbeats_topic(self) -> str:
        return _HEARTBEATS

    def offset_syncs_topic(self, alias: str) -> str:
        return f"mm2-offset-syncs{self._between}{alias}{self._internal_suffix}"

    def checkpoints_topic(self, alias: str) -> str:
        return alias + self._checkpoints_suffix

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.original_topic(topic) == _HEARTBEATS

    def is_checkpoints_topic(self, topic: str) -> bool:
        return topic.endswith(self._checkpoints_suffix)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        # Java expects its separator in the worker's topics too, which never have it, and would mirror them.
        dotted = topic.startswith(_ALWAYS_DOTTED) and topic.endswith(".internal")
        named = topic.startswith("mm2") and topic.endswith(self._internal_suffix)
        return named or dotted or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        return self.is_mm2_internal_topic(topic) or topic.startswith(("__", "."))


class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Topics keep their names, except heartbeats. Cycles cannot be detected from names alone. ``source_alias`` is the
    result of :meth:`topic_source` for every topic (``source.cluster.alias``)."""

    def __init__(
        self,
        separator: str = _DEFAULT_SEPARATOR,
        internal_separator: str | None = None,
        source_alias: str | None = None,
    ) -> None:
        super().__init__(separator, internal_separator)
        self._source_alias = source_alias

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return super().format_remote_topic(source_alias, topic) if looks_like_heartbeat(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if looks_like_heartbeat(topic) else self._source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if looks_like_heartbeat(topic) else topic


def looks_like_heartbeat(topic: str) -> bool:
    """Whether a policy that keeps names must not keep this one (Kafka ``IdentityReplicationPolicy``)."""
    return topic.endswith(_HEARTBEATS)


def separators(props: Mapping[str, str]) -> tuple[str, str]:
    """Return the separator and that for internal topics; the switch applies only if a separator is set."""
    separator = props.get("replication.policy.separator")
    if separator is None:
        return _DEFAULT_SEPARATOR, _DEFAULT_SEPARATOR
    enabled = props.get("replication.policy.internal.topic.separator.enabled", "true").strip().lower() == "true"
    return separator, separator if enabled else _DEFAULT_SEPARATOR


def is_cycle(policy: ReplicationPolicy, topic: str, target_alias: str) -> bool:
    """Whether mirroring ``topic`` to ``target_alias`` brings records back to where they have been. Kafka's
    ``MirrorSourceConnector.isCycle``: some hop in the name is the target. It ends with any third-party policy: at a
    name that was seen before, and at one that no topic can have."""
    if isinstance(policy, MappingReplicationPolicy):
        return policy.has_passed(topic, target_alias)
    seen: set[str] = set()
    while topic not in seen and (source := policy.topic_source(topic)) is not None:
        if source == target_alias:
            return True
        upstream = policy.upstream_topic(topic)
        if upstream is None or len(upstream) > LONGEST_NAME:
            return False
        seen.add(topic)
        topic = upstream
    return False


UNMATCHED_KEY: Final = "replication.policy.mapping.unmatched"
#: How many clusters in a row may have named a topic by rules without an alias: rules can make names ever longer.
_MOST_UNNAMED: Final = 16


class _Reading(NamedTuple):
    """Where a remote topic came from. ``is_named``: its name says so; otherwise it only counts as one of the source.
    ``is_marked``: the name has text that its rule writes, so that not every name could be this rule's."""

    source: str | None
    topic: str
    is_named: bool
    is_marked: bool = False


class MappingReplicationPolicy(DefaultReplicationPolicy):
    """The keys ``replication.policy.mapping`` and ``replication.policy.mapping.unmatched``. The first rule that matches
    a whole name gives the remote one. Outside groups a rule is plain text: a dot is a dot. ``$1`` is a group,
    ``$source`` the source's alias. If no rule has ``$source``, a name does not say where a topic came from: every topic
    then counts as one of the source, as with Identity, and cycles cannot be detected. Topics that no rule matches get
    the alias as a prefix (``prefix``) or keep their name (``keep``); heartbeats always get it. A name may be read in
    several ways: ``us.clicks`` as ``clicks`` with the alias as a prefix, and by a rule ``legacy.(.*) -> $1`` as
    ``legacy.us.clicks``. One counts, and the topic of any other is refused. First come readings that give the alias of
    a known cluster, including rules that write this alias literally; then the rules in order. A rule reads a name in
    one way: ``$2-$1`` of a name with more dashes may be another topic's, so that a topic is refused."""

    def __init__(
        self, rules: tuple[MappingRule, ...], *, keeps: bool, source_alias: str | None, separators: tuple[str, str]
    ) -> None:
        super().__init__(*separators)
        self._rules, self._keeps, self._source_alias = rules, keeps, source_alias
        self._naming = tuple(rule for rule in rules if rule.names_source)

    @property
    def names_source(self) -> bool:
        """Whether every remote name says where its topic came from, so that cycles are detected."""
        return not self._keeps and all(rule.names_source for rule in self._rules)

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the remote name. Raises :class:`PermanentError` if it would not lead back to ``topic``."""
        name = self._forward(source_alias, topic)
        if looks_like_heartbeat(topic):
            return name
        back = self._read(name, (source_alias,))
        if back is None or back.topic != topic:
            read_as = "not lead back to it" if back is None else f"be read as that of {back.topic}"
            raise PermanentError(
                f"topic {topic} is not mirrored: its remote name {name} would {read_as}. Change {RULES_KEY}, or "
                "exclude the topic by topics.exclude"
            )
        return name

    def format_remote_prefix(self, source_alias: str, prefix: str) -> str | None:
        """Return the common prefix of remote names of topics that begin with ``prefix``, except heartbeats; None if the
        rules do not give one: several apply to its topics, or one that does more than ``a.(.*) -> b.$1``."""
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
        """Whether ``topic`` has passed the cluster ``alias``: a name may read differently if that is asked."""
        return any(back.source == alias for back in self._way(topic, alias))

    def _way(self, topic: str, *aliases: str) -> Iterator[_Reading]:
        """Yield the hops back to a topic's origin; ``aliases`` are known in addition to the source's. End if neither a
        name nor the name before it says where it came from, or if there are too many names that do not."""
        seen, unnamed = {topic}, 0
        back = self._read(topic, aliases)
        while back is not None:
            yield back
            name, topic = topic, back.topic
            unnamed += not back.is_named
            is_lost = max(len(topic), len(seen)) > LONGEST_NAME or unnamed > _MOST_UNNAMED
            if is_lost or (back.is_named and topic in seen):
                return
            seen.add(topic)
            back = self._read(topic, aliases) if back.is_named else self._read_behind(name, back, aliases, seen)

    def _read_behind(
        self, name: str, unnamed: _Reading, aliases: tuple[str, ...], seen: Collection[str]
    ) -> _Reading | None:
        """Return what the name before an unknown hop says or, if that proves nothing, ``name`` itself. By ``legacy.(.*)
        -> $1`` each name would have one of the cluster legacy before it, and so would that one."""
        for asked in (unnamed.topic, name) if unnamed.is_marked else (name,):
            source_reading = self._read(asked, aliases, self._naming)
            if source_reading is None or not source_reading.is_named:
                return None
            if source_reading.topic not in seen:
                return source_reading
        return None

    def _forward(self, alias: str, topic: str) -> str:
        if not looks_like_heartbeat(topic):
            for rule in self._rules:
                if (name := rule.forward(alias, topic)) is not None:
                    return name
            if self._keeps:
                return topic
        return super().format_remote_topic(alias, topic)

    def _read(
        self, name: str, aliases: tuple[str, ...] = (), rules: tuple[MappingRule, ...] | None = None
    ) -> _Reading | None:
        """Read a name by ``rules``, None for all. Return None if it is not a remote topic."""
        asked = self._rules if rules is None else rules
        if not looks_like_heartbeat(name) and (back := self._read_mapped(name, aliases, asked)) is not None:
            return back
        source = super().topic_source(name)
        return None if source is None else _Reading(source, name[len(source) + len(self._separator) :], True)

    def _read_mapped(self, name: str, aliases: tuple[str, ...], rules: tuple[MappingRule, ...]) -> _Reading | None:
        """Return None if the name is not a rule's, is not kept, and does not begin with a known alias."""
        for alias in dict.fromkeys((*aliases, self._source_alias)):
            if alias and (back := self._read_as_of(name, alias, rules)) is not None:
                return back
        for rule in rules:
            if (back := self._read_by(rule, name)) is not None:
                return back
        return _Reading(self._source_alias, name, False) if self._keeps else None

    def _read_as_of(self, name: str, alias: str, rules: tuple[MappingRule, ...]) -> _Reading | None:
        topic = name.removeprefix(alias + self._separator)
        is_prefixed = not self._keeps and topic not in ("", name) and self._forward(alias, topic) == name
        for rule in rules:
            on_purpose = alias == self._source_alias and rule.names_on_purpose(alias)
            if (rule.names_source or on_purpose) and (back := self._read_by(rule, name, alias)) is not None:
                return back
        return _Reading(alias, topic, True) if is_prefixed else None

    def _read_by(self, rule: MappingRule, name: str, alias: str | None = None) -> _Reading | None:
        found = rule.backward(name, alias)
        if found is None:
            return None
        source, topic = found[0] or self._source_alias, found[1]
        # The parts may have been others, and an earlier rule may have matched the topic.
        is_right = self._forward(source or "", topic) == name
        return _Reading(source, topic, rule.names_source, rule.marks) if is_right else None


def make_mapping_policy(props: Mapping[str, str]) -> MappingReplicationPolicy:
    """Make the policy. Raises ConfigError if there is no rule, or one is invalid."""
    texts = [text for text in (part.strip() for part in props.get(RULES_KEY, "").split(",")) if text]
    if not texts:
        raise ConfigError(
            f"{RULES_KEY} is required by this replication.policy.class. Set rules such as a.(.*) -> b.$1", RULES_KEY
        )
    unmatched = props.get(UNMATCHED_KEY, "prefix").strip()
    if unmatched not in ("prefix", "keep"):
        raise ConfigError(f"{UNMATCHED_KEY} is '{unmatched}'; it can be prefix or keep", UNMATCHED_KEY)
    return MappingReplicationPolicy(
        tuple(MappingRule.parse(text) for text in texts),
        keeps=unmatched == "keep",
        source_alias=props.get("source.cluster.alias"),
        separators=separators(props),
    )


#: Makes an object from a connector's whole configuration.
Factory = Callable[[Mapping[str, str]], Any]

TOPIC_FILTERS: Final = "heliograph.topic_filters"
GROUP_FILTERS: Final = "heliograph.group_filters"
CONFIG_PROPERTY_FILTERS: Final = "heliograph.config_property_filters"
REPLICATION_POLICIES: Final = "heliograph.replication_policies"


@cache
def offered(group: str) -> Mapping[str, Factory]:
    """Return what installed packages offer, by name; a package installed later is found at the next start."""
    return {name: found for name, found in named(group) if callable(found)}


def make(key: str, name: str, known: Mapping[str, Factory], group: str, *arguments: Any) -> Any:
    """Make the object that the setting ``key`` names, of ``arguments``, the config first. Raises ConfigError if its
    class does not exist (the message lists the known ones) or rejects ``arguments``."""
    factory = known.get(name) or offered(group).get(name)
    if factory is None:
        there = ", ".join([*known, *offered(group)])
        raise ConfigError(
            f"{key} {name} is not known. Known are {there}, and classes with an entry point in {group}", key
        )
    try:
        return factory(*arguments)
    except ConfigError:
        raise
    except Exception as error:
        # Third-party code: its message may contain a secret of the configuration, so only its type is reported.
        raise ConfigError(f"{key} {name} cannot be created: {type(error).__name__}", key) from error


_KEY: Final = "replication.policy.class"
_SEPARATOR: Final = "replication.policy.separator"


def _default(props: Mapping[str, str]) -> ReplicationPolicy:
    return DefaultReplicationPolicy(*separators(props))


def _identity(props: Mapping[str, str]) -> ReplicationPolicy:
    return IdentityReplicationPolicy(*separators(props), props.get("source.cluster.alias"))


DEFAULT_POLICY_CLASS: Final = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
IDENTITY_POLICY_CLASS: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
#: Java's under another name; Strimzi's examples used it before Kafka had one.
_STRIMZI_IDENTITY: Final = "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy"
MAPPING_POLICY_CLASS: Final = "connectors.policy.MappingReplicationPolicy"

#: Java's names, our own and Strimzi's.
POLICIES: Final[Mapping[str, Factory]] = {
    DEFAULT_POLICY_CLASS: _default,
    IDENTITY_POLICY_CLASS: _identity,
    "connectors.policy.DefaultReplicationPolicy": _default,
    "connectors.policy.IdentityReplicationPolicy": _identity,
    _STRIMZI_IDENTITY: _identity,
    MAPPING_POLICY_CLASS: make_mapping_policy,
}


def sees_cycles(
    there: ReplicationPolicy, back: ReplicationPolicy, source_alias: str, *, are_renamed: bool = False
) -> bool:
    """Whether ``back`` recognizes what ``there`` named on its way from ``source_alias``; not if other rules rename
    topics afterwards (``are_renamed``)."""
    if are_renamed:
        return False
    if isinstance(there, MappingReplicationPolicy):
        return there.names_source
    return is_cycle(back, there.format_remote_topic(source_alias, "orders"), source_alias)


def find_policy(name: str) -> str | None:
    return name if name in POLICIES or name in offered(REPLICATION_POLICIES) else None


def known_policies() -> list[str]:
    return [*POLICIES, *offered(REPLICATION_POLICIES)]


def make_policy(props: Mapping[str, str]) -> ReplicationPolicy:
    """Make the policy that a connector's or client's properties name. Raises ConfigError if
    ``replication.policy.class`` is unknown, its settings are invalid, or no topic can have a separator or alias."""
    name = props.get(_KEY, DEFAULT_POLICY_CLASS).strip()
    if props.get(_SEPARATOR) == "" and POLICIES.get(name) is not _identity:
        raise ConfigError(f"{_SEPARATOR} must not be empty with a policy that writes it into names", _SEPARATOR)
    for key in (_SEPARATOR, "source.cluster.alias", "target.cluster.alias"):
        value = props.get(key, "")
        if not IN_NAMES.issuperset(value):
            raise ConfigError(f"{key} '{value}' is part of topic names. Use letters, digits, '.', '_' and '-'", key)
    policy: ReplicationPolicy = make(_KEY, name, POLICIES, REPLICATION_POLICIES, props)
    return policy
