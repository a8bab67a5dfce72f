"""Keeps the records of partitions that are not copied in step with a task's ledger; ends a task that has no others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from connect.core.errors import HeliographError, PermanentError
from connectors.dataplane.plan import TopicPartition
from connectors.partition_states import PartitionState, StateRecords
from connectors.source.ledger import Entry

log = logging.getLogger(__name__)

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
