"""Ask the clusters of a file for what a run needs: brokers, topics, and the ACLs that are missing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from connect.cli.check.findings import CheckFinding, Level, SeenCluster, of_error
from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import NewTopic
from connect.core.wording import named, too_few_brokers
from connect.kafka.authorization import NO_RIGHT, Allowed, Operation, Operations, allowed, group_rights
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.source.connector import OF_SOURCE, OF_TARGET, Needed, refuse_old_brokers
from connectors.topic_sync.partition_assignment import selected

_READ, _WRITE, _DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
_STORE: Final = frozenset({_READ, _WRITE, _DESCRIBE, Operation.DESCRIBE_CONFIGS})


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
        on = f"topic{'s' if len(self.topics) > 1 else ''} {named(self.topics, 3)}"
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
    reported = [Lack(_names(of), tuple(topics), certain) for (of, certain), topics in missing.items()]
    return [*reported, *([Lack(_names(of_cluster))] if of_cluster else [])]


def _names(operations: Iterable[Operation]) -> tuple[str, ...]:
    return tuple(operation.name for operation in sorted(operations))


_TIMEOUT_S: Final = 20.0
_AGAIN_S: Final = 0.5


@dataclass(slots=True)
class Looked:
    """What was found. Clusters are keyed by name because two flows may share one."""

    clusters: dict[str, SeenCluster] = field(default_factory=dict)
    findings: list[CheckFinding] = field(default_factory=list)
    #: What the flow would do, a sentence each.
    does: list[str] = field(default_factory=list)

    def add(self, level: Level, text: str, line: int | None = None) -> None:
        self.findings.append(CheckFinding(level, text, line=line))


@dataclass(frozen=True, slots=True)
class Sides:
    """A flow to check, with its internal topics on the target and the ``line`` of its findings; ``settings`` is None if
    it only writes heartbeats, ``group_id``, its worker's group on the target, if it is not known."""

    flow: str
    source: str
    target: str
    of_source: ConnectionSettings
    of_target: ConnectionSettings
    settings: MirrorSourceSettings | None
    internal: Sequence[NewTopic]
    group_id: str | None
    line: int | None = None


async def look_at_flow(sides: Sides, looked: Looked) -> None:
    """Check both clusters of a flow. A cluster is described once for a file; ACLs are checked for each flow."""
    async with AsyncExitStack() as stack:
        source = await _reached(stack, sides.source, sides.of_source, OF_SOURCE if sides.settings else None, looked)
        target = await _reached(stack, sides.target, sides.of_target, OF_TARGET if sides.settings else None, looked)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                topics = await _topics(sides, source, looked)
                if source is not None and sides.settings is not None:
                    syncs = sides.settings.offset_syncs
                    made = [(syncs.topic, syncs.replication_factor)] if syncs is not None and syncs.on_source else []
                    await _rights(sides, source, sides.source, list(of_source(sides.settings, topics)), made, looked)
                if target is not None:
                    needs, made = _on_target(sides, topics, looked)
                    await _rights(sides, target, sides.target, needs, made, looked)
                    await _group(sides, target, looked)
                    await _transactional_ids(sides, target, looked)
        except (HeliographError, TimeoutError) as error:
            said = f"{sides.flow} was not checked completely: {str(error) or f'no answer within {_TIMEOUT_S:g} s'}"
            looked.add(Level.UNKNOWN, said, sides.line)


async def look_at_cluster(
    name: str, settings: ConnectionSettings, group_id: str | None, internal: Sequence[NewTopic]
) -> Looked:
    """Check the cluster of a worker's group and internal topics."""
    looked = Looked()
    sides = Sides(f"group {group_id}" if group_id else name, name, name, settings, settings, None, internal, group_id)
    await look_at_flow(sides, looked)
    return looked


