"""Carry out or rehearse a failover plan; each step checks whether it is done, so an interrupted run can run again.

A group moves in one transaction with its entry in the journal. The brokers keep any offset committed after the
transaction wrote its own, and earlier commits are checked before the transaction ends. So nothing newer is overwritten,
even if this process freezes or dies. A process that takes over the lease fences this one.

A rehearsal does everything except changes to a cluster, and measures the time.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.core.wording import counted, named
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import NO_OFFSET, Committed, Partition, committed, listed_group
from connect.kafka.log.producer import TransactionalWriter
from connect.kafka.log.transactions import Superseded
from connect.kafka.tracing import TracedSteps
from connectors.checkpoint.group_offset_sync import why_left
from connectors.failover import collect_snapshot
from connectors.failover.clusters_and_lease import LANES, FailoverInProgress, Lease, Site, await_no_failback, hold
from connectors.failover.collect_snapshot import collect
from connectors.failover.drain import (
    LOOK_S,
    CopiedEnd,
    FlowControl,
    Report,
    behind,
    copied_ends,
    denied_already,
    deny_writes,
    drain,
    fence_writers,
    first_rules,
    how_to_start,
    stop_flow,
)
from connectors.failover.group_offsets import why_silent
from connectors.failover.journal import GroupBefore, Journal, RunState, before_of
from connectors.failover.log_comparison import Verify, next_records, prove, proved
from connectors.failover.offset_lookup import about
from connectors.failover.plan import FailoverOptions, Plan, differing, plan, used_meanwhile
from connectors.failover.reverse_flow import reverse_flow_check, starts_due, store_starts
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, SampleCheck, Snapshot
from connectors.flow_progress import together
from connectors.formats.types import TopicPartition

_STOPPED: Final = frozenset({"STOPPED", "STOPPING"})
#: To find out, after a failure, whether the source still answers.
_LOOK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FailoverResult:
    """What was done. ``plan`` has each group's previous offset, and blocks groups that were not moved; ``proofs`` are
    the sample checks; ``late`` reports writes at the source after the drain; ``verified`` what was verified.
    ``restart`` says how to start the flow again if there is nothing to undo, else it is empty."""

    plan: Plan
    proofs: tuple[SampleCheck, ...] = ()
    late: str = ""
    verified: str = ""
    restart: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """``wanted`` is committed unless there is a commit after ``before``. ``rows`` go to the journal."""

    group: str
    before: Mapping[Partition, int | None]
    wanted: Mapping[Partition, Committed]
    rows: Sequence[GroupBefore] = ()


class GroupMover:
    """Changes offsets of groups on the site's target, with the writers of a lease and a journal."""

    def __init__(self, site: Site, lease: Lease, journal: Journal, report: Report) -> None:
        self._target, self._lease, self._journal, self._report = site.target, lease, journal, report

    async def move_all(self, groups: Iterable[Sequence[GroupMove]]) -> list[GroupFinding]:
        """Move groups, and return why some were not. Raises FailoverInProgress if another operator has taken over."""
        return await self.change_all(
            [
                Change(
                    moves[0].group,
                    {one.target: one.before for one in moves},
                    {one.target: Committed(one.after, one.metadata) for one in moves},
                    before_of(moves),
                )
                for moves in groups
            ],
            "moved",
        )

    async def change_all(self, changes: Collection[Change], done: str) -> list[GroupFinding]:
        """Make changes, each in its own transaction, and return why some were not made; ``done`` is the verb to report.
        Raises FailoverInProgress if another operator has taken over."""
        waiting = deque(changes)
        findings: list[GroupFinding] = []

        async def lane(writer: TransactionalWriter) -> None:
            while waiting:
                one = waiting.popleft()
                if (why := await self._change(one, writer)) is None:
                    self._report(f"group {one.group} {done} in {counted(len(one.before), 'partition')}")
                else:
                    findings.append(why)

        await gather_limited(lane, self._lease.lanes[: len(waiting)], LANES)
        return findings

    async def _change(self, one: Change, writer: TransactionalWriter) -> GroupFinding | None:
        """Make one change, or return why not."""
        found: list[GroupFinding] = []

        async def may_commit(_: object) -> bool:
            """Runs once the brokers have the offsets: a later commit is newer, and stays. An operator who has taken
            the lease over has claimed this writer, and its open transaction is aborted."""
            found[:] = await self._why_not(one)
            return not found

        try:
            records = [self._journal.of_group(one.group, one.rows)]
            await writer.write(records, may_commit, {one.group: one.wanted} if one.wanted else {})
            if found:
                return found[0]
            self._journal.changed(one.group, one.rows)
            now = await committed(self._target, one.group, list(one.wanted), stable=True) if one.wanted else {}
        except Superseded as error:
            raise FailoverInProgress("another operator has taken over this failover; this run stops") from error
        except HeliographError as error:
            return GroupFinding(one.group, GroupRule.NOT_MOVED, f"was not changed: {error}")
        if any(now.get(place, NO_OFFSET).offset != wanted.offset for place, wanted in one.wanted.items()):
            why = "has committed other offsets meanwhile, which were kept"
            return GroupFinding(one.group, GroupRule.USED_MEANWHILE, why)
        return None

    async def _why_not(self, change: Change) -> list[GroupFinding]:
        group = change.group
        if why := why_left(await listed_group(self._target, group)):
            return [GroupFinding(group, GroupRule.USED_AT_TARGET, why)]
        now = await committed(self._target, group, list(change.before)) if change.before else {}
        for one, before in change.before.items():
            stored = now.get(one, NO_OFFSET).offset
            expected = {NO_OFFSET.offset if before is None else before}
            if one in change.wanted:  # an attempt whose answer was lost may have committed it
                expected.add(change.wanted[one].offset)
            if stored not in expected:
                why = f"has committed offset {stored} on the target since the plan was made, and keeps it"
                return [GroupFinding(group, GroupRule.NOT_MOVED, why, f"{one[0]}-{one[1]} ")]
        return []


