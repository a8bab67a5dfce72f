"""Log takeovers and skipped records of a task's partitions, and store the states of those that are not copied.

- A takeover is one log line per partition, because operators and tests read it.
- A record is skipped (``errors.tolerance = all``) if the target refuses it, or if its transformation fails.
- The stored states follow the task's ledger. A task whose partitions have all stopped ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from connect.core.audit import state_changed
from connect.core.errors import HeliographError, PermanentError
from connect.core.wording import counted
from connect.kafka.concurrency import wall_ms
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches import error_codes
from connectors.dataplane.resume import Resumed
from connectors.formats.position import Position
from connectors.formats.types import Skip, TopicPartition
from connectors.internal_topics import PartitionState, StateRecords
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import Entry

resume_log = logging.getLogger("connectors.source.resume")


def log_resumed(flow: str, one: Resumed) -> None:
    """Log where a partition continues; ``may_double``: how many records may appear twice at most."""
    plan = one.plan
    if one.fallback or one.may_double:
        resume_log.warning(
            "resumed %s %s: surplus=%d verified=%s fallback=at-least-once may_double=%d source_offset=%d reason=%s",
            flow,
            plan.source,
            one.arrived,
            "false" if one.fallback else "true",
            one.may_double,
            plan.next_source_offset,
            (one.fallback or _LATE).replace(" ", "_"),
        )
    else:
        resume_log.info(
            "resumed %s %s: surplus=%d verified=true fallback=none source_offset=%d target_offset=%d%s",
            flow,
            plan.source,
            one.arrived,
            plan.next_source_offset,
            plan.target_end,
            f" ({counted(one.arrived, 'record')} of the source were there already)" if one.arrived else "",
        )


_LATE = "batches of a predecessor that could not be fenced came in late"


def log_late_records(flow: str, source: TopicPartition, late: int) -> None:
    """Log how many records at most an unfenced predecessor wrote after the target was scanned."""
    said = "resumed %s %s: surplus=0 verified=false fallback=at-least-once may_double=%d reason=%s"
    resume_log.warning(said, flow, source, late, _LATE.replace(" ", "_"))


def log_committed(flow: str, plan: PartitionPlan, position: Position) -> None:
    """Log where a partition continues whose position was committed with its records; ``aborted``: the number of target
    offsets after it that hold aborted records and markers."""
    resume_log.info(
        "resumed %s %s: surplus=0 aborted=%d verified=true fallback=none source_offset=%d target_offset=%d",
        flow,
        plan.source,
        plan.target_end - position.target_end,
        plan.next_source_offset,
        plan.target_end,
    )


log = logging.getLogger(__name__)

#: The interval of summary lines, if not each record is logged.
EVERY_S: Final = 10.0
#: Partitions that one line names.
_MOST: Final = 5


class SkipLog:
    """Logs each skipped record (``errors.log.enable``), or a summary every few seconds."""

    def __init__(self, flow: str, *, each: bool) -> None:
        self._flow, self._each = flow, each
        self._reported_s = float("-inf")
        self._unreported: dict[tuple[TopicPartition, int], tuple[int, int]] = {}  # count, last offset

    def add(self, source: TopicPartition, skips: Sequence[Skip]) -> None:
        for first, last, code in skips:
            if self._each:
                said = "%s: skipped the record of topic %s partition %d at offset %d: %s"
                for offset in range(first, last + 1):
                    log.warning(said, self._flow, *source, offset, _why(code))
            else:
                count, _ = self._unreported.get((source, code), (0, 0))
                self._unreported[source, code] = (count + last - first + 1, last)

    def report(self, now_s: float, *, is_last: bool = False) -> None:
        """Log a summary of records that were not logged yet, if it is due."""
        if not self._unreported or (now_s - self._reported_s < EVERY_S and not is_last):
            return
        self._reported_s = now_s
        total = sum(count for count, _ in self._unreported.values())
        parts = [
            f"{count} of {source}, the last at offset {last}: {_why(code)}"
            for (source, code), (count, last) in list(self._unreported.items())[:_MOST]
        ]
        parts += [f"and {len(self._unreported) - _MOST} more partitions"] if len(self._unreported) > _MOST else []
        said = "%s: skipped %d records (errors.log.enable = true names each): %s"
        log.warning(said, self._flow, total, "; ".join(parts))
        self._unreported.clear()


def log_stopped(task: str, entry: Entry, more: str) -> None:
    """Log that a partition is not copied any more, and why; ``more`` follows the reason."""
    source, state = entry.pair.source, entry.state
    about = task, source, state, entry.reason, more
    state_changed(log, logging.ERROR, f"partition-{state}", str(source), "%s: %s %s: %s%s", *about)


def _why(code: int) -> str:
    if code == error_codes.NOT_TRANSFORMED:
        return "it could not be transformed"
    return f"the target refuses it: {error_codes.code_name(code)}"


_LOOK_S: Final = 1.0
_AGAIN_S: Final = 10.0
#: Partitions that one error names.
_NAMED: Final = 20


class PartitionsStopped(PermanentError):
    """All partitions of a task have stopped, and none continues before the task is restarted."""


def states_of(entries: Iterable[Entry], now_ms: int) -> dict[TopicPartition, PartitionState]:
    """Return the states of partitions that are not copied now, except leaving ones, which their next task reports."""
    return {
        entry.pair.source: PartitionState(entry.state, entry.reason, entry.pair.target.topic, now_ms, entry.gap)
        for entry in entries
        if entry.is_stopped or entry.holds_back
    }


def changes(
    noted: Mapping[TopicPartition, PartitionState],
    states: Mapping[TopicPartition, PartitionState],
    copied: Collection[TopicPartition],
) -> dict[TopicPartition, PartitionState | None]:
    """Return the changes from the ``noted`` states to ``states``; None deletes the state of a ``copied`` partition."""
    found: dict[TopicPartition, PartitionState | None] = {
        one: state for one, state in states.items() if not state.is_as(noted.get(one))
    }
    return {**found, **dict.fromkeys(copied)}


class StateNotes:
    """Stores the states of a task's partitions, if ``records`` is given; ``ledger`` returns none during a takeover."""

    def __init__(self, label: str, records: StateRecords | None, ledger: Callable[[], Ledger | None]) -> None:
        self._label, self._records, self._ledger = label, records, ledger
        self._noted: dict[TopicPartition, PartitionState] | None = None
        self._noting = asyncio.Lock()
        self._said = ""

    async def keep(self) -> None:
        """Store changes until cancelled."""
        while True:
            is_noted = await self.note()
            await asyncio.sleep(_LOOK_S if is_noted else _AGAIN_S)

    async def note(self) -> bool:
        """Store what has changed. Return False if that fails, which is logged once; the copy does not depend on it."""
        if self._records is None:
            return True
        async with self._noting:
            try:
                await self._note(self._records)
            except HeliographError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    log.warning("%s: states of partitions cannot be stored: %s; retrying", self._label, error)
                return False
        return True

    async def _note(self, records: StateRecords) -> None:
        if self._noted is None or (self._noted and await records.is_recreated()):
            self._noted = await records.load()
        if (here := self._ledger()) is None:
            return
        states = states_of(here.apart.values(), wall_ms())
        copied = [one for one in self._noted if one in here.entries and one not in here.apart]
        if changed := changes(self._noted, states, copied):
            await records.store(changed)
            after = {**self._noted, **changed}
            self._noted = {one: state for one, state in after.items() if state is not None}


async def end_when_all_stopped(
    label: str,
    ledger: Callable[[], Ledger | None],
    settle: Callable[[], Awaitable[None]],
    may_return: Callable[[Entry], bool],
) -> None:
    """Call ``settle`` to store the states and raise PartitionsStopped if, at two checks in a row, no entry continues by
    itself. ``ledger`` returns none during a takeover. ``may_return``: whether a stopped entry may still continue."""
    before = False
    while True:
        here = ledger()
        now = here is not None and here.stand_still(lambda entry: entry.is_stopped and not may_return(entry))
        if here is not None and now and before:
            await settle()
            raise PartitionsStopped(_reported(label, here.entries.values()))
        before = now
        await asyncio.sleep(_LOOK_S)


def _reported(label: str, entries: Collection[Entry]) -> str:
    lines = [f"{entry.pair.source} is {entry.state}: {entry.reason}" for entry in list(entries)[:_NAMED]]
    lines += [f"and {len(entries) - _NAMED} more"] if len(entries) > _NAMED else []
    count = "its only partition has" if len(entries) == 1 else f"all of its {len(entries)} partitions have"
    return f"{label}: {count} stopped. Fix the cause, then restart the task: {'; '.join(lines)}"
