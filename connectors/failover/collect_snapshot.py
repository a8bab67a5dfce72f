"""Collect what both clusters, or the target alone, know before a failover, and list what a mirror does not copy: users,
quotas and the like, which clients also need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeUserScramCredentialsRequest

from connect.core.errors import ClusterUnreachable, HeliographError
from connect.core.wording import in_utc, named
from connect.kafka.authorization import SecurityDisabled, describe_acls
from connect.kafka.cluster import Cluster, error_name, refusal_of
from connect.kafka.concurrency import Scope, wall_ms
from connect.kafka.log.active_producers import list_transactions
from connect.kafka.log.committed_offsets import group_state
from connect.kafka.log.topic_admin import topic_values
from connectors.dataplane.log_divergence import known_topics
from connectors.failover import clusters_and_lease, journal
from connectors.failover.clusters_and_lease import Site, read_positions
from connectors.failover.drain import CopiedEnd, FlowControl, first_rules, without_heartbeats
from connectors.failover.group_offsets import GroupsLook, in_topics, why_silent
from connectors.failover.offset_lookup import TargetOffsets
from connectors.failover.plan import FailoverOptions
from connectors.failover.reverse_flow import find_diverged, reverse_flow_check
from connectors.failover.snapshot import GroupFinding, GroupRule, Groups, How, Snapshot
from connectors.flow_progress import FlowLag
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.heartbeat import read_heartbeats
from connectors.internal_topics import read_all_positions, read_states, record_settings
from connectors.lag_reader import LagReader
from connectors.verification.state import LastVerification, read_last_run

_TOPIC: Final = "TOPIC"
_IDS: Final = "transactional ids"
#: Prefixes of transactional ids: those of our commands, and of the leader of a worker group; ids of tasks begin with
#: the name of the group (KIP-618).
_OURS: Final = "heliograph-"
_LEADER: Final = "connect-cluster-"
#: RESOURCE_NOT_FOUND, UNSUPPORTED_VERSION: the cluster has none.
_NONE: Final = frozenset({91, 35})


async def only_at_source(source: Cluster, target: Cluster, workers: Collection[str] = ()) -> list[str]:
    """Note quotas, SCRAM users, ACLs and transactional ids that only the source has, without those of the mirror's
    ``workers`` (groups), and what a cluster does not show."""
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
    return set(await list_transactions(cluster))


async def acls(cluster: Cluster) -> set[str]:
    """Return ACLs except those of topics, which ``sync.topic.acls.enabled`` copies."""
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
        line = f"cluster {cluster.name} does not list its {what}: {error_name(code)}"
        raise refusal_of(code, line, changes=False)


T = TypeVar("T")

#: Short, so that a lost cluster is reported soon.
_LOOK_S: Final = 15.0
#: For all reads of one cluster together.
DEADLINE_S: Final = 60.0
#: How many of the last heartbeats are read.
_HEARTBEATS: Final = 100
#: How long each read waits for a topic that does not exist.
_DELETED_AFTER_S: Final = 2.0
_LOG_APPEND_TIME: Final = "LogAppendTime"


class _Looks:
    """Concurrent reads. One without an answer by its deadline is reported, and delays no other."""

    def __init__(self, scope: Scope, clusters: str) -> None:
        self._scope, self._clusters = scope, clusters
        self._deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
        self.notes: list[str] = []
        self.obstacles: list[str] = []

    def begin(self, what: str, work: Coroutine[Any, Any, T], otherwise: T, cluster: str = "") -> asyncio.Task[T]:
        """Start a read; ``otherwise`` is its result if it has no answer in time."""
        return self._scope.spawn(self._bounded(what, work, otherwise, cluster or self._clusters), what)

    async def _bounded(self, what: str, work: Coroutine[Any, Any, T], otherwise: T, cluster: str) -> T:
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await work
        except TimeoutError:
            self.obstacles.append(f"{what} could not be read: cluster {cluster} did not answer within {DEADLINE_S:g} s")
        return otherwise


async def collect(site: Site, failover_options: FailoverOptions, back: FlowControl | None = None) -> Snapshot:
    """Read and change nothing. ``back`` controls the reverse flow. Raises ClusterUnreachable if the target does not
    answer."""
    here, there = site.flow.source_alias, site.flow.target_alias
    target_error, source_error = await asyncio.gather(
        why_silent(site.target, _LOOK_S), why_silent(site.source, _LOOK_S)
    )
    if target_error:
        raise ClusterUnreachable(f"cluster {there} does not answer, so no group can move there: {target_error}")
    source = None if source_error or failover_options.is_gone else site.source
    target_offsets = TargetOffsets(site, source)
    look_at = GroupsLook(site, failover_options, source, target_offsets)
    async with Scope("look before a failover") as scope:
        looks = _Looks(scope, there if source is None else f"{here} or {there}")
        if failover_options.is_gone and not source_error:
            looks.notes.append(f"cluster {here} answers, but counts as gone because of --source-gone")
        looking = looks.begin("groups", _groups(site, failover_options, target_offsets, look_at, looks), Groups())
        heartbeats = looks.begin("heartbeats", _copied_until_ms(site), -1, there)
        states = looks.begin("partitions that are not copied", not_copied(site, source), {})
        operators = looks.begin("other operators", _operators(site, has_source=source is not None), [])
        moved = looks.begin("journal", journal.moved(site), {}, there)
        last_run = looks.begin("the last verification", _last_run(site, source), None, there)
        if source is not None:
            lagging = looks.begin("lag", _lag(site, failover_options, source, looks), None, here)
            workers = site.flow_workers, site.back_workers
            only = looks.begin("what only the source has", only_at_source(source, site.target, workers), [])
            begins = looks.begin("where the reverse flow begins", _flow_back(site, failover_options, back, looks), None)
            diverged = looks.begin("logs that were truncated", find_diverged(site.turned()), {})
        groups, stopped, lag = await looking, await states, None
        if source is not None:
            lag = await lagging
            groups = _with_diverged(groups, await diverged)
            looks.notes += [*(await diverged).values(), *await only]
            await begins
        if lag is not None:
            stopped |= {name: f"its lag could not be read: {why}" for name, why in lag.unknown.items()}
        verified, verified_error = None, ""
        if isinstance(last := await last_run, LastVerification):
            verified = await last.facts(None if lag is None else lag.partitions, site.flow.policy)
        elif last is not None:
            verified_error = str(last)
        if failover_options.is_gone:
            looks.notes += as_notes(stopped)
        return Snapshot(
            source=here,
            target=there,
            source_error=source_error,
            is_gone=failover_options.is_gone,
            lag=lag,
            copied_until_ms=await heartbeats,
            last_known=target_offsets.last_known(look_at.ahead) if source is None else None,
            groups=groups,
            moved=await moved,
            stopped=stopped,
            verified=verified,
            verified_error=verified_error,
            obstacles=(*await operators, *looks.obstacles),
            notes=tuple(looks.notes),
        )


async def _groups(
    site: Site, failover_options: FailoverOptions, target_offsets: TargetOffsets, look_at: GroupsLook, looks: _Looks
) -> Groups:
    await target_offsets.begin()
    looks.notes += target_offsets.notes()
    if not target_offsets.there.sources():
        looks.notes.append(
            f"{site.flow.flow} has no offset map on cluster {site.flow.target_alias}: target offsets come from offset "
            "syncs"
        )
    if failover_options.is_gone:
        looks.notes += await _not_in_checkpoints(site, target_offsets)
        if (young_s := site.checkpoints.refresh_groups_interval_s) is not None:
            looks.notes.append(
                f"groups that started less than refresh.groups.interval.seconds ({young_s} s) before cluster "
                f"{site.flow.source_alias} was lost have no checkpoint and are not listed. Set them by time "
                "(kafka-consumer-groups.sh --reset-offsets --to-datetime)"
            )
    try:
        groups = await look_at.groups()
    except HeliographError as error:
        looks.obstacles.append(f"groups could not be read: {error}")
        return Groups()
    looks.notes += [
        f"group {group} was last seen at {in_utc(at_ms)}: it will read again what it has read since then"
        for group, at_ms in sorted(look_at.seen_at_ms.items())
    ]
    groups, unreported = await _with_clocks(site, groups)
    looks.notes += unreported
    looks.obstacles += await _refused(site, failover_options, groups)
    return groups


async def _lag(site: Site, failover_options: FailoverOptions, source: Cluster, looks: _Looks) -> FlowLag | None:
    try:
        lag = await LagReader(site.flow, source, site.target).all()
    except HeliographError as error:
        looks.obstacles.append(f"the lag could not be read: {error}")
        return None
    if failover_options.denies_writes:
        topics = {one.topic for one in without_heartbeats(lag.partitions, site.flow.policy)}
        rules = await first_rules(source, topics)
        looks.obstacles += [rules.why_not] if rules.why_not else []
        looks.notes += [rules.doubt] if rules.doubt else []
    return lag


async def _last_run(site: Site, source: Cluster | None) -> LastVerification | HeliographError | None:
    """Return an error instead of raising it: groups may move whatever the last verification found."""
    try:
        return await read_last_run(source, site.target, site.flow)
    except HeliographError as error:
        return error


async def _flow_back(site: Site, failover_options: FailoverOptions, back: FlowControl | None, looks: _Looks) -> None:
    positions = await read_positions(site)
    ends = {one: CopiedEnd(position.target_end) for one, position in positions.items()}
    looks.obstacles += (
        await reverse_flow_check(site, ends, back, leaves_unreplicated=failover_options.leaves_unreplicated)
    ).objections


def _with_diverged(groups: Groups, diverged: Mapping[TopicPartition, str]) -> Groups:
    """Add a finding for each group that would read one of the ``diverged`` partitions of the target."""
    found = {
        (one.group, one.target): GroupFinding(one.group, GroupRule.DIVERGED, diverged[TopicPartition(*one.target)])
        for one in groups.moves
        if one.target in diverged
    }
    return replace(groups, findings=(*groups.findings, *found.values()))


async def _copied_until_ms(site: Site) -> int:
    """Return when the source's last heartbeat on the target was written, in milliseconds since 1970; -1 if there is
    none, or if topic names do not say where heartbeats come from."""
    policy = site.flow.policy
    try:
        reported = await read_heartbeats(site.target, [policy], _LOOK_S, _HEARTBEATS)
    except HeliographError:
        return -1  # only a hint for people; the rest holds without it
    of_source = [one for one in reported if policy.topic_source(one.topic) == site.flow.source_alias]
    return max((at_ms for one in of_source for at_ms in one.newest_ms.values()), default=-1)


async def _not_in_checkpoints(site: Site, target_offsets: TargetOffsets) -> list[str]:
    """Note topics of the target without checkpoints there. The reverse flow wrote the checkpoints for copies of the
    target's own topics to the source, which is gone; topics of other clusters have checkpoints of other flows."""
    filled, back, policy = target_offsets.filled(), site.back, site.flow.policy
    names = [
        name
        for name in sorted((await site.target.metadata(None)).topics)
        if not policy.is_heartbeats_topic(name) and not policy.is_internal_topic(name)
    ]
    own = [name for name in names if back.enabled and name not in filled and back.should_mirror(name)]
    others = [name for name in names if policy.topic_source(name) in site.others]
    not_known = (
        f"no checkpoint has the offsets that groups of cluster {site.flow.source_alias} have in the copies there, and "
        "--at does not move them. Set them by hand"
    )
    return [
        *([f"{back.flow} mirrors {named(own)}: {not_known}"] if own else ()),
        *([f"cluster {site.flow.source_alias} may have copies of {named(others)}: {not_known}"] if others else ()),
    ]


