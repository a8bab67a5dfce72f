"""Which remote topics are to be made and grown: two clusters' metadata and the source's settings in, changes out. Pure.

Shared with whatever shows changes without making them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.api.filters import ConfigPropertyFilter
from connect.core.errors import PermanentError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.topic_configs import TopicConfigs
from connectors.changes import AddPartitions, CreateTopic
from connectors.policy import LONGEST_NAME
from connectors.source.config_sync import configs_of_new

_READABLE: Final = 0
#: Kafka's ``Topic.validate``.
_IN_NAMES: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class Naming:
    """Source topics that have a remote name of their own, by topic; and of the others a sentence each, why not.
    ``undecided``: those of the others that would have a name if it were known that they had it before."""

    remote: Mapping[str, str]
    problems: Mapping[str, str] = field(default_factory=dict)
    undecided: Mapping[str, str] = field(default_factory=dict)


def name_topics(
    all_names: Callable[[str], Sequence[str]], topics: Sequence[str], copied: Collection[str] = ()
) -> Naming:
    """Names for ``topics``. ``all_names`` are those of a topic and of all that others make of its records, ours first;
    raises PermanentError where it has none.

    Two of one name are never merged, whether we fill both or one is filled by others: the one of ``copied`` keeps it,
    else none has it.
    """
    names: dict[str, Sequence[str]] = {}
    problems: dict[str, str] = {}
    for topic in topics:
        try:
            found = all_names(topic)
        except PermanentError as error:
            problems[topic] = str(error)
            continue
        if wrong := next(filter(None, map(_wrong_name, found)), None):
            problems[topic] = f"topic {topic} is not mirrored: its remote name {wrong}; leave it out by topics.exclude"
        else:
            names[topic] = found
    shared = _shared(names)
    remote: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for topic, (name, *_) in names.items():
        sharing, clash = shared.get(topic, ((topic,), name))
        holders = [other for other in sharing if other in copied]
        if len(sharing) > 1 and holders != [topic]:
            problems[topic] = (
                f"topics {' and '.join(sharing)} would share the remote topic {clash}; {topic} is not mirrored: change "
                "the replication policy, or what renames topics behind it, or leave one out by topics.exclude"
            )
            if not holders:
                undecided[topic] = name
        else:
            remote[topic] = name
    return Naming(remote, problems, undecided)


def _shared(names: Mapping[str, Sequence[str]]) -> dict[str, tuple[Sequence[str], str]]:
    """Of each topic that would have a remote one in common with others, of which one is filled by us: who they are,
    itself included, in the order of ``names``, and the remote topic."""
    filling: dict[str, set[str]] = defaultdict(set)
    sent: dict[str, set[str]] = defaultdict(set)
    for topic, (own, *others) in names.items():
        filling[own].add(topic)
        for name in (own, *others):
            sent[name].add(topic)
    found: dict[str, tuple[Sequence[str], str]] = {}
    for topic, (own, *others) in names.items():
        by_name = {own: sent[own], **{name: filling[name] for name in others}}
        sharing = {topic}.union(*by_name.values())
        clash = next((name for name, those in by_name.items() if those - {topic}), own)
        if len(sharing) > 1:
            found[topic] = [one for one in names if one in sharing], clash
    return found


def _wrong_name(name: str) -> str | None:
    if len(name) > LONGEST_NAME:
        return f"{name[:40]}... has {len(name)} characters, and Kafka allows {LONGEST_NAME}"
    if not name or name in (".", "..") or not _IN_NAMES.issuperset(name):
        return f"'{name}' is none that Kafka allows"
    return None


def absent(naming: Naming, topics: Sequence[TopicMetadata], target: Mapping[str, TopicMetadata]) -> list[TopicMetadata]:
    """Those of ``topics`` that have a name and no remote topic."""
    return [
        topic for topic in topics if topic.name in naming.remote and not _exists(target.get(naming.remote[topic.name]))
    ]


def creations(
    naming: Naming,
    new: Sequence[TopicMetadata],
    configs: Mapping[str, TopicConfigs],
    properties: ConfigPropertyFilter,
    replication_factor: int,
) -> list[CreateTopic]:
    """Remote topics for ``new``, as Java makes them: same partition count, the source's own settings. Topics without
    ``configs`` are left out: made without, a compacted one would lose records."""
    return [
        CreateTopic(
            naming.remote[topic.name],
            topic.name,
            len(topic.partitions),
            replication_factor,
            configs_of_new(configs[topic.name], properties),
        )
        for topic in new
        if topic.name in configs
    ]


def growths(
    naming: Naming, topics: Sequence[TopicMetadata], target: Mapping[str, TopicMetadata]
) -> list[AddPartitions]:
    """Partitions to add; remote topics are never shrunk."""
    found = []
    for topic in topics:
        name = naming.remote.get(topic.name)
        remote = target.get(name) if name else None
        if name and remote is not None and _exists(remote) and len(remote.partitions) < len(topic.partitions):
            found.append(AddPartitions(name, topic.name, len(remote.partitions), len(topic.partitions)))
    return found


def _exists(remote: TopicMetadata | None) -> bool:
    return remote is not None and (remote.error_code == _READABLE or bool(remote.partitions))
