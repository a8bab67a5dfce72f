"""Groups, and partitions of theirs, of which no checkpoint tells, where the source is gone: by time they have places
too. And topics whose times are not those of the source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Committed, Partition, committed
from connect.kafka.offsets import LATEST, told_offsets
from connect.kafka.topic_configs import describe
from connectors.failover.model import GroupMove, How, Left, Place, move_of

#: Where a group stands on a source that is gone.
_UNKNOWN: Final = Committed(-1, "")
_LOG_APPEND_TIME: Final = "LogAppendTime"


class Unseen(NamedTuple):
    """What no checkpoint tells of: where it goes by time, without a place yet, and what is to be said."""

    moves: list[GroupMove]
    left: list[Left]


async def unseen(
    target: Cluster,
    moves: Sequence[GroupMove],
    present: Mapping[str, Mapping[Partition, Committed]],
    named: Collection[str],
    topics: Collection[str],
    filled: Collection[str],
    *,
    is_by_time: bool,
) -> Unseen:
    """Of the groups in ``moves``, which are by checkpoint, and those that are ``named``.

    Args:
        present: What groups have stored on the target, as far as that was asked for.
        topics: Remote topics that those that are named read.
        filled: Remote topics that are known; what a group has stored of others is not of the source.

    Raises as the target.
    """
    known: dict[str, set[Partition]] = {group: set() for group in named}
    for one in moves:
        known.setdefault(one.group, set()).add(one.target)
    stored = {group: present[group] if group in present else await committed(target, group) for group in sorted(known)}
    reads = {
        group: {topic for topic, _ in known[group]}
        | {topic for topic, _ in stored[group] if topic in filled}
        | {topic for topic in topics if group in named}
        for group in stored
    }
    there = await _partitions(target, {topic for some in reads.values() for topic in some})
    found = Unseen([], [])
    for group, some in reads.items():
        missing = [one for topic in sorted(some) for one in there.get(topic, ()) if one not in known[group]]
        if group in named:
            found.left.extend(_no_topic(target, group, topic) for topic in sorted(topics) if topic not in there)
        if not some:
            found.left.append(_nowhere(target, group, is_by_time=is_by_time))
        elif is_by_time:
            found.moves.extend(
                move_of(group, one, _UNKNOWN, Place(*one, -1, How.TIME), stored[group]) for one in missing
            )
        elif known[group]:
            missing = [one for one in missing if one not in stored[group]]
            found.left.extend(await _without_place(target, group, missing))
        else:
            found.left.append(_stays(target, group))
    return found


async def _partitions(target: Cluster, topics: Collection[str]) -> dict[str, list[Partition]]:
    """Of those that are there."""
    known = (await target.metadata(set(topics))).topics if topics else {}
    return {name: [(name, index) for index in sorted(one.partitions)] for name, one in known.items() if one.partitions}


def _no_topic(target: Cluster, group: str, topic: str) -> Left:
    return Left(group, "", f"cluster {target.name} has no topic {topic}, or does not show it")


def _nowhere(target: Cluster, group: str, *, is_by_time: bool) -> Left:
    remedy = "say what it reads with --topic" if is_by_time else "--at and --topic set it by time"
    why = f"no checkpoint tells of it, and it has stored nothing on cluster {target.name} of what was copied: {remedy}"
    return Left(group, "", why)


def _stays(target: Cluster, group: str) -> Left:
    why = f"no checkpoint tells of it: it stays where it stands on cluster {target.name}; --at sets it by time"
    return Left(group, "", why, is_obstacle=False)


async def _without_place(target: Cluster, group: str, partitions: Sequence[Partition]) -> list[Left]:
    """A partition that is empty needs none."""
    ends, _ = await told_offsets(target, partitions, LATEST) if partitions else ({}, {})
    names = ", ".join(f"{topic}-{index}" for topic, index in partitions if ends.get((topic, index), 1))
    if not names:
        return []
    why = f"no checkpoint tells of {names}: it begins there where its auto.offset.reset says; --at sets it by time"
    return [Left(group, "", why, is_obstacle=False)]


class Clocks(NamedTuple):
    """Topics whose records have the time at which they were copied, and those that do not tell."""

    of_copies: list[str]
    untold: list[str]


async def clocks(target: Cluster, topics: Collection[str]) -> Clocks:
    """Raises as the target."""
    found = Clocks([], [])
    for topic, configs in sorted((await describe(target, topics)).items() if topics else ()):
        kind = None if isinstance(configs, HeliographError) else configs.get("message.timestamp.type")
        if kind is None or kind.value is None:
            found.untold.append(topic)
        elif kind.value == _LOG_APPEND_TIME:
            found.of_copies.append(topic)
    return found