async def not_copied(site: Site, source: Cluster | None) -> dict[str, str]:
    """Return why source partitions are stopped, of those that the flow selects and the ``source`` has."""
    states = await read_states(site.target, record_settings(site.flow))
    wanted = sorted(one for one in states if site.flow.should_mirror(one.topic))
    if source is not None:
        wanted = in_topics(wanted, await known_topics(source, {one.topic for one in wanted}, _DELETED_AFTER_S))
    return {str(one): f"it is {states[one].state}: {states[one].reason}" for one in wanted}


def as_notes(stopped: Mapping[str, str]) -> list[str]:
    """As notes, for a source that is gone: these partitions move only as far as they were copied."""
    reasons = [f"{name}: {why}" for name, why in stopped.items()]
    return [f"not copied to their ends: {named(reasons, between='; ')}"] if reasons else []


async def _operators(site: Site, *, has_source: bool) -> list[str]:
    """Name operators who are moving readers now, in either direction."""
    known = [await clusters_and_lease.look(site.target, site.flow.map_topic, site.flow.flow)]
    if has_source:
        known.append(await clusters_and_lease.look(site.source, site.back.map_topic, site.back.flow))
    return [str(one) for one in known if one and one.is_held(wall_ms()) and one.run not in site.held]


async def _refused(site: Site, failover_options: FailoverOptions, groups: Groups) -> list[str]:
    flow, map_topic = site.flow.flow, site.flow.map_topic
    stored = await read_all_positions(site.target, map_topic)
    found = why_several(site.flow.name, flow, stored, failover_options.retired)
    goes_back = any(
        one.how is How.TIME or (one.goes_back and failover_options.rewinds_group(one.group)) for one in groups.moves
    )
    syncs = site.checkpoints.sync_interval_s is not None
    if goes_back and syncs and (await group_state(site.target, site.flow_workers)).members:
        found.append(
            f"sync.group.offsets of {flow} would undo --at and --rewind, because its workers run and move groups "
            "forward. Set sync.group.offsets.enabled = false, restart the workers and run this again"
        )
    return found


