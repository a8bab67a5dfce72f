"""Derive the ACLs that a flow wants on its target from those of its source, and plan the steps to them.

The steps follow from what is wanted, what exists and what this flow has created. Their order ensures that no step
leaves more rights than before the first or after the last: denials are created first and deleted last, and grants are
deleted before others are created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, runtime_checkable

from connect.kafka.authorization import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    WILDCARD,
    AclBinding,
    code,
    refuses_writers,
)
from connectors.config.definitions import ACL_RESOURCE_NAMES
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, is_cycle
from connectors.topic_sync.cluster_changes import CreateAcl, DeleteAcl
from connectors.transforms.target_names import RemoteNames

_OF_NO_CONCERN: Final = "ACLs of this resource type are not synced"
_NOT_NAMED: Final = "sync.acls.resources does not name its resource type"
_UNKNOWN: Final = "it has a value that this version of Heliograph does not know"
_FILTERED_TOPIC: Final = "the topic is not mirrored"
_NO_TOPIC_YET: Final = "no mirrored topic has this prefix yet"
_AMBIGUOUS: Final = "replication.policy.class gives the topics it covers no common prefix on the target"
_WRITE: Final = "only the mirror writes to remote topics (sync.acls.write.enabled)"
_REFUSES_WRITERS: Final = "it has the form by which a failover denies writes on the source"
_FILTERED_GROUP: Final = "groups or groups.exclude exclude it"
_MIRRORED_BACK: Final = "the flow in the other direction created it"
#: Denials left out for one of these reasons, or not left out, may apply to existing copies.
_MAY_BITE: Final = (None, _FILTERED_TOPIC, _NO_TOPIC_YET, _FILTERED_GROUP)
#: Names of remote topics that earlier versions created for recreated topics (``new-remote-topic``): the usual name and
#: eight digits of the topic id.
_OF_RECREATED: Final = re.compile(r"(.+)\.[0-9a-f]{8}")


@runtime_checkable
class MapsPrefixes(Protocol):
    """A replication policy that knows the prefix of its remote topics."""

    def format_remote_prefix(self, source_alias: str, prefix: str) -> str | None:
        """Return the exact common prefix of remote names of topics with ``prefix``; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Names:
    """How the source's names map to the target. ``target_alias``: empty if nothing comes back from there."""

    names: RemoteNames
    takes_topic: Callable[[str], bool]
    takes_group: Callable[[str], bool]
    target_alias: str = ""

    def remote_topic(self, topic: str) -> str | None:
        """Return the name; None if the flow does not mirror the topic, or the policy has no name for it."""
        return self.names.find(topic) if self.takes_topic(topic) else None

    def remote_prefix(self, prefix: str) -> str | None:
        """Return the prefix; None if the policy does not say, or something renames topics after it."""
        if not self.names.are_the_policys:
            return None
        policy, alias = self.names.policy, self.names.source_alias
        # Exactly these classes: a subclass may name topics differently.
        if type(policy) is IdentityReplicationPolicy:
            return prefix
        if type(policy) is DefaultReplicationPolicy:
            return policy.format_remote_topic(alias, prefix)
        if isinstance(policy, MapsPrefixes):
            return policy.format_remote_prefix(alias, prefix)
        return None

    def are_copies(self, prefix: str) -> bool:
        """Whether on the target only copies can have the names of topics that begin with ``prefix`` in the source, and
        none of these came from the target."""
        return bool(self.remote_prefix("")) and not is_cycle(self.names.policy, prefix, self.target_alias)


@dataclass(slots=True)
class WantedAcls:
    """``rules`` for the target. ``kept`` are not created, but stay if this flow has created them. ``left_out``: ACLs of
    the source without a counterpart on the target, with the reason."""

    rules: set[AclBinding] = field(default_factory=set)
    kept: set[AclBinding] = field(default_factory=set)
    left_out: dict[AclBinding, str] = field(default_factory=dict)


