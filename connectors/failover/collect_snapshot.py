"""Collect what both clusters, or the target alone, know before a failover, and list what a mirror does not copy.

Clients need more than topics and offsets, such as SCRAM users and quotas, and only the source has it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from kafka.protocol.admin import (
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    ListTransactionsRequest,
)

from connect.core.errors import ClusterUnreachable, HeliographError
from connect.kafka.authorization import SecurityDisabled, describe_acls
from connect.kafka.cluster import Cluster, error_name, refusal_of
from connect.kafka.concurrency import Scope, wall_ms
from connect.kafka.log.committed_offsets import group_state
from connect.kafka.log.topic_admin import topic_values
from connectors.dataplane.log_divergence import known_topics
from connectors.failover import clusters_and_lease, journal
from connectors.failover.clusters_and_lease import Site
from connectors.failover.drain import CopiedEnd, FlowControl, first_rules, without_heartbeats
from connectors.failover.group_offsets import GroupsLook, in_topics, why_silent
from connectors.failover.offset_lookup import TargetOffsets
from connectors.failover.plan import Wish
from connectors.failover.reverse_flow import find_diverged, way_back
from connectors.failover.snapshot import GroupFinding, GroupRule, Groups, How, Snapshot, named
from connectors.flow_progress import FlowLag
from connectors.formats.types import TopicPartition
from connectors.heartbeat import read_heartbeats
from connectors.internal_topics import read_all_positions, read_positions, read_states, record_settings
from connectors.lag_reader import LagReader

_TOPIC: Final = "TOPIC"
_IDS: Final = "transactional ids"
#: How transactional ids of our commands begin, and those of the leader of a group of workers; those of tasks begin with
#: the name of the group (KIP-618).
_OURS: Final = "heliograph-"
_LEADER: Final = "connect-cluster-"
#: RESOURCE_NOT_FOUND, UNSUPPORTED_VERSION: there is none of it.
_NONE: Final = frozenset({91, 35})


async def only_at_source(source: Cluster, target: Cluster, workers: Collection[str] = ()) -> list[str]:
    """Notes about quotas, SCRAM users, ACLs and transactional ids. What a cluster does not show is named.

    Args:
        workers: Groups of workers of the mirror, whose transactional ids are left out.
    """
    ours = (_OURS, *(name for group in workers for name in (f"{group}-", f"{_LEADER}{group}")))
    notes, hidden = [], []
    for what, look in _LOOKS.items():
        try:
            here, there = await asyncio.gather(look(source), look(target))
        except HeliographError:
            hidden.append(what)
            continue
        only = sorted(one for one in here - there if what != _IDS or not one.startswith(ours))
        if only:
            notes.append(f"only cluster {source.name} has these {what}: {named(only)}")
    if hidden:
        notes.append(f"not compared, because a cluster does not show them: {', '.join(hidden)}")
    return notes


async def scram_users(cluster: Cluster) -> set[str]:
    answer = await (await cluster.any_connection()).call(DescribeUserScramCredentialsRequest(users=None))
    _check(cluster, answer.error_code, "SCRAM users")
    return {one.user for one in answer.results}


async def quotas(cluster: Cluster) -> set[str]:
    request = DescribeClientQuotasRequest(components=[], strict=False)
    answer = await (await cluster.any_connection()).call(request)
    _check(cluster, answer.error_code, "quotas")
    return {
        " ".join(f"{one.entity_type} {one.entity_name or '(default)'}" for one in entry.entity)
        for entry in answer.entries or ()
    }


async def transactional_ids(cluster: Cluster) -> set[str]:
    """Those that were in use lately."""
    found: set[str] = set()
    for node in (await cluster.metadata(frozenset())).brokers:
        connection = await cluster.connection(node)
        answer = await connection.call(ListTransactionsRequest(state_filters=[], producer_id_filters=[]))
        _check(cluster, answer.error_code, _IDS)
        found |= {one.transactional_id for one in answer.transaction_states}
    return found


async def acls(cluster: Cluster) -> set[str]:
    """But those of topics, which ``sync.topic.acls.enabled`` copies."""
    try:
        return {str(one) for one in await describe_acls(cluster) if one.resource_type != _TOPIC}
    except SecurityDisabled:
        return set()


_LOOKS: Final[dict[str, Callable[[Cluster], Awaitable[set[str]]]]] = {
    "SCRAM users": scram_users,
    "quotas": quotas,
    _IDS: transactional_ids,
    "ACLs": acls,
}


def _check(cluster: Cluster, code: int, what: str) -> None:
    if code and code not in _NONE:
        line = f"cluster {cluster.name} does not show its {what}: {error_name(code)}"
        raise refusal_of(code, line, changes=False)


T = TypeVar("T")

#: A lost cluster is to be reported soon.
_LOOK_S: Final = 15.0
#: Of all looks at a cluster together.
DEADLINE_S: Final = 60.0
#: Of the last heartbeats.
_HEARTBEATS: Final = 100
#: Each look waits for so long if a topic does not exist.
_GONE_AFTER_S: Final = 2.0
_LOG_APPEND_TIME: Final = "LogAppendTime"


class _Looks:
    """Looks that are made at the same time. What a cluster does not answer by its deadline is named, and holds up
    nothing else.

    Args:
        clusters: Their aliases, of which each has the deadline.
    """

    def __init__(self, scope: Scope, clusters: str) -> None:
        self._scope = scope
        self._clusters = clusters
        self._deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
        self.notes: list[str] = []
        self.obstacles: list[str] = []

    def begin(self, what: str, work: Coroutine[Any, Any, T], otherwise: T, cluster: str = "") -> asyncio.Task[T]:
        """``otherwise`` is what a look finds that has no answer. Raises as ``work``."""
        return self._scope.spawn(self._bounded(what, work, otherwise, cluster or self._clusters), what)

    async def _bounded(self, what: str, work: Coroutine[Any, Any, T], otherwise: T, cluster: str) -> T:
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await work
        except TimeoutError:
            self.obstacles.append(f"not looked at: {what}: cluster {cluster} has not answered within {DEADLINE_S:g} s")
        return otherwise


async def collect(site: Site, wish: Wish, back: FlowControl | None = None) -> Snapshot:
    """Look, and change nothing. ``back`` controls the flow back.

    Raises ClusterUnreachable if the target does not answer, else as the clusters.
    """
    here, there = site.flow.source_alias, site.flow.target_alias
    target_error, source_error = await asyncio.gather(
        why_silent(site.target, _LOOK_S), why_silent(site.source, _LOOK_S)
    )
    if target_error:
        raise ClusterUnreachable(f"cluster {there} does not answer, and no group can move there: {target_error}")
    source = None if source_error or wish.is_gone else site.source
    target_offsets = TargetOffsets(site, source)
    look_at = GroupsLook(site, wish, source, target_offsets)
    async with Scope("look before a failover") as scope:
        looks = _Looks(scope, there if source is None else f"{here} or {there}")
        if wish.is_gone and not source_error:
            looks.notes.append(f"cluster {here} answers, and is taken for gone, as --source-gone says")
        looking = looks.begin("groups", _groups(site, wish, target_offsets, look_at, looks), Groups())
        heartbeats = looks.begin("heartbeats", _copied_until_ms(site), -1, there)
        states = looks.begin("partitions that are not copied", not_copied(site, source), {})
        operators = looks.begin("other operators", _operators(site, has_source=source is not None), [])
        moved = looks.begin("journal", journal.moved(site), {}, there)
        if source is not None:
            lagging = looks.begin("lag", _lag(site, wish, source, looks), None, here)
            of_source = [
                looks.begin("what only the source has", _only_at_source(site, looks), None),
                looks.begin("where the flow back begins", _flow_back(site, wish, back, looks), None),
            ]
            diverged = looks.begin("logs that were truncated", find_diverged(site.turned()), {})
        groups, stopped, lag = await looking, await states, None
        if source is not None:
            lag = await lagging
            groups = _with_diverged(groups, await diverged)
            looks.notes += (await diverged).values()
            for one in of_source:
                await one
        if lag is not None:
            stopped |= {name: f"it could not be looked at: {why}" for name, why in lag.unknown.items()}
        if wish.is_gone:
            looks.notes += as_notes(stopped)
        return Snapshot(
            source=here,
            target=there,
            source_error=source_error,
            is_gone=wish.is_gone,
            lag=lag,
            copied_until_ms=await heartbeats,
            last_known=target_offsets.last_known(look_at.ahead) if source is None else None,
            groups=groups,
            moved=await moved,
            stopped=stopped,
            obstacles=(*await operators, *looks.obstacles),
            notes=tuple(looks.notes),
        )


async def _groups(site: Site, wish: Wish, target_offsets: TargetOffsets, look_at: GroupsLook, looks: _Looks) -> Groups:
    await target_offsets.begin()
    looks.notes += target_offsets.notes()
    if not target_offsets.there.sources():
        looks.notes.append(
            f"{site.flow.flow} has no offset map on cluster {site.flow.target_alias}: target offsets are by offset "
            "syncs"
        )
    if wish.is_gone:
        looks.notes += await _not_in_checkpoints(site, target_offsets)
        if (young_s := site.checkpoints.refresh_groups_interval_s) is not None:
            looks.notes.append(
                f"groups that began less than refresh.groups.interval.seconds ({young_s} s) before cluster "
                f"{site.flow.source_alias} was lost have no checkpoint, and are not known here: set them by time "
                "(kafka-consumer-groups.sh --reset-offsets --to-datetime)"
            )
    try:
        groups = await look_at.groups()
    except HeliographError as error:
        looks.obstacles.append(f"not looked at: {error}")
        return Groups()
    looks.notes += [
        f"group {group} was last seen at {in_utc(at_ms)}: what it has read since it reads again"
        for group, at_ms in sorted(look_at.seen_at_ms.items())
    ]
    groups, untold = await _with_clocks(site, groups)
    looks.notes += untold
    looks.obstacles += await _refused(site, wish, groups)
    return groups


async def _lag(site: Site, wish: Wish, source: Cluster, looks: _Looks) -> FlowLag | None:
    try:
        lag = await LagReader(site.flow, source, site.target).all()
    except HeliographError as error:
        looks.obstacles.append(f"not looked at: {error}")
        return None
    if wish.denies_writes:
        topics = {one.topic for one in without_heartbeats(lag.partitions, site.flow.policy)}
        rules = await first_rules(source, topics)
        looks.obstacles += [rules.why_not] if rules.why_not else []
        looks.notes += [rules.doubt] if rules.doubt else []
    return lag


async def _only_at_source(site: Site, looks: _Looks) -> None:
    looks.notes += await only_at_source(site.source, site.target, (site.flow_workers, site.back_workers))


async def _flow_back(site: Site, wish: Wish, back: FlowControl | None, looks: _Looks) -> None:
    positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    ends = {one: CopiedEnd(position.target_end) for one, position in positions.items()}
    looks.obstacles += (await way_back(site, ends, back, leaves_unreplicated=wish.leaves_unreplicated)).objections


def _with_diverged(groups: Groups, diverged: Mapping[TopicPartition, str]) -> Groups:
    """With what groups meet that would read ``diverged`` partitions of the target."""
    found = {
        (one.group, one.target): GroupFinding(one.group, GroupRule.DIVERGED, diverged[TopicPartition(*one.target)])
        for one in groups.moves
        if one.target in diverged
    }
    return replace(groups, findings=(*groups.findings, *found.values()))


async def _copied_until_ms(site: Site) -> int:
    """The time of the last heartbeat of the source on the target, in milliseconds since 1970; -1 if there is none, or
    if names do not say where heartbeats come from."""
    policy = site.flow.policy
    try:
        told = await read_heartbeats(site.target, [policy], _LOOK_S, _HEARTBEATS)
    except HeliographError:
        return -1  # it is a help for people; without it the rest still holds
    of_source = [one for one in told if policy.topic_source(one.topic) == site.flow.source_alias]
    return max((at_ms for one in of_source for at_ms in one.newest_ms.values()), default=-1)


async def _not_in_checkpoints(site: Site, target_offsets: TargetOffsets) -> list[str]:
    """Topics of the target without checkpoints there: its own, because the flow back wrote the checkpoints of their
    copies to the source, which is gone, and those of other clusters, because checkpoints are of the flow alone."""
    filled, back, policy = target_offsets.filled(), site.back, site.flow.policy
    names = [
        name
        for name in sorted((await site.target.metadata(None)).topics)
        if not policy.is_heartbeats_topic(name) and not policy.is_internal_topic(name)
    ]
    own = [name for name in names if back.enabled and name not in filled and back.should_mirror(name)]
    others = [name for name in names if policy.topic_source(name) in site.others]
    not_known = (
        f"no checkpoint has the offsets of groups of cluster {site.flow.source_alias} in the copies there, and --at "
        "does not move them: set them by hand"
    )
    return [
        *([f"{back.flow} mirrors {named(own)}: {not_known}"] if own else ()),
        *([f"cluster {site.flow.source_alias} may have copies of {named(others)}: {not_known}"] if others else ()),
    ]


async def not_copied(site: Site, source: Cluster | None) -> dict[str, str]:
    """By source partition, with the reason, of those that the flow selects and the ``source`` has; None cannot be asked
    which it has. Raises as the clusters."""
    states = await read_states(site.target, record_settings(site.flow))
    wanted = sorted(one for one in states if site.flow.should_mirror(one.topic))
    if source is not None:
        wanted = in_topics(wanted, await known_topics(source, {one.topic for one in wanted}, _GONE_AFTER_S))
    return {str(one): f"it is {states[one].state}: {states[one].reason}" for one in wanted}


def as_notes(stopped: Mapping[str, str]) -> list[str]:
    """If the source is gone, they are not copied any more, and what is moved is what was copied."""
    whys = [f"{name}: {why}" for name, why in stopped.items()]
    return [f"not copied to their ends: {named(whys, '; ')}"] if whys else []


async def _operators(site: Site, *, has_source: bool) -> list[str]:
    """Who else moves readers now, in this direction or the other."""
    known = [await clusters_and_lease.look(site.target, site.flow.map_topic, site.flow.flow)]
    if has_source:
        known.append(await clusters_and_lease.look(site.source, site.back.map_topic, site.back.flow))
    return [str(one) for one in known if one and one.is_held(wall_ms()) and one.run not in site.held]


async def _refused(site: Site, wish: Wish, groups: Groups) -> list[str]:
    flow, map_topic = site.flow.flow, site.flow.map_topic
    found = why_several(site.flow.name, flow, await read_all_positions(site.target, map_topic))
    goes_back = any(one.how is How.TIME or (one.goes_back and wish.rewinds_group(one.group)) for one in groups.moves)
    if goes_back and site.checkpoints.sync_interval_s is not None:
        members = (await group_state(site.target, site.flow_workers)).members
        if members:
            found.append(
                f"sync.group.offsets of {flow} moves groups forward again, behind --at and --rewind, while its workers "
                "run: set sync.group.offsets.enabled = false, start them again, and run this then"
            )
    return found


async def _with_clocks(site: Site, groups: Groups) -> tuple[Groups, list[str]]:
    """With what is found of groups whose target offsets are by a time that is not one of the source, and what is not
    known of it."""
    topics = {one.target[0] for one in groups.moves if one.how is How.TIME}
    kinds = await topic_values(site.target, topics, "message.timestamp.type")
    readers = {(one.group, one.target[0]) for one in groups.moves if kinds.get(one.target[0]) == _LOG_APPEND_TIME}
    findings = [
        GroupFinding(
            group,
            GroupRule.COPY_TIME,
            f"is set by the time at which records were copied: {topic} has message.timestamp.type = LogAppendTime",
        )
        for group, topic in sorted(readers)
    ]
    untold = sorted(topics - kinds.keys())
    notes = [f"{named(untold)} may have LogAppendTime, and then --at is the time of copying"] if untold else []
    return replace(groups, findings=(*groups.findings, *findings)), notes


def why_several(name: str, flow: str, stored: Collection[tuple[str, TopicPartition]]) -> list[str]:
    """Of connectors that copy the same partitions as ``name``: a group has one target offset only in what is moved."""
    ours = {one for connector, one in stored if connector == name}
    shared: dict[str, list[TopicPartition]] = {}
    for connector, one in sorted(stored):
        if connector != name and one in ours:
            shared.setdefault(connector, []).append(one)
    return [
        f"connector {other} copies {partitions[0]} as well, into a topic of its own, and this command moves readers "
        f"for {name} of {flow} alone: they would begin at no known offset there; move them by the checkpoints of both "
        f"(sync.group.offsets), or, if {other} is no more, delete its offsets"
        for other, partitions in shared.items()
    ]


async def groups_now(site: Site, wish: Wish) -> Groups:
    """Which offsets groups have at the source now, and on the target. Raises as the clusters."""
    target_offsets = TargetOffsets(site, site.source)
    await target_offsets.begin()
    return await GroupsLook(site, wish, site.source, target_offsets).groups()


def in_utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))