class Failover:
    """A failover of one flow to its target. ``controls`` are those of the flow and the reverse flow; None if their
    workers cannot be reached. With ``verify``, what was copied is verified before groups move."""

    def __init__(
        self,
        site: Site,
        failover_options: FailoverOptions,
        report: Report,
        controls: tuple[FlowControl | None, FlowControl | None] = (None, None),
        stalled_s: float = 60.0,
        verify: Verify | None = None,
    ) -> None:
        self._site, self._options, self._report = site, failover_options, report
        self._control, self._back = controls
        self._stalled_s, self._verify = stalled_s, verify
        self._has_stopped = False
        self._journal: Journal | None = None

    async def look(self) -> Plan:
        """Make the plan: see :func:`connectors.failover.plan.plan`. Raises ClusterUnreachable."""
        return plan(await collect_snapshot.collect(self._site, self._options, self._back), self._options)

    async def run(self, command: str, looked: Plan) -> FailoverResult:
        """Do what ``looked`` plans, as far as it still holds. Raises FailoverInProgress if another operator holds the
        lease, RetriableError if the same command can run again, and PermanentError if something has to be fixed
        first. What was done stays done."""
        try:
            async with hold(self._site, command) as lease:
                if not self._options.is_gone:
                    await await_no_failback(self._site, lease.record)
                done = await self.run_under(lease, looked)
        except RetriableError as error:
            if self._options.is_gone or not await why_silent(self._site.source, _LOOK_S):
                raise
            alias = self._site.flow.source_alias
            raise RetriableError(
                f"{error}; cluster {alias} was lost during the run. What was done stays done. Run this again once it "
                f"is back or, if it is gone and no producer writes there, with --source-gone {alias}"
            ) from error
        flow = self._site.flow
        self._report(f"{flow.flow} stays stopped until a failback to {flow.source_alias}")
        return done

    async def run_under(self, lease: Lease, looked: Plan, journal: Journal | None = None) -> FailoverResult:
        """Run while holding a lease; a run that fails reports what it leaves. ``journal`` None: begin one."""
        self._traced = TracedSteps("failover", {"flow": self._site.flow.flow})
        try:
            self._journal = journal or await Journal.begin(self._site, lease)
            done = await self._run_under(lease, self._journal, looked)
        except BaseException as error:
            self._traced.end(error)
            self._report_what_is_left()
            raise
        self._traced.end()
        return done

    def _report_what_is_left(self) -> None:
        flow = self._site.flow
        if self._has_stopped:
            self._report(
                f"{flow.flow} was stopped and stays stopped. Run this again or, if readers do not move, start it: "
                f"{how_to_start(self._control)}"
            )
        if self._journal is not None and (denied := self._journal.denied):
            self._report(
                f"cluster {flow.source_alias} still refuses writers of {named(sorted(denied))}. Run this again, or "
                "allow writes with heliograph undo"
            )

    async def _run_under(self, lease: Lease, journal: Journal, looked: Plan) -> FailoverResult:
        site, failover_options = self._site, self._options
        left_out, verified = looked.snapshot.stopped.keys(), ""
        if not failover_options.is_gone:
            if failover_options.denies_writes:
                await self._deny(lease, journal)
            await self._step(lease, "drain")
            await start_again(site, self._control, self._report, left_out)
            denied = journal.denied
            await drain(
                site, self._report, lease.check_not_lost, failover_options.timeout_s, self._stalled_s, denied, left_out
            )
        await self._step(lease, "stop the flow")
        self._has_stopped = self._control is not None
        await stop_flow(site, self._control, self._report, lease.check_not_lost, failover_options.timeout_s)
        if failover_options.is_gone:
            await fence_writers(site, self._report)
        else:
            await self._check_drained(left_out)
            ends = await copied_ends(site, self._report)
            if self._verify is not None:
                await self._step(lease, "verify the copy")
                result = await self._verify(failover_options.verify_within_s)
                self._report(verified := proved(result, is_whole_wanted=failover_options.verifies))
            await self._begin_reverse_flow(lease, journal, ends)
        await self._step(lease, "check a sample")
        now = await self._look_again()
        proofs = await prove(site, now.moves, failover_options.sample, is_gone=failover_options.is_gone)
        now = now.with_blocked(differing(proofs))
        await self._step(lease, "move the groups")
        now = await self._move(lease, journal, now)
        late = ""
        if not failover_options.is_gone:
            now = now.with_blocked(used_meanwhile(now, await collect_snapshot.groups_now(site, failover_options)))
            late = await self._written_late(left_out)
        if journal.run.changes or not now.blocked:
            # Even if all groups were in place: it tells the status why the flow is stopped.
            await journal.store(state=RunState.OPEN if now.blocked else RunState.DONE)
        await self._step(lease, "done")
        restart = "" if journal.run.changes else how_to_start(self._control)
        return FailoverResult(now, tuple(proofs), late, verified, restart)

    async def _look_again(self) -> Plan:
        """Make the plan again. Raises PermanentError if no group can be moved now."""
        now = await self.look()
        if now.obstacles:
            raise PermanentError(f"{named(now.obstacles, between='; ')}. Then run this again")
        return now

    async def _move(self, lease: Lease, journal: Journal, now: Plan) -> Plan:
        ready = [one.due for one in now.ready]
        if not ready:
            return now
        # Before the first change, so that every machine knows that there is something to undo.
        await journal.store()
        return now.with_blocked(await GroupMover(self._site, lease, journal, self._report).move_all(ready))

    async def _written_late(self, left_out: Collection[str]) -> str:
        """Report writes after the drain: the flow is stopped, so they are not on the target."""
        now = await behind(self._site, left_out)
        if now.is_copied:
            return ""
        flow = self._site.flow
        return (
            f"cluster {flow.source_alias} was written to after the drain: {now}. These records are not on cluster "
            f"{flow.target_alias}. Stop the producers, then run heliograph unreplicated"
        )

    async def _begin_reverse_flow(
        self, lease: Lease, journal: Journal, ends: Mapping[TopicPartition, CopiedEnd]
    ) -> None:
        """Runs before any group moves: otherwise readers would continue while what they read may be copied back."""
        await self._step(lease, "set where the reverse flow begins")
        site, leaves_unreplicated = self._site, self._options.leaves_unreplicated
        due, objections = await reverse_flow_check(site, ends, self._back, leaves_unreplicated=leaves_unreplicated)
        if objections:
            raise PermanentError(f"{named(objections, between='; ')}. Then run this again")
        if due:
            await journal.store(starts=due)
            await store_starts(site, due)
            count = counted(len(due), "partition")
            self._report(f"{site.back.flow} will begin after what {site.flow.flow} copied, in {count}")

    async def _deny(self, lease: Lease, journal: Journal) -> None:
        await self._step(lease, "deny writes")
        site = self._site
        wanted = {one.topic for one in (await behind(site)).lag.partitions}
        ours = journal.denied
        # An ACL of another operator is not ours to delete.
        topics = tuple(sorted(wanted - (await denied_already(site.source, wanted) - ours)))
        first = await first_rules(site.source, topics)
        if first.why_not:
            raise PermanentError(first.why_not)
        if first.doubt:
            self._report(first.doubt)
        if not {*topics} <= ours:
            await journal.store(denied=tuple(sorted({*ours, *topics})))
        await deny_writes(site.source, topics)
        self._report(f"cluster {site.flow.source_alias} refuses writers of {counted(len(topics), 'topic')}")

    async def _check_drained(self, left_out: Collection[str]) -> None:
        site = self._site
        now = await behind(site, left_out)
        if not now.is_copied:
            if self._control is not None:
                await self._control.resume()
                self._has_stopped = False
            raise RetriableError(
                f"cluster {site.flow.source_alias} was written to while {site.flow.flow} was being stopped: {now}. "
                "Stop the producers or use --deny-writes, start the flow if it is stopped, and run this again"
            )

    async def _step(self, lease: Lease, step: str) -> None:
        lease.check_not_lost()
        await lease.store(step=step)
        self._traced.begin(step)