async def _reached(
    stack: AsyncExitStack, name: str, settings: ConnectionSettings, needed: Needed | None, looked: Looked
) -> Cluster | None:
    """Connect to a cluster; return None if that fails now, or has failed for another flow."""
    addresses = ",".join(f"{host}:{port}" for host, port in settings.bootstrap)
    before = looked.clusters.get(name)
    if before is not None and before.error:
        return None
    cluster = Cluster(settings, name)
    stack.push_async_callback(cluster.close)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if needed is not None:
                refuse_old_brokers(name, (await cluster.any_connection()).versions, needed)
            found = await allowed(cluster, ())
    except (HeliographError, TimeoutError) as error:
        said = str(error) or f"cluster {name} ({addresses}) does not answer within {_TIMEOUT_S:g} s"
        looked.clusters[name] = SeenCluster(name, addresses, error=said)
        for_good = isinstance(error, (PermanentError, SecurityError))
        looked.add(Level.ERROR if for_good else Level.UNKNOWN, said)
        return None
    looked.clusters[name] = SeenCluster(name, addresses, found.brokers, found.release, found.cluster_id)
    return cluster


async def _topics(sides: Sides, source: Cluster | None, looked: Looked) -> list[str]:
    if source is None or sides.settings is None:
        return []
    shown = (await source.metadata(None)).topics
    chosen = [topic.name for topic in selected(sides.settings.should_mirror, shown)]
    if chosen:
        looked.does.append(f"selects {len(chosen)} of the {len(shown)} topics it can see now: {named(chosen, 3)}")
    else:
        said = f"{sides.flow}: topics selects none of the {len(shown)} topics that are visible on {sides.source}"
        looked.add(Level.WARNING, said, sides.line)
    return chosen


def _on_target(sides: Sides, topics: Sequence[str], looked: Looked) -> tuple[list[Need], list[tuple[str, int]]]:
    """Return what a run needs on the target, and the topics that it creates, each with its replication factor."""
    internal = [topic.name for topic in sides.internal]
    made = [(topic.name, topic.replication_factor) for topic in sides.internal]
    if sides.settings is None:
        return list(of_internal(internal)), made
    remote = []
    for topic in topics:
        try:
            remote.append(sides.settings.remote_topic(topic))
        except PermanentError as error:
            looked.findings.append(of_error(error, Level.WARNING))
    made += [(topic, sides.settings.replication_factor) for topic in remote]
    return list(of_target(sides.settings, remote, internal)), made


async def _rights(
    sides: Sides, cluster: Cluster, name: str, needs: Sequence[Need], made: Iterable[tuple[str, int]], looked: Looked
) -> None:
    """Report missing rights, and topics that need more replicas than the cluster has brokers."""
    found = await allowed(cluster, {need.topic for need in needs if need.topic})
    for lack in lacks(needs, found):
        level = Level.ERROR if lack.is_certain and lack.topics else Level.WARNING
        looked.add(level, f"{sides.flow}, cluster {name}: {lack}", sides.line)
    too_many: dict[int, list[str]] = defaultdict(list)
    for topic, factor in made:
        if factor > found.brokers and found.topics.get(topic, NO_RIGHT) is None:
            too_many[factor].append(topic)
    for factor, topics in too_many.items():
        said = too_few_brokers(found.brokers, factor, topics)
        looked.add(Level.ERROR, f"{sides.flow}, cluster {name}: {said}", sides.line)


async def _transactional_ids(sides: Sides, target: Cluster, looked: Looked) -> None:
    """Check the right to transactional ids without taking a producer id: finding a coordinator needs DESCRIBE."""
    if sides.group_id is None or sides.settings is None:
        return
    prefix = f"{sides.group_id}-{sides.settings.name}-"
    try:
        await target.find_coordinator(f"{prefix}0", "transaction")
    except RetriableError:
        return  # because brokers check the ACL first; the cluster creates its transaction topic now
    except NotAuthorized:
        level, why = Level.WARNING, "without them a crash may duplicate records"
        if sides.settings.transactions:
            level, why = Level.ERROR, "exactly-once needs them"
        missing = f"WRITE and DESCRIBE on transactional ids with prefix {prefix} are missing; {why}"
        looked.add(level, f"{sides.flow}, cluster {sides.target}: {missing}", sides.line)


async def _group(sides: Sides, target: Cluster, looked: Looked) -> None:
    if sides.group_id is None:
        return
    while True:
        try:
            found = await group_rights(target, sides.group_id)
            break
        except RetriableError:  # because a cluster that has had no group creates its offsets topic first
            await asyncio.sleep(_AGAIN_S)
    if Operation.READ not in found:
        said = f"{sides.flow}, cluster {sides.target}: READ on group {sides.group_id} is missing"
        looked.add(Level.ERROR, said, sides.line)