def topic_rules(source: Iterable[AclBinding], names: Names) -> WantedAcls:
    """Apply Java's rule (``MirrorSourceConnector.syncTopicAcls``): literal topic names, no right to write; and not the
    denials of a failover, because neither failback nor undo would delete the copy. The name ``*`` is like other names
    here, as in Java: with the Default policy it becomes ``us.*``, which is not a topic."""
    wanted = WantedAcls()
    for rule in source:
        if rule.resource_type != "TOPIC" or rule.pattern_type != "LITERAL" or refuses_writers(rule):
            continue
        taken, remote = _as_reader(rule), names.remote_topic(rule.resource_name)
        if taken is not None and remote is not None:
            wanted.rules.add(_literal(taken, remote))
    return wanted


def full_rules(
    source: Iterable[AclBinding],
    names: Names,
    *,
    resources: Collection[str],
    writes: bool,
    mirrored: Collection[str],
    mirrored_back: Collection[AclBinding] = (),
    made: Collection[AclBinding] = (),
) -> WantedAcls:
    """Return every ACL of the source that means something on the target. A denial is never left out if a grant for the
    same names is taken: if it cannot be expressed as a prefix, it is expressed for each topic, and it stays on copies
    whose topic is now excluded or deleted. There are two exceptions: if a name may also be one of the target's own, no
    denial is created for an excluded topic; and denials of a failover stay on the source. ``resources``: of
    ``RESOURCES``. ``writes``: the right to write to a topic becomes one to write to its remote topic. ``mirrored``: the
    topics of the source that are mirrored now. ``mirrored_back``: ACLs on the source that the flow in the other
    direction has created; sent back, an ACL would outlive its original. ``made``: what this flow has recorded as
    created by itself."""
    wanted, made_by_us, denials = WantedAcls(), frozenset(mirrored_back), list[AclBinding]()
    for rule in source:
        denials += [rule] if rule.is_deny else []
        kind = ACL_RESOURCE_NAMES.get(rule.resource_type)
        if not _is_known(rule):
            wanted.left_out[rule] = _UNKNOWN
        elif kind is None:
            wanted.left_out[rule] = _OF_NO_CONCERN
        elif kind not in resources:
            wanted.left_out[rule] = _NOT_NAMED
        elif rule in made_by_us:
            wanted.left_out[rule] = _MIRRORED_BACK
        elif refuses_writers(rule):
            wanted.left_out[rule] = _REFUSES_WRITERS
        elif kind == "topic":
            _add_topic_rule(wanted, rule, names, writes, mirrored)
        elif kind == "group" and not _takes_group_rule(rule, names):
            wanted.left_out[rule] = _FILTERED_GROUP
        else:
            wanted.rules.add(rule)
    filled = {name for topic in mirrored if (name := names.remote_topic(topic))}
    _add_denials_of_copies(wanted, denials, names, filled, [rule for rule in made if rule.is_deny])
    counterpart = wanted.rules | wanted.kept
    wanted.kept |= {rule for rule in made if _base_rule(rule) in counterpart and rule.resource_name not in filled}
    return wanted


def _add_topic_rule(
    wanted: WantedAcls, rule: AclBinding, names: Names, writes: bool, mirrored: Collection[str]
) -> None:
    taken = rule if writes else _as_reader(rule)
    if taken is None:
        wanted.left_out[rule] = _WRITE
    elif (prefix := _prefix(rule)) is not None:
        _add_prefix(wanted, rule, taken, prefix, names, mirrored)
    elif remote := names.remote_topic(rule.resource_name):
        wanted.rules.add(_literal(taken, remote))
    else:
        wanted.left_out[rule] = _FILTERED_TOPIC


