"""Move groups back to their old primary: by a failback over the reverse flow, or by an undo of one run.

A failback makes the reverse flow begin at the end of the flow; then it is a failover in the other direction. An undo
reverts what a run has changed, group by group, unless the group has committed since.

If the old primary has lost records of a partition that were copied, the flow begins where the two logs diverge, so that
nothing is missing. The old primary's own tail stays before what comes back; groups that read such a partition are
blocked. (To replace that tail by the new primary's records, change ``_prepare``.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from connect.core.errors import HeliographError, PermanentError
from connect.core.wording import counted, named
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import NO_OFFSET, Committed, Partition, committed
from connectors.failover import drain, reverse_flow
from connectors.failover.clusters_and_lease import Lease, Site, hold, read_positions, returns
from connectors.failover.collect_snapshot import collect
from connectors.failover.execute import Change, Failover, FailoverResult, GroupMover
from connectors.failover.journal import FailoverRun, GroupBefore, Journal, RunState, StartBefore, denied_by, read_runs
from connectors.failover.log_comparison import Verify
from connectors.failover.plan import FailoverOptions, Plan, plan
from connectors.failover.snapshot import Snapshot
from connectors.internal_topics import read_states, record_settings


def still_stopped(
    stopped: Mapping[str, str], denied: Collection[str], remote_topic: Callable[[str], str]
) -> dict[str, str]:
    """Return partitions, such as ``orders-0``, except those whose copies go to ``denied`` topics."""
    return {name: why for name, why in stopped.items() if remote_topic(name.rpartition("-")[0]) not in denied}


class Failback:
    """A failback. ``site.flow`` copies records and moves readers back to ``site.target``, the old primary;
    ``site.back`` is the flow that brought them from there. Arguments as for :class:`Failover`."""

    def __init__(
        self,
        site: Site,
        failover_options: FailoverOptions,
        report: drain.Report,
        controls: tuple[drain.FlowControl | None, drain.FlowControl | None] = (None, None),
        verify: Verify | None = None,
    ) -> None:
        self._site = site
        self._there = site.turned()
        self._options, self._report = failover_options, report
        self._control, self._back = controls
        # An operator may have to start the flow.
        self._steps = Failover(site, failover_options, report, controls, failover_options.timeout_s, verify)

    async def look(self) -> Plan:
        """Make the plan, with what keeps the flow from beginning where it has to. Raises ClusterUnreachable."""
        looked = await collect(self._site, self._options, self._back)
        return plan(looked if looked.source_error else await self._with_begin(looked), self._options)

    async def _with_begin(self, looked: Snapshot) -> Snapshot:
        site, there = self._site, self._there
        # These partitions are stopped because the failover has denied writes there: this run allows them again.
        denied = denied_by(await read_runs(there))
        stopped = still_stopped(looked.stopped, denied, site.flow.remote_topic)
        if ended := len(looked.stopped) - len(stopped):
            note = (
                f"stopped because cluster {site.flow.target_alias} refuses writers: {counted(ended, 'partition')}; "
                f"this run allows them again and restarts {site.flow.flow}"
            )
            looked = replace(looked, stopped=stopped, notes=(*looked.notes, note))
        if why := self._why_not_mirrored():
            looked = replace(looked, notes=(*looked.notes, why))
        if not await self._keeps_names():
            return looked
        due, objections = await self._reverse_flow()
        if not self._options.leaves_unreplicated:
            objections += await reverse_flow.would_skip(there)
        note = f"{site.flow.flow} begins where {there.flow.flow} ended, in {counted(len(due), 'partition')}"
        return replace(
            looked, obstacles=(*looked.obstacles, *objections), notes=(*looked.notes, note) if due else looked.notes
        )

    def _why_not_mirrored(self) -> str:
        """Why the file alone copies nothing; empty if it does, or if a worker was found."""
        flow = self._site.flow
        if flow.enabled or self._control is not None:
            return ""
        enabled = f"{flow.flow}.enabled = true"
        return f"the file does not mirror {flow.flow}, so nothing comes back from {flow.source_alias}. Set {enabled}"

    async def _reverse_flow(self, report: drain.Report | None = None) -> reverse_flow.ReverseFlow:
        ends = await drain.copied_ends(self._there, report)
        return await reverse_flow.reverse_flow_check(
            self._there, ends, self._control, leaves_unreplicated=self._options.leaves_unreplicated
        )

    async def run(self, command: str, looked: Plan) -> FailoverResult:
        """Fail back. Errors are those of :meth:`Failover.run`."""
        site, there = self._site, self._there
        async with hold(site, command) as held, hold(there, command) as other:
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
                self._report(f"{there.flow.flow} was resumed")
            else:
                self._report(f"start {there.flow.flow} again: it continues after what was copied back")
            if keeps_names:
                self._report(f"{site.flow.flow} stays stopped, because topics keep their names; a failback starts it")
            else:
                self._report(f"{site.flow.flow} is stopped; to start it: {drain.how_to_start(self._control)}")
            return done

    async def _let_in(self, denied: Collection[str]) -> None:
        """Allow writes, for this flow too: partitions stopped by the denial stay so until it is restarted."""
        site = self._site
        await drain.allow_writes(site.target, denied)
        self._report(f"cluster {site.flow.target_alias} accepts writers of {counted(len(denied), 'topic')} again")
        states = await read_states(site.target, record_settings(site.flow))
        still = [str(one) for one, state in sorted(states.items()) if state.target_topic in denied]
        if still:
            self._report(f"{site.flow.flow} is restarted, because these partitions are stopped: {named(still)}")
            await drain.stop_flow(site, self._control, self._report, lambda: None, self._options.timeout_s)

    async def _prepare(self, held: Lease, journal: Journal) -> bool:
        """Make the flow begin after what came from its target. Return whether topics keep their names."""
        await held.store(step="set where the flow begins")
        there = self._there
        if not await self._keeps_names():
            return False
        await drain.stop_flow(there, self._back, self._report, lambda: None, self._options.timeout_s)
        due, objections = await self._reverse_flow(self._report)
        if objections:
            raise PermanentError(f"{objections[0]}. Then run this again")
        if due:
            await journal.store(begins=due)
            await reverse_flow.store_starts(there, due)
            self._report(f"{self._site.flow.flow} will begin after what {there.flow.flow} copied")
        return True

    async def _keeps_names(self) -> bool:
        """Whether anything would be copied back to where it came from."""
        there = self._there
        positions = await read_positions(there)
        if any(returns(there.back, one.topic, each.target_topic) for one, each in positions.items()):
            return True
        return bool(await reverse_flow.comes_back(there, positions))

    async def _start(self, held: Lease) -> None:
        await held.store(step="start the flow")
        name = self._site.flow.flow
        if self._control is not None:
            await self._control.resume()
            self._report(f"{name}: asked its workers to start it")
        else:
            why = self._why_not_mirrored() or "Start its mirror if it does not run"
            self._report(f"{name} has to run now. {why}; this command waits")


def newest(runs: Sequence[FailoverRun]) -> FailoverRun | None:
    """Return the run that an undo reverts."""
    kept = [run for run in runs if run.state is not RunState.UNDONE and run.changes]
    return kept[-1] if kept else None


def why_kept(group: str, rows: Sequence[GroupBefore], now: Mapping[Partition, Committed]) -> str:
    """Why a group is not undone: one of its partitions has other offsets since; empty if it may be."""
    for one in rows:
        stored = now.get((one.topic, one.partition))
        offset = None if stored is None else stored.offset
        if offset not in (one.after, one.before):
            at = "nothing is committed" if offset is None else f"it has committed {offset}"
            return (
                f"group {group} was not changed in any partition: {at} in {one.topic}-{one.partition}, and it was "
                f"moved to {one.after}"
            )
    return ""


async def look(site: Site, run: FailoverRun) -> tuple[list[Change], list[str]]:
    """Return what undoes the groups of ``run``, and why others are not changed."""

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
    """Read a run from the journal again, under the lease. Raises PermanentError if it is no longer the newest: the undo
    would revert another run than the one shown."""
    now = newest(await read_runs(site))
    if now is None or now.id < run.id:
        raise PermanentError("this run has been undone in the meantime")
    if now.id != run.id:
        raise PermanentError(f"{now.owner} has since changed something ({now.command}). Run the undo again to see it")
    return now


async def roll_back(
    site: Site,
    run: FailoverRun,
    lease: Lease,
    report: drain.Report,
    controls: tuple[drain.FlowControl | None, drain.FlowControl | None],
) -> list[str]:
    """Undo what ``run`` did, and only that, and allow writes that it denied. Return what was not undone, and why."""
    left: list[str] = []
    control, back = controls
    journal = Journal(site, lease, run, await read_runs(site))
    begins, starts = list[StartBefore](), list[StartBefore]()
    if run.begins:
        begins, why_not = await _begins_back(site.turned(), run.begins, await drain.why_running(site, control))
        left += why_not
    if run.starts:
        starts, why_not = await _begins_back(site, run.starts, await drain.why_back_runs(site, back))
        left += why_not
    changes, why_not = await look(site, run)
    left += why_not
    findings = await GroupMover(site, lease, journal, report).change_all(changes, "moved back")
    left += [f"group {one.group}: {one}" for one in findings]
    if refused := journal.denied:
        await lease.check()
        await drain.allow_writes(site.source, refused)
        report(f"cluster {site.flow.source_alias} accepts writers of {counted(len(refused), 'topic')} again")
    # What was not undone stays in the journal, and can be undone later.
    state = RunState.OPEN if left else RunState.UNDONE
    await journal.store(state=state, starts=starts, begins=begins, denied=())
    return left


async def _begins_back(site: Site, rows: Sequence[StartBefore], runs: str) -> tuple[list[StartBefore], list[str]]:
    """Restore where the reverse flow begins, unless it ``runs``. Return what was not restored, and why."""
    flow = site.back.flow
    if runs:
        return list(rows), [f"{flow} runs ({runs}), so where it begins was not restored"]
    moved = await reverse_flow.undo_starts(site, rows)
    return moved, [f"{one.topic}-{one.partition}: {flow} has copied more since" for one in moved]