async def start_again(site: Site, control: FlowControl | None, report: Report, left_out: Collection[str] = ()) -> None:
    """Start the flow if an earlier run left it stopped, it lags, and its workers can be reached. ``left_out`` are
    partitions, such as ``orders-0``, that do not count. Raises PermanentError if it would copy back what came from its
    target."""
    if control is None or await control.state() not in _STOPPED:
        return
    now = await behind(site, left_out)
    if now.is_copied:
        return
    flow, there = site.flow, site.turned()
    due, refused, _ = await starts_due(there, await copied_ends(there))
    if due or refused:
        raise PermanentError(
            f"{flow.flow} is stopped, {now}, and would copy back what {there.flow.flow} has copied to cluster "
            f"{flow.source_alias}. Run heliograph failback --to {flow.target_alias}, which makes it begin after that"
        )
    await control.resume()
    report(f"{flow.flow} was stopped, {now}; it was started again")


#: Read from each partition of a group.
_RECORDS: Final = 1
#: Groups whose round trips are measured.
_MEASURED: Final = 5
#: Requests of a move: the transaction's partitions and group, its offsets, its record, two reads of the group, its end.
_REQUESTS: Final = 8
_MEASURED_REQUESTS: Final = 2


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """``plan`` blocks what a failover would not move. ``took_s`` was measured, ``estimated_s`` is for what
    was not done, in seconds by step. ``read`` is the number of target offsets from which a record was read."""

    plan: Plan
    proofs: tuple[SampleCheck, ...]
    took_s: Mapping[str, float]
    estimated_s: Mapping[str, float]
    read: int

    @property
    def rto_s(self) -> float:
        """Estimate how long a failover takes, in seconds."""
        return sum(self.took_s.values()) + sum(self.estimated_s.values())


