"""Readers taken back to where they came from: the flow back is begun where the flow there ended, then it is a failover
the other way round.

A partition of which the old primary has lost records that were copied is a special case: the flow begins where the two
logs part, so that nothing is missing there. The old primary's own tail lies before what comes back; groups that read
such a partition are blocked. (To replace that tail by the new primary's records, ``_prepare`` is the place.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from connect.core.errors import PermanentError
from connectors.failover.collect import collect
from connectors.failover.denying import allow_writes
from connectors.failover.draining import FlowControl, Tell, copied_ends, how_to_start, stop_flow
from connectors.failover.execute import Done, Failover
from connectors.failover.journal import Journal, denied_by, read_runs
from connectors.failover.lease import Lease, hold
from connectors.failover.plan import Plan, Wish, plan
from connectors.failover.site import Site
from connectors.failover.snapshot import Snapshot, named
from connectors.failover.starting import WayBack, comes_back, find_diverged, returns, store_starts, way_back
from connectors.failover.unreplicated import find
from connectors.partition_states import read_states
from connectors.record_settings import record_settings
from connectors.stored_offsets import read_positions


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

    async def run(self, command: str, looked: Plan) -> Done:
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
