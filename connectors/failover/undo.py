"""What a run has changed, taken back group by group as far as nothing of the group has gone on since."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.kafka.concurrency import gather_limited
from connect.kafka.group_offsets import NO_OFFSET, Committed, Partition, committed
from connectors.failover.denying import allow_writes
from connectors.failover.draining import FlowControl, Tell, why_back_runs, why_running
from connectors.failover.execute import Change, GroupMover
from connectors.failover.journal import GroupBefore, Journal, Run, StartBefore, State, read_runs
from connectors.failover.lease import Lease
from connectors.failover.site import Site
from connectors.failover.starting import undo_starts

#: Of undo files, which earlier versions have written.
_FILE_FORMAT: Final = 1


def newest(runs: Sequence[Run]) -> Run | None:
    """The run that an undo takes back."""
    kept = [run for run in runs if run.state is not State.UNDONE and run.changes]
    return kept[-1] if kept else None


def why_kept(group: str, rows: Sequence[GroupBefore], now: Mapping[Partition, Committed]) -> str:
    """Why a group stays as it is: one of its partitions has moved on; empty if it may be taken back."""
    for one in rows:
        stored = now.get((one.topic, one.partition))
        offset = None if stored is None else stored.offset
        if offset not in (one.after, one.before):
            at = "nothing is committed" if offset is None else f"it has committed {offset}"
            return (
                f"group {group} stays as it is, in all partitions: {at} in {one.topic}-{one.partition}, and it was "
                f"moved to {one.after}"
            )
    return ""


async def look(site: Site, run: Run) -> tuple[list[Change], list[str]]:
    """What takes groups of ``run`` back, and why others stay as they are."""

    async def stored_of(group: str) -> Mapping[Partition, Committed] | HeliographError:
        try:
            return await committed(site.target, group)
        except HeliographError as error:
            return error

    found = await gather_limited(stored_of, run.groups)
    changes, left = list[Change](), list[str]()
    for (group, rows), now in zip(run.groups.items(), found, strict=True):
        if isinstance(now, HeliographError):
            left.append(f"group {group} could not be read: {now}")
            continue
        if why := why_kept(group, rows, now):
            left.append(why)
            continue
        places = {(one.topic, one.partition): one for one in rows}
        stored = {place: now[place].offset if place in now else None for place in places}
        wanted = {
            place: NO_OFFSET if one.before is None else Committed(one.before, one.before_metadata)
            for place, one in places.items()
            if stored[place] != one.before
        }
        changes.append(Change(group, stored, wanted))
    return changes, left


async def read_again(site: Site, run: Run) -> Run:
    """Return a run as the journal has it now, to be called under the lease.

    Raises PermanentError if it is not the newest any more: what was looked at is not what an undo would take back.
    """
    now = newest(await read_runs(site))
    if now is None or now.id < run.id:
        raise PermanentError("this was taken back since it was looked at")
    if now.id != run.id:
        raise PermanentError(f"{now.owner} has changed something since this was looked at ({now.command}): look again")
    return now


async def take_back(
    site: Site, run: Run, lease: Lease, tell: Tell, controls: tuple[FlowControl | None, FlowControl | None]
) -> list[str]:
    """Undo what ``run`` says, and that alone, and let writers in that are refused. Return what was left, and why.

    Raises as the clusters.
    """
    left: list[str] = []
    control, back = controls
    journal = Journal(site, lease, run, await read_runs(site))
    begins, starts = list[StartBefore](), list[StartBefore]()
    if run.begins:
        begins, why_not = await _begins_back(site.turned(), run.begins, await why_running(site, control))
        left += why_not
    if run.starts:
        starts, why_not = await _begins_back(site, run.starts, await why_back_runs(site, back))
        left += why_not
    changes, why_not = await look(site, run)
    left += why_not
    findings = await GroupMover(site, lease, journal, tell).change_all(changes, "taken back")
    left += [f"group {one.group}: {one}" for one in findings]
    if refused := journal.denied:
        await lease.check()
        await allow_writes(site.source, refused)
        tell(f"cluster {site.flow.source_alias} takes writers of {len(refused)} topics again")
    # What is left stays in the journal, and can be taken back later.
    state = State.OPEN if left else State.UNDONE
    await journal.store(state=state, starts=starts, begins=begins, denied=())
    return left


async def _begins_back(site: Site, rows: Sequence[StartBefore], runs: str) -> tuple[list[StartBefore], list[str]]:
    """Where the flow back begins, unless it ``runs``: what is left, and why."""
    flow = site.back.flow
    if runs:
        return list(rows), [f"{flow} runs ({runs}): where it begins is left"]
    moved = await undo_starts(site, rows)
    return moved, [f"{one.topic}-{one.partition}: {flow} has gone on since" for one in moved]


def read_file(file: Path) -> Run:
    """An undo file of an earlier version. Raises ConfigError if it cannot be read, or is no such file."""
    try:
        document = json.loads(file.read_text())
        if document["format"] != _FILE_FORMAT:
            raise ConfigError(
                f"its format is {document['format']}, and this Heliograph knows {_FILE_FORMAT}", file=str(file)
            )
        groups: dict[str, tuple[GroupBefore, ...]] = {}
        for one in document["groups"]:
            row = GroupBefore(**_known(GroupBefore, one))
            groups[row.group] = (*groups.get(row.group, ()), row)
        return Run(
            f"{0:015d}-{file.name}",  # before all runs of a journal
            document["from"],
            document["to"],
            groups=groups,
            starts=tuple(StartBefore(**_known(StartBefore, one)) for one in document["starts"]),
            begins=tuple(StartBefore(**_known(StartBefore, one)) for one in document.get("begins", ())),
            denied=tuple(document["denied"]),
        )
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}", file=str(file)) from None
    except (ValueError, LookupError, TypeError):
        raise ConfigError("this is no undo file of heliograph failover", file=str(file)) from None


def _known(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
