"""The ACLs that a flow needs on its clusters, and those that are missing; ``docs/security.md`` has the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from connect.kafka.authorization import NO_RIGHT, Allowed, Operation, Operations
from connectors.config.connector_configs import MirrorSourceSettings

_READ, _WRITE, _DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
_STORE: Final = frozenset({_READ, _WRITE, _DESCRIBE, Operation.DESCRIBE_CONFIGS})
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Need:
    """Operations on a topic, or on the cluster if ``topic`` is empty; ``is_made``: a missing topic is created."""

    topic: str
    operations: Operations
    is_made: bool = False


@dataclass(frozen=True, slots=True)
class Lack:
    """Missing operations on topics, or on the cluster without topics. ``is_certain`` is False if an ACL that brokers do
    not show, such as one for a prefix, may allow them."""

    operations: tuple[str, ...]
    topics: tuple[str, ...] = ()
    is_certain: bool = True

    def __str__(self) -> str:
        what = " and ".join(self.operations)
        if not self.topics:
            return f"{what} on the cluster is missing"
        names = ", ".join(self.topics[:_SHOWN])
        more = f" and {len(self.topics) - _SHOWN} more" if len(self.topics) > _SHOWN else ""
        on = f"topic{'s' if len(self.topics) > 1 else ''} {names}{more}"
        if self.is_certain:
            return f"{what} on {on} is missing"
        return f"{on} cannot be seen. Check that {what} is granted by name or prefix"


def of_source(settings: MirrorSourceSettings, topics: Iterable[str]) -> Iterator[Need]:
    """Yield the needs on the source; ``topics`` are those that the flow mirrors."""
    reading = frozenset({_READ, _DESCRIBE, Operation.DESCRIBE_CONFIGS})
    yield from (Need(topic, reading) for topic in topics)
    syncs = settings.offset_syncs
    if syncs is not None and syncs.on_source:
        yield Need(syncs.topic, frozenset({_WRITE, _READ, _DESCRIBE}), is_made=True)
    if settings.access.interval_s is not None:
        yield Need("", frozenset({_DESCRIBE}))


def of_target(settings: MirrorSourceSettings, remote: Iterable[str], internal: Iterable[str]) -> Iterator[Need]:
    """Yield the needs on the target; ``remote`` and ``internal`` are the flow's remote and internal topics."""
    wanted = {_WRITE, _READ, _DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER}
    if settings.sync_topic_configs_interval_s is not None:
        wanted.add(Operation.ALTER_CONFIGS)
    if settings.topic_deletion_delay_ms is not None:
        wanted.add(Operation.DELETE)
    yield from (Need(topic, frozenset(wanted), is_made=True) for topic in remote)
    yield from of_internal(internal)
    if settings.access.interval_s is not None:
        yield Need("", frozenset({Operation.ALTER}))


def of_internal(topics: Iterable[str]) -> Iterator[Need]:
    """Return the needs for internal topics of a worker and its connectors."""
    return (Need(topic, _STORE, is_made=True) for topic in topics)


def lacks(needs: Sequence[Need], found: Allowed) -> list[Lack]:
    """Return which ``needs`` a cluster does not allow, grouped by operations."""
    missing: dict[tuple[Operations, bool], list[str]] = defaultdict(list)
    of_cluster: set[Operation] = set()
    for need in needs:
        if not need.topic:
            of_cluster |= need.operations - found.cluster
            continue
        has = found.topics.get(need.topic)
        if has is None:
            # Created by the flow, by a right on the cluster, or by an ACL for a prefix, which brokers do not show.
            if need.is_made and Operation.CREATE not in found.cluster:
                missing[frozenset({Operation.CREATE}), False].append(need.topic)
        elif lacking := need.operations - has:
            is_hidden = has == NO_RIGHT and need.is_made
            missing[lacking, not is_hidden].append(need.topic)
    told = [Lack(_names(of), tuple(topics), certain) for (of, certain), topics in missing.items()]
    return [*told, *([Lack(_names(of_cluster))] if of_cluster else [])]


def topics_of(needs: Iterable[Need]) -> set[str]:
    return {need.topic for need in needs if need.topic}


def _names(operations: Iterable[Operation]) -> tuple[str, ...]:
    return tuple(operation.name for operation in sorted(operations))
