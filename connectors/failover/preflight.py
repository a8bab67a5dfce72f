"""What is to be known before anything is done: asked of both clusters, or of the target where the source is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from connect.core.errors import ClusterUnreachable, HeliographError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.group_offsets import Partition, group_state
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import TopicPartition
from connectors.failover import lease
from connectors.failover.behind import without_heartbeats
from connectors.failover.by_time import clocks
from connectors.failover.denying import FirstRules, first_rules
from connectors.failover.draining import CopiedEnd, FlowControl
from connectors.failover.group_look import GroupsLook, still_there
from connectors.failover.lease import is_held_at
from connectors.failover.model import GroupsPlan, How, Preflight, with_moved, with_rewinds
from connectors.failover.places import Places
from connectors.failover.site import Site
from connectors.failover.way_back import way_back
from connectors.lag import FlowLag
from connectors.lag_reader import LagReader
from connectors.partition_states import read_states
from connectors.record_settings import record_settings
from connectors.stored_offsets import read_all_positions, read_positions

#: What somebody may accept: groups that stand further on the target, groups that read what no flow carries,
#: checkpoints that lie beyond the copy, records that the target has deleted and the source has not, times at which
#: records were copied.
AHEAD: Final = "ahead"
NOT_MIRRORED: Final = "not-mirrored"
CHECKPOINTS: Final = "checkpoints"
DELETED: Final = "deleted"
COPY_TIME: Final = "copy-time"
ACCEPTABLE: Final = (AHEAD, NOT_MIRRORED, CHECKPOINTS, DELETED, COPY_TIME)
#: A lost cluster is to be told of soon.
_LOOK_S: Final = 15.0
_NAMED: Final = 5
#: Each look waits for so long if a topic does not exist.
_GONE_AFTER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the person wants.

    Args:
        takes: Which groups.
        named: Those of them that have one name, and no pattern.
        at_ms: Positions by time; None by offset.
        topics: What those that are named read, by time, where the source is gone: its names.
        is_gone: The source counts as gone, whether it answers or not.
        rewinds: Groups may go back on the target.
        leaves_stranded: The flow back may pass over records that only the target holds.
        accepts: What is in the way no more: some of :data:`ACCEPTABLE`.
        sample: Records of each partition of a group that are compared.
    """

    takes: Callable[[str], bool]
    named: frozenset[str] = frozenset()
    at_ms: int | None = None
    topics: frozenset[str] = frozenset()
    is_gone: bool = False
    rewinds: bool = False
    sample: int = 10
    denies_writes: bool = False
    leaves_stranded: bool = False
    timeout_s: float = 600.0
    accepts: frozenset[str] = frozenset()


async def look(
    site: Site,
    wish: Wish,
    back: FlowControl | None = None,
    moved: Mapping[tuple[str, Partition], int] | None = None,
) -> Preflight:
    """Look, and change nothing. ``back`` speaks of the flow back; ``moved`` is where an interrupted run has put groups.

    Raises ClusterUnreachable where the target does not answer, else as the clusters.
    """
    if error := await still_there(site.target, _LOOK_S):
        raise ClusterUnreachable(
            f"cluster {site.flow.target_alias} does not answer, and nothing can move there: {error}"
        )
    source_error = await still_there(site.source, _LOOK_S)
    source = None if source_error or wish.is_gone else site.source
    notes, unknown = list[str](), list[str]()
    if wish.is_gone and not source_error:
        notes.append(f"cluster {site.flow.source_alias} answers, and is taken for gone, as --source-gone says")
    places = Places(site.flow, site.back, site.checkpoints, source, site.target)
    await places.begin()
    notes += places.notes()
    if not places.there.sources():
        notes.append(
            f"{site.flow.flow} has no offset map on cluster {site.flow.target_alias}: places are by offset syncs"
        )
    if wish.is_gone:
        notes += await _not_in_checkpoints(site, places)
    look_at = _groups_look(site, wish, source, places)
    groups, not_mirrored = GroupsPlan(), tuple[str, ...]()
    try:
        groups, not_mirrored = await look_at.plan()
    except HeliographError as error:
        unknown.append(str(error))
    notes += [
        f"group {group} was last seen at {in_utc(at_ms)}: what it has read since it reads again"
        for group, at_ms in sorted(look_at.seen_at_ms.items())
    ]
    lag = None
    if source is not None:
        try:
            lag = await LagReader(site.flow, source, site.target).all()
            unknown += [f"{name}: {why}" for name, why in lag.unknown.items()]
        except HeliographError as error:
            unknown.append(str(error))
    if source is None and wish.at_ms is None and not wish.rewinds:
        groups = with_moved(groups, moved or {})
    groups = with_rewinds(groups, allowed=wish.rewinds or wish.at_ms is not None, keeps=AHEAD in wish.accepts)
    stopped = await not_copied(site, source)
    if wish.is_gone:
        notes += as_notes(stopped)
        stopped = {}
    first = await _first_rules(site, wish, lag)
    clock = await _clock(site, wish, groups)
    return Preflight(
        source=site.flow.source_alias,
        target=site.flow.target_alias,
        source_error=source_error,
        is_gone=wish.is_gone,
        lag=lag,
        groups=groups,
        not_mirrored=not_mirrored,
        stopped=stopped,
        refused=(*await _refused(site, wish, groups), *_said(first.why_not), *clock.refused),
        in_the_way=tuple(await _in_the_way(site, wish, back, has_source=source is not None)),
        notes=(*notes, *_said(first.doubt), *clock.notes),
        unknown=tuple(unknown),
    )


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
    """Those of ``topics``; what cannot be looked into counts as there (pure)."""
    return [
        one
        for one in partitions
        if (topic := topics.get(one.topic)) is not None and (topic.error_code or one.partition in topic.partitions)
    ]


