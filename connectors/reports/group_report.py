"""Report where the consumer groups of a flow are on both clusters, and whether they are synced into the target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from connect.core.wording import counted
from connect.kafka.concurrency import together, wall_ms
from connect.kafka.log.committed_offsets import GroupListing, Partition, list_groups
from connect.kafka.log.compacted_topic import LogRecord, read_if_exists
from connect.kafka.log.offsets import LATEST, known_offsets
from connectors.checkpoint.group_checkpoints import why_no_checkpoints
from connectors.checkpoint.group_offset_sync import AHEAD, why_left
from connectors.config.connector_configs import CheckpointSettings
from connectors.failover.clusters_and_lease import Site
from connectors.failover.group_offsets import GroupsLook
from connectors.failover.offset_lookup import LEADER_S, TargetOffsets
from connectors.failover.plan import FailoverOptions
from connectors.failover.snapshot import GroupFinding, GroupMove, Groups, How
from connectors.failover.words import move_as_json
from connectors.formats.mirror_records import Checkpoint

#: Groups whose offsets one report reads; a search finds the others.
MOST_READ: Final = 200
_OfGroup = TypeVar("_OfGroup", GroupMove, GroupFinding)


@dataclass(frozen=True, slots=True)
class GroupsSeen:
    """What both clusters answered. ``read`` groups have offsets in ``groups``; ends are by partition of each cluster;
    ``checkpoint_ms`` is when a group's last checkpoint was written."""

    read: Sequence[str]
    groups: Groups
    at_source: Mapping[str, GroupListing]
    at_target: Mapping[str, GroupListing]
    source_ends: Mapping[Partition, int] = field(default_factory=dict)
    target_ends: Mapping[Partition, int] = field(default_factory=dict)
    checkpoint_ms: Mapping[str, int] = field(default_factory=dict)


async def read_groups(site: Site, search: str, group: str) -> tuple[GroupsSeen, int]:
    """Read the groups of the source whose names contain ``search``, or ``group`` alone. Return also how many match.

    Raises HeliographError if a cluster does not answer.
    """
    at_source, at_target = await together("groups", [list_groups(site.source), list_groups(site.target)])
    matching = sorted(name for name, one in at_source.items() if one.has_offsets and _matches(name, search, group))
    read = matching[:MOST_READ]
    offsets = TargetOffsets(site, site.source)
    await offsets.begin()
    options = FailoverOptions(takes=frozenset(read).__contains__)
    groups = await GroupsLook(site, options, site.source, offsets).groups()
    ends = [
        known_offsets(cluster, partitions, LATEST, leader_s=LEADER_S)
        for cluster, partitions in (
            (site.source, {one.source for one in groups.moves}),
            (site.target, {one.target for one in groups.moves}),
        )
    ]
    (source_ends, _), (target_ends, _) = await together("ends of partitions", ends)
    written = await _checkpoint_ms(site, frozenset(read))
    return GroupsSeen(read, groups, at_source, at_target, source_ends, target_ends, written), len(matching)


def _matches(name: str, search: str, group: str) -> bool:
    return name == group if group else search.lower() in name.lower()


async def _checkpoint_ms(site: Site, groups: Collection[str]) -> dict[str, int]:
    """Return when the last checkpoint of each group was written."""
    found: dict[str, int] = {}

    def take(record: LogRecord) -> None:
        group = Checkpoint.decode(record.key, record.value).group
        if group in groups:
            found[group] = max(record.timestamp_ms, found.get(group, -1))

    await read_if_exists(site.target, site.checkpoints.checkpoints_topic, take, read_committed=True, only_last=True)
    return found


def groups_as_json(
    settings: CheckpointSettings, seen: GroupsSeen, matching: int, top: int, *, with_partitions: bool, search: str = ""
) -> dict[str, Any]:
    """Return the ``top`` groups: first those that need attention, then those with the highest lag at the source.
    ``with_partitions``: also each group's ``top`` partitions with the highest lag whose topic contains ``search``."""
    moves, findings = by_group(seen.groups.moves), by_group(seen.groups.findings)
    rows = [_row(settings, seen, name, moves.get(name, []), findings.get(name, [])) for name in seen.read]
    rows.sort(key=lambda row: (not row["needs_attention"], -row["source_lag"], row["group"]))
    if with_partitions:
        for row in rows:
            row["partitions"] = _partitions(seen, moves.get(row["group"], []), search)[:top]
    return {
        "connector": settings.name,
        "flow": settings.flow,
        "source": settings.source_alias,
        "target": settings.target_alias,
        "at_ms": wall_ms(),
        "sync": sync_off(settings) or f"every {settings.sync_interval_s} s",
        "matching": matching,
        "read": len(seen.read),
        "groups": rows[:top],
    }