def _add_prefix(
    wanted: WantedAcls, rule: AclBinding, taken: AclBinding, prefix: str, names: Names, mirrored: Collection[str]
) -> None:
    """Add ``taken`` for all topics with ``prefix`` in the source, as one ACL if that covers exactly these."""
    remote = names.remote_prefix(prefix)
    named = [(topic, name) for topic in mirrored if (name := names.remote_topic(topic))]
    covered = [name for topic, name in named if topic.startswith(prefix)]
    as_prefix = None if remote is None else _covering(taken, remote)
    strangers = remote is None or any(name.startswith(remote) for topic, name in named if not topic.startswith(prefix))
    if as_prefix is not None and not strangers:
        (wanted.rules if covered else wanted.kept).add(as_prefix)
    elif not rule.is_deny:
        wanted.left_out[rule] = _AMBIGUOUS
        return
    if rule.is_deny:
        missed = (name for name in covered if strangers or remote is None or not name.startswith(remote))
        wanted.rules |= {_literal(taken, name) for name in missed}
    if not covered:
        wanted.left_out[rule] = _NO_TOPIC_YET


def _add_denials_of_copies(
    wanted: WantedAcls,
    denials: Iterable[AclBinding],
    names: Names,
    filled: Collection[str],
    made: Collection[AclBinding],
) -> None:
    """Keep denials on copies whose topic is excluded or deleted, if a grant by pattern covers the copy."""
    allowing = [rule for rule in wanted.rules if not rule.is_deny and _prefix(rule) is not None]
    for rule in denials:
        counterpart = _counterpart(rule, names)
        if wanted.left_out.get(rule) not in _MAY_BITE or counterpart in wanted.rules:
            continue
        if _prefix(rule) is not None:
            wanted.kept |= _denials_of_deleted(rule, counterpart, made, filled)
        elif counterpart is not None:
            wanted.kept.add(counterpart)
        if counterpart in wanted.kept and _bites(counterpart, allowing) and _is_of_copies(rule, names):
            wanted.rules.add(counterpart)
            wanted.left_out.pop(rule, None)


def _counterpart(rule: AclBinding, names: Names) -> AclBinding | None:
    """Return the ACL's counterpart on the target, whether or not anything it applies to is mirrored."""
    if rule.resource_type != "TOPIC":
        return rule
    prefix = _prefix(rule)
    if prefix is None:
        copy = names.names.find(rule.resource_name)
        return None if copy is None else replace(rule, resource_name=copy)
    remote = names.remote_prefix(prefix)
    return None if remote is None else _covering(rule, remote)


def _denials_of_deleted(
    rule: AclBinding, counterpart: AclBinding | None, made: Iterable[AclBinding], filled: Collection[str]
) -> set[AclBinding]:
    """Return those of ``made`` that may be for one topic what ``rule`` is for a pattern, if nothing fills the copy."""
    within = (counterpart and _prefix(counterpart)) or ""
    said = {one for one in made if one == replace(rule, resource_name=one.resource_name, pattern_type="LITERAL")}
    return {one for one in said if one.resource_name.startswith(within) and one.resource_name not in filled}


def _base_rule(rule: AclBinding) -> AclBinding | None:
    """Return the ACL of the usual remote topic, if ``rule`` may be for a topic that an earlier version created for a
    recreated one. Such ACLs stay as long as the source has theirs."""
    found = _OF_RECREATED.fullmatch(rule.resource_name)
    is_literal_topic = rule.resource_type == "TOPIC" and rule.pattern_type == "LITERAL"
    return replace(rule, resource_name=found[1]) if found and is_literal_topic else None


def _is_of_copies(rule: AclBinding, names: Names) -> bool:
    """Whether its names on the target are only copies; groups have the same names on both sides."""
    prefix = _prefix(rule)
    return rule.resource_type != "TOPIC" or names.are_copies(rule.resource_name if prefix is None else prefix)


def _bites(rule: AclBinding, allowing: Iterable[AclBinding]) -> bool:
    """Whether both ``rule`` and one of the patterns apply to some name."""
    own = _prefix(rule)
    name = rule.resource_name if own is None else own
    for one in allowing:
        prefix = _prefix(one) or ""
        if one.resource_type == rule.resource_type and (
            name.startswith(prefix) or (own is not None and prefix.startswith(own))
        ):
            return True
    return False


