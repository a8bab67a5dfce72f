"""Move groups back to their old primary: by a failback over the reverse flow, or by an undo of one run.

A failback begins the flow back at the end of the flow there; then it is a failover in the other direction. An undo
takes back what a run has changed, group by group, unless the group has gone on since.

A partition of which the old primary has lost records that were copied is a special case: the flow begins where the two
logs part, so that nothing is missing there. The old primary's own tail lies before what comes back; groups that read
such a partition are blocked. (To replace that tail by the new primary's records, ``_prepare`` is the place.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from connect.core.errors import ConfigError, HeliographError, PermanentError
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import NO_OFFSET, Committed, Partition, committed
from connectors.failover.clusters_and_lease import Lease, Site, hold, returns
from connectors.failover.collect_snapshot import collect
from connectors.failover.drain import (
    FlowControl,
    Tell,
    allow_writes,
    copied_ends,
    how_to_start,
    stop_flow,
    why_back_runs,
    why_running,
)
from connectors.failover.execute import Change, Failover, FailoverResult, GroupMover
from connectors.failover.journal import FailoverRun, GroupBefore, Journal, RunState, StartBefore, denied_by, read_runs
from connectors.failover.plan import Plan, Wish, plan
from connectors.failover.reverse_flow import WayBack, comes_back, find_diverged, store_starts, undo_starts, way_back
from connectors.failover.snapshot import Snapshot, named
from connectors.failover.unreplicated import find
from connectors.internal_topics import read_positions, read_states, record_settings


def still_stopped(
    stopped: Mapping[str, str], denied: Collection[str], remote_topic: Callable[[str], str]
) -> dict[str, str]:
    """Partitions, such as ``orders-0``, but those whose copies go to ``denied`` topics (pure)."""
    return {name: why for name, why in stopped.items() if remote_topic(name.rpartition("-")[0]) not in denied}


class Failback:
    """``site.flow`` brings records and readers back to ``site.target``, the old primary; ``site.back`` is the flow that
    brought them from there. Arguments as of :class:`Failover`."""

    def __init__(
        self,
        site: Site,
        wish: Wish,
        tell: Tell,
        controls: tuple[FlowControl | None, FlowControl | None] = (None, None),
    ) -> None:
        self._site = site
        self._there = site.turned()
        self._wish = wish
        self._tell = tell
        self._control, self._back = controls
        # The flow may have to be started by hand.
        self._steps = Failover(site, wish, tell, controls, stalled_s=wish.timeout_s)

    async def look(self) -> Plan:
        """As :meth:`Failover.look`; with it what keeps the flow from beginning where it has to."""
        looked = await collect(self._site, self._wish, self._back)
        return plan(looked if looked.source_error else await self._with_begin(looked), self._wish)

    async def _with_begin(self, looked: Snapshot) -> Snapshot:
        site, there = self._site, self._there
        # Partitions are stopped because the failover has refused all writers there: this run lets them in again.
        denied = denied_by(await read_runs(there))
        stopped = still_stopped(looked.stopped, denied, site.flow.remote_topic)
        if ended := len(looked.stopped) - len(stopped):
            note = (
                f"{ended} partitions stand still while cluster {site.flow.target_alias} refuses writers, which this "
                f"run ends, and starts {site.flow.flow} again"
            )
            looked = replace(looked, stopped=stopped, notes=(*looked.notes, note))
        if not await self._keeps_names():
            return looked
        due, objections = await self._way_there()
        if not self._wish.leaves_unreplicated:
            # What only diverged partitions hold is named for the groups that read them.
            diverged = await find_diverged(there)
            objections += [
                f"only cluster {site.flow.target_alias} holds {one.own}: {there.flow.flow} would pass over them; "
                "heliograph unreplicated --append, or --leave-unreplicated"
                for one in await find(there)
                if one.source not in diverged
            ]
        note = f"{site.flow.flow}: it begins where {there.flow.flow} ended, in {len(due)} partitions"
        return replace(
            looked,
            obstacles=(*looked.obstacles, *objections),
            notes=(*looked.notes, note) if due else looked.notes,
        )

    async def _way_there(self, tell: Tell | None = None) -> WayBack:
        ends = await copied_ends(self._there, tell)
        return await way_back(self._there, ends, self._control, leaves_unreplicated=self._wish.leaves_unreplicated)

    async def run(self, command: str, looked: Plan) -> FailoverResult:
        """Do all of it; errors as :meth:`Failover.run`."""
        site, there = self._site, self._there
        async with (
            hold(site, command) as held,
            hold(there, command) as other,
        ):
            journal = await Journal.begin(site, held)
            keeps_names = await self._prepare(held, journal)
            runs = await read_runs(there)
            if denied := denied_by(runs):
                await self._let_in(denied)
                await Journal(there, other, runs[-1], runs).store(state=runs[-1].state, denied=())
            await self._start(held)
            done = await self._steps.run_under(held, looked, journal)
            if self._back is not None:
                await self._back.resume()
                self._tell(f"{there.flow.flow} goes on")
            else:
                self._tell(f"start {there.flow.flow} again: it goes on behind what came back")
            if keeps_names:
                self._tell(f"{site.flow.flow} stays stopped: topics keep their names; the next failback starts it")
            else:
                self._tell(f"{site.flow.flow} is stopped; to start it: {how_to_start(self._control)}")
            return done

    async def _let_in(self, denied: Collection[str]) -> None:
        """Writers, and this flow with them: partitions that were refused stand still until it is started again."""
        site = self._site
        await allow_writes(site.target, denied)
        self._tell(f"cluster {site.flow.target_alias} takes writers of {len(denied)} topics again")
        states = await read_states(site.target, record_settings(site.flow))
        still = [str(one) for one, state in sorted(states.items()) if state.target_topic in denied]
        if still:
            self._tell(f"{site.flow.flow} is started again: it stands still in {named(still)}")
            await stop_flow(site, self._control, self._tell, lambda: None, self._wish.timeout_s)

    async def _prepare(self, held: Lease, journal: Journal) -> bool:
        """Have the flow begin behind what came from its target. Return whether topics keep their names."""
        await held.store(step="begin of the way back")
        there = self._there
        if not await self._keeps_names():
            return False
        await stop_flow(there, self._back, self._tell, lambda: None, self._wish.timeout_s)
        due, objections = await self._way_there(self._tell)
        if objections:
            raise PermanentError(f"{objections[0]}; then run this again")
        if due:
            await journal.store(begins=due)
            await store_starts(there, due)
            self._tell(f"{self._site.flow.flow} will begin behind what {there.flow.flow} copied")
        return True

    async def _keeps_names(self) -> bool:
        """Whether anything would be copied back to where it came from."""
        there = self._there
        positions = await read_positions(there.target, there.flow.map_topic, there.flow.name)
        if any(returns(there.flow, there.back, one.topic, each.target_topic) for one, each in positions.items()):
            return True
        return bool(await comes_back(there, positions))

    async def _start(self, held: Lease) -> None:
        await held.store(step="start the flow")
        name = self._site.flow.flow
        if self._control is not None:
            await self._control.resume()
            self._tell(f"{name}: its workers were told to start it")
        else:
            self._tell(f"{name} has to run now: start its mirror where it does not, this command waits")


#: Of undo files, which earlier versions have written.
_FILE_FORMAT: Final = 1


def newest(runs: Sequence[FailoverRun]) -> FailoverRun | None:
    """The run that an undo takes back."""
    kept = [run for run in runs if run.state is not RunState.UNDONE and run.changes]
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


async def look(site: Site, run: FailoverRun) -> tuple[list[Change], list[str]]:
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


async def read_again(site: Site, run: FailoverRun) -> FailoverRun:
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
    site: Site, run: FailoverRun, lease: Lease, tell: Tell, controls: tuple[FlowControl | None, FlowControl | None]
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
    state = RunState.OPEN if left else RunState.UNDONE
    await journal.store(state=state, starts=starts, begins=begins, denied=())
    return left


async def _begins_back(site: Site, rows: Sequence[StartBefore], runs: str) -> tuple[list[StartBefore], list[str]]:
    """Where the flow back begins, unless it ``runs``: what is left, and why."""
    flow = site.back.flow
    if runs:
        return list(rows), [f"{flow} runs ({runs}): where it begins is left"]
    moved = await undo_starts(site, rows)
    return moved, [f"{one.topic}-{one.partition}: {flow} has gone on since" for one in moved]


def read_file(file: Path) -> FailoverRun:
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
        return FailoverRun(
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