def by_group(found: Iterable[_OfGroup]) -> dict[str, list[_OfGroup]]:
    """Return moves or findings by their groups."""
    groups: dict[str, list[_OfGroup]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    return groups


def _row(
    settings: CheckpointSettings,
    seen: GroupsSeen,
    name: str,
    moves: Sequence[GroupMove],
    findings: Sequence[GroupFinding],
) -> dict[str, Any]:
    here, there = seen.at_source.get(name), seen.at_target.get(name)
    state = sync_state(settings, name, here, there, moves)
    by_map = [one for one in moves if one.how is not How.SYNCS]
    return {
        "group": name,
        "source_state": here.state if here else "",
        "target_state": there.state if there else "",
        "partition_count": len(moves),
        "exact": len(by_map),
        "by_syncs": len(moves) - len(by_map),
        "source_lag": sum(_lag(seen.source_ends, one.source, one.source_offset) for one in moves),
        "target_lag": sum(_lag(seen.target_ends, one.target, one.before) for one in moves),
        "not_on_target": sum(one.before is None for one in moves),
        "synced": state.why == "",
        "why_not_synced": state.why,
        "needs_attention": state.needs_attention,
        "checkpoint_ms": seen.checkpoint_ms.get(name),
        # Its states say that it is in use.
        "findings": [str(one) for one in findings if not one.rule.value.startswith("used ")],
    }


def _partitions(seen: GroupsSeen, moves: Sequence[GroupMove], search: str) -> list[dict[str, Any]]:
    """Return a group's partitions, those with the highest lag at the source first."""
    rows = [
        {
            **move_as_json(one),
            "source_lag": _lag(seen.source_ends, one.source, one.source_offset),
            "target_lag": None if one.before is None else _lag(seen.target_ends, one.target, one.before),
        }
        for one in moves
        if search.lower() in one.source[0].lower()
    ]
    return sorted(rows, key=lambda row: (-row["source_lag"], row["topic"], row["partition"]))


def _lag(ends: Mapping[Partition, int], partition: Partition, offset: int | None) -> int:
    """Return records between an offset and the end; 0 if either is unknown."""
    end = ends.get(partition)
    return 0 if end is None or offset is None or offset < 0 else max(end - offset, 0)


def sync_off(settings: CheckpointSettings) -> str:
    """Why no group of the flow is synced; empty if groups are."""
    if settings.emit_interval_s is None:
        return "off: emit.checkpoints.enabled = false"
    return "off: sync.group.offsets.enabled = false" if settings.sync_interval_s is None else ""


class SyncState(NamedTuple):
    """Why ``sync.group.offsets`` does not hold a group at its target offsets; empty if it does."""

    why: str = ""
    needs_attention: bool = False


def sync_state(
    settings: CheckpointSettings,
    name: str,
    here: GroupListing | None,
    there: GroupListing | None,
    moves: Sequence[GroupMove],
) -> SyncState:
    """Return whether a group with these ``moves`` is synced; ``here`` and ``there`` are its listings."""
    if why := sync_off(settings):
        return SyncState(why)
    if not settings.group_filter.should_replicate_group(name):
        return SyncState("filtered: groups and groups.exclude do not select it")
    if why := (why_no_checkpoints(name, here) if here else "") or why_left(there):
        return SyncState(why, needs_attention=True)
    if not moves:
        return SyncState("no partition of it is mirrored")
    if ahead := sum(one.goes_back > 0 for one in moves):
        return SyncState(f"{counted(ahead, 'partition')}: {AHEAD}", needs_attention=True)
    if waiting := sum(not one.is_done for one in moves):
        return SyncState(f"{counted(waiting, 'partition')} to be moved by a sync, every {settings.sync_interval_s} s")
    return SyncState()