def as_notes(stopped: Mapping[str, str]) -> list[str]:
    """Where the source is gone: nobody copies them any more, and what is moved is what was copied (pure)."""
    lines = [f"{name} was not copied to its end: {why}" for name, why in stopped.items()]
    more = len(lines) - _NAMED
    return [*lines[:_NAMED], *([f"nor were {more} more partitions"] if more > 0 else [])]


async def _in_the_way(site: Site, wish: Wish, back: FlowControl | None, *, has_source: bool) -> list[str]:
    found = await _in_hand(site, has_source=has_source)
    if not has_source:
        return found
    positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    ends = {one: CopiedEnd(position.target_end) for one, position in positions.items()}
    return found + (await way_back(site, ends, back, leaves_stranded=wish.leaves_stranded)).objections


async def _in_hand(site: Site, *, has_source: bool) -> list[str]:
    """Who else moves readers now, in this direction or the other."""
    known = [await lease.look(site.target, site.flow.map_topic, site.flow.flow)]
    if has_source:
        known.append(await lease.look(site.source, site.back.map_topic, site.back.flow))
    now_ms = time.time_ns() // 1_000_000
    held = [one for one in known if one and one.is_held(now_ms)]
    return [lease.in_words(one) for one in held if not one.is_of_the_dead and not is_held_at(site, one)]


async def _refused(site: Site, wish: Wish, groups: GroupsPlan) -> list[str]:
    flow, map_topic = site.flow.flow, site.flow.map_topic
    found = why_several(site.flow.name, flow, await read_all_positions(site.target, map_topic))
    goes_back = any(one.how is How.TIME or one.goes_back for one in groups.moves)
    if goes_back and site.checkpoints.sync_interval_s is not None:
        members = (await group_state(site.target, site.flow_workers)).members
        if members:
            found.append(
                f"sync.group.offsets of {flow} moves groups forward again, behind --at and --rewind, while its workers "
                "run: set sync.group.offsets.enabled = false, start them again, and run this then"
            )
    return found


class _Clock(NamedTuple):
    refused: list[str]
    notes: list[str]


async def _clock(site: Site, wish: Wish, groups: GroupsPlan) -> _Clock:
    """Whether --at is a time of the source in the topics that groups go to."""
    found = _Clock([], [])
    topics = {one.target[0] for one in groups.moves if one.how is How.TIME}
    if not topics:
        return found
    told = await clocks(site.target, topics)
    if told.of_copies:
        why = (
            f"records of {', '.join(told.of_copies)} have the time at which they were copied "
            "(message.timestamp.type = LogAppendTime), and --at is taken for that"
        )
        if COPY_TIME in wish.accepts:
            found.notes.append(why)
        else:
            found.refused.append(
                f"{why}: choose it by when they came to cluster {site.target.name}; --accept copy-time"
            )
    if told.untold:
        why = f"{', '.join(told.untold)} may have LogAppendTime, and then --at is the time of copying"
        found.notes.append(f"{why}: grant DESCRIBE_CONFIGS there, to know")
    return found


async def _first_rules(site: Site, wish: Wish, lag: FlowLag | None) -> FirstRules:
    if not wish.denies_writes or lag is None:
        return FirstRules()
    return await first_rules(site.source, {one.topic for one in without_heartbeats(lag.partitions, site.flow.policy)})


def _said(words: str) -> list[str]:
    return [words] if words else []


def why_several(name: str, flow: str, stored: Collection[tuple[str, TopicPartition]]) -> list[str]:
    """Of connectors that copy the same partitions as ``name`` (pure): a group has one place only in what is moved."""
    ours = {one for connector, one in stored if connector == name}
    shared: dict[str, list[TopicPartition]] = {}
    for connector, one in sorted(stored):
        if connector != name and one in ours:
            shared.setdefault(connector, []).append(one)
    return [
        f"connector {other} copies {partitions[0]} as well, into a topic of its own, and this command moves readers "
        f"for {name} of {flow} alone: they would begin at no known place there; move them by the checkpoints of both "
        f"(sync.group.offsets), or, if {other} is no more, delete its offsets"
        for other, partitions in shared.items()
    ]


async def groups_now(site: Site, wish: Wish) -> GroupsPlan:
    """Where the groups stand at the source now, and go. Raises as the clusters."""
    places = Places(site.flow, site.back, site.checkpoints, site.source, site.target)
    await places.begin()
    plan, _ = await _groups_look(site, wish, site.source, places).plan()
    return plan


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
        leaves_topics=NOT_MIRRORED in wish.accepts,
        trusts_checkpoints=CHECKPOINTS in wish.accepts,
        skips_deleted=DELETED in wish.accepts,
    )


def in_utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))
