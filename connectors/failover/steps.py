"""The steps of a failover. Each looks first whether it is done, so that one that was interrupted is run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.group_offsets import Partition, committed, move
from connectors.dataplane.plan import TopicPartition
from connectors.failover import preflight, undo
from connectors.failover.behind import behind, without_heartbeats
from connectors.failover.denying import denied_already, deny_writes, first_rules, named
from connectors.failover.draining import (
    CopiedEnd,
    FlowControl,
    Tell,
    copied_ends,
    drain,
    stop_flow,
)
from connectors.failover.group_look import still_there
from connectors.failover.lease import Lease, await_no_way_back, hold
from connectors.failover.model import DIFFERS, GroupMove, Preflight, Proof, gone_on, to_commit
from connectors.failover.preflight import Wish
from connectors.failover.proving import prove
from connectors.failover.site import Site
from connectors.failover.starting import starts_due, store_starts
from connectors.failover.undo import Undo
from connectors.failover.way_back import way_back
from connectors.lag_reader import LagReader

_NAMED: Final = 5
_STOPPED: Final = frozenset({"STOPPED", "STOPPING"})
#: Whether the source is there at all, once something has failed.
_LOOK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. ``looked`` is the last look, with each group's offset as it was before; ``other_undo_files`` take
    back what interrupted runs had done elsewhere."""

    looked: Preflight
    proofs: tuple[Proof, ...]
    other_undo_files: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return any(one.outcome == DIFFERS for one in self.proofs)