async def rehearse(site: Site, failover_options: FailoverOptions, *, names_records: bool = True) -> Rehearsal:
    """Rehearse and change nothing; the consumer on the target has its own group, and commits nothing.
    ``names_records``: whether reasons may contain the values of records that differ."""
    took_s: dict[str, float] = {}
    began_s = time.monotonic()

    def passed(step: str) -> None:
        nonlocal began_s
        now_s = time.monotonic()
        took_s[step], began_s = now_s - began_s, now_s

    snapshot = await collect(site, failover_options)
    passed("collect")
    found = plan(snapshot, failover_options)
    passed("plan")
    is_gone = failover_options.is_gone or bool(snapshot.source_error)
    proofs = await prove(site, found.moves, failover_options.sample, is_gone=is_gone)
    proofs = proofs if names_records else [one.without_records() for one in proofs]
    found = found.with_blocked(differing(proofs))
    passed("sample")
    estimated_s = await _estimate(site, snapshot, found)
    if (rest_s := _verification_s(snapshot, failover_options)) is not None:
        estimated_s["verify"] = rest_s
    moves = found.moves
    group = f"heliograph-rehearse-{uuid.uuid4().hex[:8]}"
    readable = await next_records(site.target, {one.target: one.after for one in moves}, _RECORDS, True, group_id=group)
    failed = [one for one in moves if one.target not in readable]
    unread = [about(one, GroupRule.UNREADABLE, f"could not be read from offset {one.after}") for one in failed]
    return Rehearsal(found.with_blocked(unread), tuple(proofs), took_s, estimated_s, len(moves) - len(unread))


def _verification_s(snapshot: Snapshot, failover_options: FailoverOptions) -> float | None:
    """Return how long the verification would take; None if there is none, or that is unknown."""
    known_s = [failover_options.verify_within_s] if failover_options.verify_within_s is not None else []
    if failover_options.verifies and snapshot.verified is not None and snapshot.verified.rest_s >= 0:
        known_s.append(snapshot.verified.rest_s)
    return min(known_s, default=None)


async def _estimate(site: Site, snapshot: Snapshot, found: Plan) -> dict[str, float]:
    """Estimate the drain by the oldest waiting record, the stop by two checks, moves by round trips of some groups."""
    some, began_s = found.ready[:_MEASURED], time.monotonic()
    for one in some:
        await listed_group(site.target, one.group)
        await committed(site.target, one.group)
    request_s = (time.monotonic() - began_s) / max(len(some) * _MEASURED_REQUESTS, 1)
    turns = -(-len(found.ready) // LANES)
    waits = {} if snapshot.lag is None else {"drain": max(together(snapshot.lag.partitions).ms, 0) / 1000}
    return {**waits, "stop": 2 * LOOK_S, "moves": turns * _REQUESTS * request_s}