def _prefix(rule: AclBinding) -> str | None:
    """Return the prefix of all names that a pattern applies to; None for a single name."""
    if rule.pattern_type == "PREFIXED":
        return rule.resource_name
    return "" if rule.resource_name == WILDCARD else None


def _literal(rule: AclBinding, topic: str) -> AclBinding:
    return replace(rule, resource_name=topic, pattern_type="LITERAL")


def _covering(rule: AclBinding, prefix: str) -> AclBinding:
    """Return ``rule`` for every name that begins with ``prefix``; an empty prefix is written as a wildcard."""
    if prefix:
        return replace(rule, resource_name=prefix, pattern_type="PREFIXED")
    return replace(rule, resource_name=WILDCARD, pattern_type="LITERAL")


def _takes_group_rule(rule: AclBinding, names: Names) -> bool:
    """Test a pattern as a group's name. A denial is always taken: it may apply to mirrored groups."""
    return (_prefix(rule) is not None and rule.is_deny) or names.takes_group(rule.resource_name)


def _as_reader(rule: AclBinding) -> AclBinding | None:
    """Return the ACL without the right to write, because only the mirror writes to remote topics."""
    if rule.permission != "ALLOW":
        return rule
    if rule.operation == "WRITE":
        return None
    return replace(rule, operation="READ") if rule.operation == "ALL" else rule


def _is_known(rule: AclBinding) -> bool:
    words: Mapping[str, Mapping[int, str]] = {
        rule.resource_type: RESOURCE_TYPES,
        rule.pattern_type: PATTERN_TYPES,
        rule.operation: OPERATIONS,
        rule.permission: PERMISSIONS,
    }
    return all(code(known, name) is not None for name, known in words.items())


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """Steps in order, each sorted. ``claims``: to be recorded as created by this flow before any is created.
    ``forgets``: records of ACLs that do not exist. ``left_out``: ACLs of the source without a counterpart on the
    target, with the reason. ``present``: wanted ACLs that the target has, created by this flow or not. ``others``: ACLs
    of the target that this flow neither wants nor has recorded as created by itself."""

    create_denies: tuple[AclBinding, ...] = ()
    delete_allows: tuple[AclBinding, ...] = ()
    create_allows: tuple[AclBinding, ...] = ()
    delete_denies: tuple[AclBinding, ...] = ()
    claims: frozenset[AclBinding] = frozenset()
    forgets: frozenset[AclBinding] = frozenset()
    left_out: Mapping[AclBinding, str] = field(default_factory=dict)
    present: frozenset[AclBinding] = frozenset()
    others: frozenset[AclBinding] = frozenset()

    @property
    def changes(self) -> tuple[CreateAcl | DeleteAcl, ...]:
        """All that would change on the target, in order."""
        return (
            *map(CreateAcl, self.create_denies),
            *map(DeleteAcl, self.delete_allows),
            *map(CreateAcl, self.create_allows),
            *map(DeleteAcl, self.delete_denies),
        )


def plan_access(wanted: WantedAcls, there: Collection[AclBinding], ours: Set[AclBinding] | None) -> AccessPlan:
    """Plan the steps from ``there`` to ``wanted``. ``there``: all ACLs of the target of the resource types concerned.
    ``ours``: what this flow has recorded as created by itself; only that is ever deleted. None if no record is kept:
    then nothing is deleted."""
    present = frozenset(there)
    create = wanted.rules - present
    made = frozenset[AclBinding]() if ours is None else frozenset(ours)
    delete = (made & present) - wanted.rules - wanted.kept
    return AccessPlan(
        create_denies=tuple(sorted(rule for rule in create if rule.is_deny)),
        delete_allows=tuple(sorted(rule for rule in delete if not rule.is_deny)),
        create_allows=tuple(sorted(rule for rule in create if not rule.is_deny)),
        delete_denies=tuple(sorted(rule for rule in delete if rule.is_deny)),
        claims=frozenset() if ours is None else frozenset(create - made),
        forgets=made - present - create,
        left_out=wanted.left_out,
        present=present & wanted.rules,
        others=present - wanted.rules - wanted.kept - made,
    )