class Failover:
    """Of one flow to its target. ``controls`` are of the flow and of the flow back; None where nobody can be asked."""

    def __init__(
        self,
        site: Site,
        wish: Wish,
        undo_file: Path,
        tell: Tell,
        controls: tuple[FlowControl | None, FlowControl | None] = (None, None),
        stalled_s: float = 60.0,
    ) -> None:
        self._site = site
        self._wish = wish
        self._file = undo_file
        self._tell = tell
        self._control, self._back = controls
        self._stalled_s = stalled_s
        self._has_stopped = False

    async def look(self) -> Preflight:
        """See :func:`connectors.failover.preflight.look`."""
        site = self._site
        known = undo.interrupted(self._file, site.flow.source_alias, site.flow.target_alias)
        moved = {} if known is None else {(one.group, (one.topic, one.partition)): one.after for one in known.groups}
        return await preflight.look(site, self._wish, self._back, moved)

    async def run(self, command: str) -> Outcome:
        """Do all of it. Raises InHand where somebody else is at it, RetriableError where it may be run again just so,
        PermanentError where something must be mended before; what was done stays done."""
        try:
            async with hold(self._site, command) as lease:
                if not self._wish.is_gone:
                    await await_no_way_back(self._site, lease.record)
                return await self.run_under(lease)
        except RetriableError as error:
            if self._wish.is_gone or not await still_there(self._site.source, _LOOK_S):
                raise
            raise RetriableError(
                f"{error}; cluster {self._site.flow.source_alias} was lost on the way. What was done stays done: run "
                "this again once it is back or, if it is gone for good and nobody writes there, with --source-gone"
            ) from error

    async def run_under(self, lease: Lease) -> Outcome:
        """The same under a lease that is held; one that does not come to its end says what it leaves behind."""
        is_done = False
        try:
            outcome = await self._run_under(lease)
            is_done = True
        finally:
            if not is_done:
                self._tell_what_is_left(lease)
        return outcome

    def _tell_what_is_left(self, lease: Lease) -> None:
        flow = self._site.flow
        if self._has_stopped:
            self._tell(
                f"{flow.flow} was told to stop, and is left so: run this again, or, where readers stay, start it "
                "(heliograph connectors resume)"
            )
        if lease.record.denied:
            self._tell(
                f"cluster {flow.source_alias} still refuses writers of {named(lease.record.denied)}: run this again, "
                f"or let them in with --undo {self._file}"
            )

    async def _run_under(self, lease: Lease) -> Outcome:
        site, wish = self._site, self._wish
        others = lease.other_undo_files(self._file)
        if others:
            self._tell(f"this goes on with a run that was interrupted, whose own undo file is {', '.join(others)}")
        record = undo.begin(self._file, site.flow.source_alias, site.flow.target_alias)
        if not wish.is_gone:
            if wish.denies_writes:
                record = await self._deny(lease, record)
            await self._step(lease, "drain")
            await start_again(site, self._control, self._tell)
            denied = lease.record.denied
            await drain(site, self._tell, lambda: _still_ours(lease), wish.timeout_s, self._stalled_s, denied)
        await self._step(lease, "stop the flow")
        self._has_stopped = self._control is not None
        await stop_flow(site, self._control, self._tell, lambda: _still_ours(lease), wish.timeout_s)
        if not wish.is_gone:
            await self._check_drained()
        ends = await copied_ends(site, self._tell)
        if not wish.is_gone:
            record = await self._begin_way_back(lease, ends, record)
        await self._step(lease, "move the groups")
        looked = await self.look_again()
        record = await self._move(lease, looked, record)
        if not wish.is_gone:
            await self._check_left(looked)
        await self._step(lease, "prove")
        proofs = await prove(site, looked.groups.moves, wish.sample, is_gone=wish.is_gone)
        await self._step(lease, "done")
        replace(record, is_finished=True).write()
        return Outcome(looked, tuple(proofs), lease.other_undo_files(self._file))

    async def look_again(self) -> Preflight:
        """Raises PermanentError where groups cannot be moved now."""
        looked = await self.look()
        held = [one for one in looked.obstacles if one not in looked.in_the_way]
        if held:
            raise PermanentError(f"{_some(held)}; then run this again")
        return looked

    async def _begin_way_back(self, lease: Lease, ends: Mapping[TopicPartition, CopiedEnd], record: Undo) -> Undo:
        """Before any group moves: else readers go on, and nobody knows yet whether what they read comes back twice."""
        await self._step(lease, "begin of the way back")
        site = self._site
        due, objections = await way_back(site, ends, self._back, leaves_stranded=self._wish.leaves_stranded)
        if objections:
            raise PermanentError(f"{_some(objections)}; then run this again")
        if due:
            record = record.with_starts(due)
            await self.write(lease, record)
            await store_starts(site, due)
            self._tell(f"{site.back.flow} will begin behind what {site.flow.flow} copied, in {len(due)} partitions")
        return record

    async def _deny(self, lease: Lease, record: Undo) -> Undo:
        await self._step(lease, "deny writes")
        site = self._site
        lag = await LagReader(site.flow, site.source, site.target).all()
        wanted = {one.topic for one in without_heartbeats(lag.partitions, site.flow.policy)}
        ours = {*lease.record.denied, *record.denied}
        # What somebody else has refused is not ours to allow.
        topics = tuple(sorted(wanted - (await denied_already(site.source, wanted) - ours)))
        first = await first_rules(site.source, topics)
        if first.why_not:
            raise PermanentError(first.why_not)
        if first.doubt:
            self._tell(first.doubt)
        if not {*topics} <= {*lease.record.denied}:  # else the file of the run before has them
            record = record.with_denied(topics)
            await self.write(lease, record, tuple(sorted({*lease.record.denied, *topics})))
        await deny_writes(site.source, topics)
        self._tell(f"cluster {site.flow.source_alias} refuses writers of {len(topics)} topics")
        return record

    async def _check_drained(self) -> None:
        site = self._site
        now = await behind(site, LagReader(site.flow, site.source, site.target))
        if not now.is_copied:
            if self._control is not None:
                await self._control.resume()
                self._has_stopped = False
            raise RetriableError(
                f"{now}: cluster {site.flow.source_alias} was written to while {site.flow.flow} was being stopped: "
                "stop the producers, or say --deny-writes; start the flow where it is stopped, and run this again"
            )

    async def _check_left(self, moved: Preflight) -> None:
        """Raises RetriableError where groups went on at the source while they were moved."""
        now = await preflight.groups_now(self._site, self._wish)
        if changed := gone_on(moved.groups, now):
            raise RetriableError(
                f"{_some(changed)}: stop its consumers on cluster {self._site.flow.source_alias}, keep those on "
                f"cluster {self._site.flow.target_alias} stopped, and run this again"
            )

    async def _move(self, lease: Lease, looked: Preflight, record: Undo) -> Undo:
        due = looked.groups.due
        if not due:
            self._tell("every group stands where it should already")
            return record
        record = record.with_moves(due)
        await self.write(lease, record)
        self._tell(f"undo file: {record.file}")
        for group, offsets in to_commit(due).items():
            _still_ours(lease)
            refused = await move(self._site.target, group, offsets)
            if refused:
                raise PermanentError(f"group {group} was not moved in full: {_in_words(refused)}; run this again")
            await self._check_moved(group, [one for one in due if one.group == group])
            self._tell(f"group {group} moved in {len(offsets)} partitions")
        return record

    async def _check_moved(self, group: str, moves: Sequence[GroupMove]) -> None:
        now = await committed(self._site.target, group)
        wrong = [one for one in moves if one.target not in now or now[one.target].offset != one.after]
        if wrong:
            raise RetriableError(f"group {group} stands elsewhere than it was moved to: somebody uses it")

    async def write(self, lease: Lease, record: Undo, denied: tuple[str, ...] | None = None) -> None:
        """Before anything that it says is changed."""
        kept = record.write()
        if kept is not None:
            self._tell(f"{record.file} was of a run before, which is not gone on with: it is kept as {kept}")
        await lease.store(denied=denied, undo_file=record.file, kept_as=kept)

    async def _step(self, lease: Lease, step: str) -> None:
        _still_ours(lease)
        await lease.store(step=step)


def _some(lines: Sequence[str]) -> str:
    more = f" (and {len(lines) - _NAMED} more)" if len(lines) > _NAMED else ""
    return f"{'; '.join(lines[:_NAMED])}{more}"


def _in_words(refused: Mapping[Partition, str]) -> str:
    return ", ".join(f"{topic}-{index}: {why}" for (topic, index), why in sorted(refused.items()))


def _still_ours(lease: Lease) -> None:
    if lease.lost is not None:
        raise lease.lost


async def start_again(site: Site, control: FlowControl | None, tell: Tell) -> None:
    """Start the flow if a run before has left it stopped, it is behind, and its workers can be told.

    Raises PermanentError where it would copy back what came from its target, and as the clusters and the workers.
    """
    if control is None or await control.state() not in _STOPPED:
        return
    now = await behind(site, LagReader(site.flow, site.source, site.target))
    if now.is_copied:
        return
    flow, there = site.flow, site.turned()
    due, refused = await starts_due(there, await copied_ends(there))
    if due or refused:
        raise PermanentError(
            f"{flow.flow} is stopped, {now}, and would copy back what {there.flow.flow} has brought to cluster "
            f"{flow.source_alias}: heliograph failback --from {flow.source_alias} --to {flow.target_alias} has it "
            "begin behind that"
        )
    await control.resume()
    tell(f"{flow.flow} is stopped, {now}: its workers were told to start it again")