async def _with_clocks(site: Site, groups: Groups) -> tuple[Groups, list[str]]:
    """Add findings for groups that would move by the time of copying; note topics of unknown timestamp type."""
    topics = {one.target[0] for one in groups.moves if one.how is How.TIME}
    kinds = await topic_values(site.target, topics, "message.timestamp.type")
    readers = {(one.group, one.target[0]) for one in groups.moves if kinds.get(one.target[0]) == _LOG_APPEND_TIME}
    findings = [
        GroupFinding(
            group,
            GroupRule.COPY_TIME,
            f"would move by the time at which records were copied: {topic} has message.timestamp.type = LogAppendTime",
        )
        for group, topic in sorted(readers)
    ]
    unreported = sorted(topics - kinds.keys())
    note = f"{named(unreported)} may have LogAppendTime, so that --at means the time of copying"
    return replace(groups, findings=(*groups.findings, *findings)), [note] if unreported else []


def why_several(
    name: str, flow: str, stored: Mapping[tuple[str, TopicPartition], Position], retired: frozenset[str]
) -> list[str]:
    """Report connectors that copy the same partitions as ``name`` into other topics, because only one target offset of
    a group moves. One that copied into the same topics is a predecessor under another name. A ``retired`` one counts
    no more: the map keeps the positions of deleted connectors. A retired one without positions is a mistake."""
    ours = {one: position.target_topic for (connector, one), position in stored.items() if connector == name}
    shared: dict[str, list[TopicPartition]] = {}
    for (connector, one), position in sorted(stored.items()):
        if (
            connector not in retired
            and connector != name
            and ours.get(one, position.target_topic) != position.target_topic
        ):
            shared.setdefault(connector, []).append(one)
    return [
        f"connector {other} also copies {partitions[0]}, into another topic, and this command moves readers for {name} "
        f"of {flow} alone, so they would have no known offset there. Move them by the checkpoints of both "
        f"(sync.group.offsets) or, if {other} will not run again, use --retired {other}"
        for other, partitions in shared.items()
    ] + [
        f"no connector {one} copies into the target of {flow}. Check --retired"
        for one in sorted(retired - {connector for connector, _ in stored if connector != name})
    ]


async def groups_now(site: Site, failover_options: FailoverOptions) -> Groups:
    """Read the offsets that groups have now at the source and on the target."""
    target_offsets = TargetOffsets(site, site.source)
    await target_offsets.begin()
    return await GroupsLook(site, failover_options, site.source, target_offsets).groups()
