"""Log and record the state of a task's partitions: take-overs, left-out records, and partitions that are not copied.

- A take-over is one line in the log for each partition, because operators and tests read it.
- A record is left out (``errors.tolerance = all``) when the target refuses it, or no transformation can take it.
- The records of partitions that are not copied follow a task's ledger; a task that has no others ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from connect.core.errors import HeliographError, PermanentError
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches import error_codes
from connectors.dataplane.resume import Resumed
from connectors.formats.position import Position
from connectors.formats.types import Skip, TopicPartition
from connectors.internal_topics import PartitionState, StateRecords
from connectors.source.positions.partition_pairs import Entry

resume_log = logging.getLogger("connectors.source.resume")


def log_resumed(flow: str, one: Resumed) -> None:
    """Log where a partition continues; ``may_double``: at most so many records appear twice."""
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
            "resumed %s %s: surplus=%d verified=true fallback=none source_offset=%d target_offset=%d",
            flow,
            plan.source,
            one.arrived,
            plan.next_source_offset,
            plan.target_end,
        )


_LATE = "batches of a predecessor that could not be fenced came in late"


def log_late_records(flow: str, source: TopicPartition, late: int) -> None:
    """Log how many records at most an unfenced predecessor wrote behind the scan of the target."""
    resume_log.warning(
        "resumed %s %s: surplus=0 verified=false fallback=at-least-once may_double=%d reason=%s",
        flow,
        source,
        late,
        _LATE.replace(" ", "_"),
    )


def log_committed(flow: str, plan: PartitionPlan, position: Position) -> None:
    """Log where a partition continues that was stored together with its records; ``aborted``: so many offsets behind it
    hold nothing that counts, markers included."""
    resume_log.info(
        "resumed %s %s: surplus=0 aborted=%d verified=true fallback=none source_offset=%d target_offset=%d",
        flow,
        plan.source,
        plan.target_end - position.target_end,
        plan.next_source_offset,
        plan.target_end,
    )


log = logging.getLogger(__name__)

#: Where not each record has a line of its own, one line tells of all since the line before.
EVERY_S: Final = 10.0
#: So many partitions are named in a line.
_MOST: Final = 5


class SkipLog:
    """A line for each record (``errors.log.enable``), else a sum of them every few seconds. Time is an argument."""

    def __init__(self, flow: str, *, each: bool) -> None:
        self._flow = flow
        self._each = each
        self._told_s = float("-inf")
        self._untold: dict[tuple[TopicPartition, int], tuple[int, int]] = {}  # count, last offset

    def add(self, source: TopicPartition, skips: Sequence[Skip]) -> None:
        for first, last, code in skips:
            if self._each:
                for offset in range(first, last + 1):
                    log.warning(
                        "%s: skipped the record of topic %s partition %d at offset %d: %s",
                        self._flow,
                        *source,
                        offset,
                        _why(code),
                    )
            else:
                count, _ = self._untold.get((source, code), (0, 0))
                self._untold[source, code] = (count + last - first + 1, last)

    def tell(self, now_s: float, *, is_last: bool = False) -> None:
        """One line of what was not told yet, if it is time."""
        if not self._untold or (now_s - self._told_s < EVERY_S and not is_last):
            return
        self._told_s = now_s
        total = sum(count for count, _ in self._untold.values())
        parts = [
            f"{count} of {source}, the last at offset {last}: {_why(code)}"
            for (source, code), (count, last) in list(self._untold.items())[:_MOST]
        ]
        more = f"; and {len(self._untold) - _MOST} more partitions" if len(self._untold) > _MOST else ""
        log.warning(
            "%s: skipped %d records (errors.log.enable = true names each): %s%s",
            self._flow,
            total,
            "; ".join(parts),
            more,
        )
        self._untold.clear()


def _why(code: int) -> str:
    if code == error_codes.NOT_TRANSFORMED:
        return "it could not be transformed"
    return f"the target refuses it: {error_codes.code_name(code)}"


_LOOK_S: Final = 1.0
_AGAIN_S: Final = 10.0
#: Partitions that are named in one error.
_NAMED: Final = 20


class PartitionsStopped(PermanentError):
    """All partitions of a task have stopped: none of them goes on before the task is started again."""


def states_of(entries: Iterable[Entry], now_ms: int) -> dict[TopicPartition, PartitionState]:
    """Of the partitions that are not copied now; those that are leaving are the affair of who copies them next."""
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
    """From what is ``noted`` to the ``states`` that are; ``copied`` are partitions of this task in no such state."""
    found: dict[TopicPartition, PartitionState | None] = {
        one: state for one, state in states.items() if not state.is_as(noted.get(one))
    }
    return {**found, **{one: None for one in copied if one in noted}}


class StateNotes:
    """Of one task; ``records`` None: nothing is noted. ``entries`` gives none while they are being taken over."""

    def __init__(self, label: str, records: StateRecords | None, entries: Callable[[], Collection[Entry]]) -> None:
        self._label = label
        self._records = records
        self._entries = entries
        self._noted: dict[TopicPartition, PartitionState] | None = None
        self._noting = asyncio.Lock()
        self._said = ""

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            is_noted = await self.note()
            await asyncio.sleep(_LOOK_S if is_noted else _AGAIN_S)

    async def note(self) -> bool:
        """Store what has changed; False where that cannot be done now, which is said once: the copy does not depend on
        it."""
        if self._records is None:
            return True
        async with self._noting:
            try:
                await self._note(self._records)
            except HeliographError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    log.warning("%s: states of partitions cannot be noted: %s; trying again", self._label, error)
                return False
        return True

    async def _note(self, records: StateRecords) -> None:
        if self._noted is None:
            self._noted = await records.load()
        here = self._entries()
        states = states_of(here, time.time_ns() // 1_000_000)
        copied = {entry.pair.source for entry in here if entry.is_copied}
        if changed := changes(self._noted, states, copied):
            await records.store(changed)
            after = {**self._noted, **changed}
            self._noted = {one: state for one, state in after.items() if state is not None}


async def end_when_all_stopped(
    label: str,
    entries: Callable[[], Collection[Entry]],
    settle: Callable[[], Awaitable[None]],
    may_return: Callable[[Entry], bool],
) -> None:
    """Raise PartitionsStopped when none of ``entries`` goes on by itself, at two looks in a row; ``settle`` stores what
    is known of them. ``entries`` gives none while they are being taken over. ``may_return``: whether one that
    has stopped is still looked at."""
    before = False
    while True:
        here = entries()
        now = bool(here) and all(entry.is_stopped and not may_return(entry) for entry in here)
        if now and before:
            await settle()
            raise PartitionsStopped(_told(label, here))
        before = now
        await asyncio.sleep(_LOOK_S)


def _told(label: str, entries: Collection[Entry]) -> str:
    lines = [f"{entry.pair.source} is {entry.state}: {entry.reason}" for entry in list(entries)[:_NAMED]]
    lines += [f"and {len(entries) - _NAMED} more"] if len(entries) > _NAMED else []
    count = "its only partition has" if len(entries) == 1 else f"all of its {len(entries)} partitions have"
    return f"{label}: {count} stopped, start it again once that is mended; {'; '.join(lines)}"
