"""What a failover has changed, put back as far as nobody has gone on since."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace

from connect.kafka.group_offsets import Committed, GroupInUse, Partition, committed, forget, move
from connectors.failover.denying import allow_writes
from connectors.failover.draining import FlowControl, Tell, why_back_runs, why_running
from connectors.failover.site import Site
from connectors.failover.starting import undo_starts
from connectors.failover.undo import GroupBefore, StartBefore, Undo


async def take_back(
    site: Site, record: Undo, tell: Tell, controls: tuple[FlowControl | None, FlowControl | None], denied: Sequence[str]
) -> list[str]:
    """Undo what ``record`` says, and let writers of the ``denied`` topics in, which the lease knows of; returns what
    was left as it is, and why. Raises as the clusters."""
    left: list[str] = []
    begins, starts = list[StartBefore](), list[StartBefore]()
    control, back = controls
    if record.begins:
        begins, why = await _begins_back(site.turned(), record.begins, await why_running(site, control))
        left += why
    if record.starts:
        starts, why = await _begins_back(site, record.starts, await why_back_runs(site, back))
        left += why
    by_group: dict[str, list[GroupBefore]] = {}
    for one in record.groups:
        by_group.setdefault(one.group, []).append(one)
    groups: dict[GroupBefore, str] = {}
    for group, rows in sorted(by_group.items()):
        groups |= await _group_back(site, group, rows, tell)
    left += dict.fromkeys(groups.values())
    if refused := {*record.denied, *denied}:
        await allow_writes(site.source, refused)
        tell(f"cluster {site.flow.source_alias} takes writers of {len(refused)} topics again")
    replace(record, groups=tuple(groups), starts=tuple(starts), begins=tuple(begins), denied=()).finish()
    return left


async def _begins_back(site: Site, rows: Sequence[StartBefore], runs: str) -> tuple[list[StartBefore], list[str]]:
    """Where the flow back begins, unless it ``runs``: what is left, and why."""
    flow = site.back.flow
    if runs:
        return list(rows), [f"{flow} runs ({runs}): where it begins is left"]
    moved = await undo_starts(site, rows)
    return moved, [f"{one.topic}-{one.partition}: {flow} has gone on since" for one in moved]


async def _group_back(site: Site, group: str, rows: Sequence[GroupBefore], tell: Tell) -> dict[GroupBefore, str]:
    """What is left, and why."""
    now = await committed(site.target, group)
    left, back = dict[GroupBefore, str](), dict[Partition, GroupBefore]()
    for one in rows:
        place = (one.topic, one.partition)
        stored = now.get(place)
        if stored is not None and stored.offset == one.after:
            back[place] = one
        elif (stored.offset if stored else None) != one.before:
            at = "nothing is stored" if stored is None else f"it stands at {stored.offset}"
            left[one] = f"group {group}, {one.topic}-{one.partition}: {at}, and was moved to {one.after}"
    offsets = {
        place: Committed(one.before, one.before_metadata) for place, one in back.items() if one.before is not None
    }
    if offsets:
        left |= await _refused(back, offsets, move(site.target, group, offsets))
    if gone := [place for place, one in back.items() if one.before is None]:
        left |= await _refused(back, gone, forget(site.target, group, gone))
    if done := sum(one not in left for one in back.values()):
        tell(f"group {group} taken back in {done} partitions")
    return left


async def _refused(
    rows: dict[Partition, GroupBefore], places: Collection[Partition], changing: Awaitable[dict[Partition, str]]
) -> dict[GroupBefore, str]:
    """Of ``places`` those that are not put back, and why: all of them where somebody is in the group."""
    try:
        refused = await changing
    except GroupInUse as error:
        return {rows[place]: f"{error}: stop them, and run this again" for place in places}
    return {rows[place]: f"group {rows[place].group}, {place[0]}-{place[1]}: {why}" for place, why in refused.items()}
