"""What is known of both clusters before readers move, or of the target alone if the source is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.core.errors import ClusterUnreachable, HeliographError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.group_offsets import group_state
from connect.kafka.topic_configs import describe
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import TopicPartition
from connectors.failover import journal, lease
from connectors.failover.denying import first_rules
from connectors.failover.draining import CopiedEnd, FlowControl, without_heartbeats
from connectors.failover.group_reads import GroupsLook, why_silent
from connectors.failover.lease import is_held_at
from connectors.failover.only_at_source import only_at_source
from connectors.failover.places import Places
from connectors.failover.plan import Options
from connectors.failover.site import Site
from connectors.failover.snapshot import Finding, Groups, How, Rule, Snapshot
from connectors.failover.starting import way_back
from connectors.heartbeat_reader import read_heartbeats
from connectors.lag_reader import LagReader
from connectors.partition_states import read_states
from connectors.record_settings import record_settings
from connectors.stored_offsets import read_all_positions, read_positions

#: A lost cluster is to be reported soon.
_LOOK_S: Final = 15.0
_NAMED: Final = 5
#: Of the last heartbeats.
_HEARTBEATS: Final = 100
#: Each look waits for so long if a topic does not exist.
_GONE_AFTER_S: Final = 2.0
_LOG_APPEND_TIME: Final = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator wants.

    Args:
        takes: Which groups.
        options: What may happen to them.
        named: Those of them that have one name, and no pattern.
        at_ms: Target offsets by time; None by offset.
        topics: What those that are named read, by time, if the source is gone: its names.
        is_gone: The source counts as gone, whether it answers or not.
        leaves_unreplicated: The flow back may pass over records that only the target holds.
        sample: Records of each partition of a group that are compared.
    """

    takes: Callable[[str], bool]
    options: Options = field(default_factory=Options)
    named: frozenset[str] = frozenset()
    at_ms: int | None = None
    topics: frozenset[str] = frozenset()
    is_gone: bool = False
    sample: int = 10
    denies_writes: bool = False
    leaves_unreplicated: bool = False
    timeout_s: float = 600.0


async def collect(site: Site, wish: Wish, back: FlowControl | None = None) -> Snapshot:
    """Look, and change nothing. ``back`` controls the flow back.

    Raises ClusterUnreachable if the target does not answer, else as the clusters.
    """
    if error := await why_silent(site.target, _LOOK_S):
        raise ClusterUnreachable(
            f"cluster {site.flow.target_alias} does not answer, and no group can move there: {error}"
        )
    source_error = await why_silent(site.source, _LOOK_S)
    source = None if source_error or wish.is_gone else site.source
    notes, unknown, objections = list[str](), list[str](), list[str]()
    if wish.is_gone and not source_error:
        notes.append(f"cluster {site.flow.source_alias} answers, and is taken for gone, as --source-gone says")
    places = Places(site.flow, site.back, site.checkpoints, source, site.target)
    await places.begin()
    notes += places.notes()
    if not places.there.sources():
        notes.append(
            f"{site.flow.flow} has no offset map on cluster {site.flow.target_alias}: target offsets are by offset "
            "syncs"
        )
    if wish.is_gone:
        notes += await _not_in_checkpoints(site, places)
        if (young_s := site.checkpoints.refresh_groups_interval_s) is not None:
            notes.append(
                f"groups that began less than refresh.groups.interval.seconds ({young_s} s) before cluster "
                f"{site.flow.source_alias} was lost have no checkpoint, and are not known here: set them by time, --at "
                "TIME --group NAME --topic TOPIC"
            )
    look_at = _groups_look(site, wish, source, places)
    groups = Groups()
    try:
        groups = await look_at.groups()
    except HeliographError as error:
        unknown.append(str(error))
    notes += [
        f"group {group} was last seen at {in_utc(at_ms)}: what it has read since it reads again"
        for group, at_ms in sorted(look_at.seen_at_ms.items())
    ]
    copied_until_ms = await _copied_until_ms(site)
    lag, stopped = None, await not_copied(site, source)
    if source is not None:
        try:
            lag = await LagReader(site.flow, source, site.target).all()
            stopped |= {name: f"it could not be looked at: {why}" for name, why in lag.unknown.items()}
        except HeliographError as error:
            unknown.append(str(error))
    if wish.is_gone:
        notes += as_notes(stopped)
    if wish.denies_writes and lag is not None:
        topics = {one.topic for one in without_heartbeats(lag.partitions, site.flow.policy)}
        rules = await first_rules(site.source, topics)
        objections += [rules.why_not] if rules.why_not else []
        notes += [rules.doubt] if rules.doubt else []
    groups, untold = await _with_clocks(site, groups)
    objections += await _refused(site, wish, groups)
    if source is not None:
        notes += await only_at_source(source, site.target)
        positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
        ends = {one: CopiedEnd(position.target_end) for one, position in positions.items()}
        objections += (await way_back(site, ends, back, leaves_unreplicated=wish.leaves_unreplicated)).objections
    return Snapshot(
        source=site.flow.source_alias,
        target=site.flow.target_alias,
        source_error=source_error,
        is_gone=wish.is_gone,
        lag=lag,
        copied_until_ms=copied_until_ms,
        groups=groups,
        moved=journal.moved(await journal.interrupted(site)),
        stopped=stopped,
        operators=tuple(await _operators(site, has_source=source is not None)),
        objections=tuple(objections),
        notes=(*notes, *untold),
        unknown=tuple(unknown),
    )


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


async def _not_in_checkpoints(site: Site, places: Places) -> list[str]:
    """Topics of the target without checkpoints there: its own, because the flow back wrote the checkpoints of their
    copies to the source, which is gone, and those of other clusters, because checkpoints are of the flow alone."""
    filled, back = places.filled(), site.back
    names = sorted((await site.target.metadata(None)).topics)
    own = [
        name
        for name in names
        if back.enabled
        and name not in filled
        and back.should_mirror(name)
        and not back.policy.is_heartbeats_topic(name)
    ]
    policy = site.flow.policy
    others = [
        name
        for name in names
        if policy.topic_source(name) in site.others
        and not policy.is_heartbeats_topic(name)
        and not policy.is_internal_topic(name)
    ]
    return [
        *([_not_known(f"{back.flow} mirrors {_named(own)}", site)] if own else ()),
        *(
            [_not_known(f"cluster {site.flow.source_alias} may have copies of {_named(others)}", site)]
            if others
            else ()
        ),
    ]


def _named(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    return f"{', '.join(topics[:_NAMED])}{more}"


def _not_known(what: str, site: Site) -> str:
    return (
        f"{what}: no checkpoint has the offsets of groups of cluster {site.flow.source_alias} in the copies there, and "
        "--at does not move them: set them by hand"
    )


async def not_copied(site: Site, source: Cluster | None) -> dict[str, str]:
    """By source partition, with the reason, of those that the flow selects and the ``source`` has; None cannot be asked
    which it has. Raises as the clusters."""
    states = await read_states(site.target, record_settings(site.flow))
    wanted = sorted(one for one in states if site.flow.should_mirror(one.topic))
    if source is not None:
        wanted = in_topics(wanted, await known_topics(source, {one.topic for one in wanted}, _GONE_AFTER_S))
    return {str(one): f"it is {states[one].state}: {states[one].reason}" for one in wanted}


def in_topics(partitions: Collection[TopicPartition], topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    """Those of ``topics``; what cannot be looked into counts as there."""
    return [
        one
        for one in partitions
        if (topic := topics.get(one.topic)) is not None and (topic.error_code or one.partition in topic.partitions)
    ]


def as_notes(stopped: Mapping[str, str]) -> list[str]:
    """If the source is gone, they are not copied any more, and what is moved is what was copied."""
    lines = [f"{name} was not copied to its end: {why}" for name, why in stopped.items()]
    more = len(lines) - _NAMED
    return [*lines[:_NAMED], *([f"nor were {more} more partitions"] if more > 0 else [])]


async def _operators(site: Site, *, has_source: bool) -> list[str]:
    """Who else moves readers now, in this direction or the other."""
    known = [await lease.look(site.target, site.flow.map_topic, site.flow.flow)]
    if has_source:
        known.append(await lease.look(site.source, site.back.map_topic, site.back.flow))
    now_ms = time.time_ns() // 1_000_000
    held = [one for one in known if one and one.is_held(now_ms)]
    return [lease.in_words(one) for one in held if not one.is_of_the_dead and not is_held_at(site, one)]


async def _refused(site: Site, wish: Wish, groups: Groups) -> list[str]:
    flow, map_topic = site.flow.flow, site.flow.map_topic
    found = why_several(site.flow.name, flow, await read_all_positions(site.target, map_topic))
    options = wish.options
    goes_back = any(one.how is How.TIME or (one.goes_back and options.rewinds_group(one.group)) for one in groups.moves)
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
    findings, untold = list[Finding](), list[str]()
    for topic, configs in sorted((await describe(site.target, topics)).items() if topics else ()):
        kind = None if isinstance(configs, HeliographError) else configs.get("message.timestamp.type")
        if kind is None or kind.value is None:
            untold.append(topic)
        elif kind.value == _LOG_APPEND_TIME:
            why = f"is set by the time at which records were copied: {topic} has message.timestamp.type = LogAppendTime"
            readers = sorted({one.group for one in groups.moves if one.target[0] == topic})
            findings += [Finding(group, Rule.COPY_TIME, why) for group in readers]
    notes = [f"{', '.join(untold)} may have LogAppendTime, and then --at is the time of copying"] if untold else []
    return Groups(groups.found, groups.moves, (*groups.findings, *findings), groups.not_mirrored), notes


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
    places = Places(site.flow, site.back, site.checkpoints, site.source, site.target)
    await places.begin()
    return await _groups_look(site, wish, site.source, places).groups()


def _groups_look(site: Site, wish: Wish, source: Cluster | None, places: Places) -> GroupsLook:
    return GroupsLook(
        wish.takes,
        source,
        site.target,
        places,
        site.checkpoints.checkpoints_topic,
        wish.at_ms,
        named=wish.named,
        topics={site.flow.remote_topic(one) for one in wish.topics},
        others=site.others,
    )


def in_utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))
