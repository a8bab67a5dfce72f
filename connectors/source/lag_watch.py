"""The lag and the states of all partitions that a worker has tasks of, whether these run or not, for its metrics.

A task that copies tells both by itself, as of this moment. Of partitions that stopped, wait, or whose task is paused or
has failed nobody asks the source any more, nor of those whose connector is STOPPED. Here it is asked at an interval, as
are sizes and ages of all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from connect.api.connector import Props
from connect.api.source import ConnectorHere, TaskReport
from connect.core.errors import HeliographError
from connect.core.model import State
from connect.kafka.concurrency import Scope, in_turns
from connectors.clients import FlowClients
from connectors.dataplane.plan import TopicPartition
from connectors.flow_name import FlowName
from connectors.lag import PartitionLag
from connectors.lag_reader import LagReader
from connectors.partition_states import PartitionState, read_states
from connectors.record_settings import record_settings
from connectors.settings import MirrorSourceSettings
from connectors.source.contact_watch import NOTICED_WITHIN_S, ContactWatch
from connectors.source.host import FlowParts, MirrorHost, looked_at_parts
from connectors.source.ledger import STARTING
from connectors.source.plugin import settings_of
from connectors.source.progress import Resting, Seen, Views
from connectors.source.reports import partition_rows
from connectors.source.topology import assigned_before

log = logging.getLogger(__name__)

#: By name, what gives each mirror that is a matter of this worker, whether it has tasks here or not.
ConnectorsHere = Callable[[], Mapping[str, Callable[[], ConnectorHere]]]
_TICK_S: Final = 1.0
_AFTER_ERROR_S: Final = 10.0
#: Looks take at most this share of the time: where one takes long, the next is put off.
_SHARE: Final = 0.1
#: Partitions whose oldest waiting record is looked up in one look; what stands still is looked up once.
_STAMPS: Final = 200
#: So many partitions are looked at before others of the loop have their turn; each takes some 4 us.
_AT_ONCE: Final = 500
#: States, by the group, of tasks that copy or are about to.
_TO_RUN: Final = frozenset({State.UNASSIGNED, State.RUNNING, State.RESTARTING})
#: The state of a partition that no task has.
_WITHOUT_TASK: Final = State.UNASSIGNED.lower()
#: How long stored positions of tasks that do not run are taken as they were read.
_STORED_S: Final = 60.0


@dataclass(slots=True)
class _Watched:
    """One connector, as long as its settings stay the same."""

    settings: MirrorSourceSettings
    clients: FlowClients
    parts: FlowParts
    closing: AsyncExitStack
    reader: LagReader
    watch: ContactWatch
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    stored_s: float = float("-inf")
    #: As of the last look.
    is_stopped: bool = False


class LagWatch:
    """Of one worker. What it sees stands in ``host.seen``."""

    def __init__(self, host: MirrorHost, here: ConnectorsHere) -> None:
        self._host = host
        self._here = here
        self._watched: dict[str, _Watched] = {}
        self._due_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        #: Tasks that had begun to copy at the last look: where others have, the next is due.
        self._ran: dict[str, frozenset[tuple[str, int]]] = {}
        #: Since when connectors have tasks that are about to copy.
        self._starting_s: dict[str, float] = {}
        #: Since when connectors that were watched are no longer here.
        self._absent_s: dict[str, float] = {}
        self._scope = Scope("lag of mirrors")

    def start(self) -> None:
        """Begin to look, within a running loop."""
        self._scope.spawn(self._forever(), f"lag of mirrors in {self._host.group_id}")

    async def stop(self) -> None:
        await self._scope.close()
        for name in list(self._watched):
            await self._forget(name)

    async def _forever(self) -> None:
        while True:
            here = self._here()
            for name in (self._watched.keys() | self._due_s.keys()) - here.keys():
                if self._is_over(name):
                    await self._forget(name)
                    self._host.forget_contact(name)
            self._absent_s = {name: since_s for name, since_s in self._absent_s.items() if name not in here}
            for name, connector in here.items():
                running = frozenset(
                    key for key, task in self._host.running.items() if key[0] == name and task.state != STARTING
                )
                if time.monotonic() >= self._due_s.get(name, 0.0) or running != self._ran.get(name):
                    await self._look(name, connector)
                    self._ran[name] = running
            await asyncio.sleep(_TICK_S)

    def _is_over(self, name: str) -> bool:
        """Whether a connector that is not here is no matter of this worker any more: not if the worker has lost it
        because a cluster does not answer, which has to be seen as long as that lasts."""
        absent_s = time.monotonic() - self._absent_s.setdefault(name, time.monotonic())
        watched = self._watched.get(name)
        if watched is None:
            return True
        contact = watched.watch.contact
        return absent_s > NOTICED_WITHIN_S and False not in (contact.source.answers, contact.target.answers)

    async def _look(self, name: str, connector: Callable[[], ConnectorHere]) -> None:
        interval_s, began_s = _AFTER_ERROR_S, time.monotonic()
        try:
            here = connector()
            watched = await self._watch(name, here.config)
            began_s = time.monotonic()
            interval_s = watched.settings.lag_interval_ms / 1000 or float("inf")
            if here.is_stopped and not watched.is_stopped:
                before = self._host.seen.get(name)  # until the next look, which has to wait while the source is silent
                self._host.seen[name] = _of_stopped(
                    watched.settings.flow_name, {} if before is None else before.lags, {}
                )
                watched.stored_s = float("-inf")
            watched.is_stopped = here.is_stopped
            if not watched.watch.contact.knows_lag:
                interval_s = _TICK_S  # the watch has said why; once the source answers, the next look is due
            elif interval_s < float("inf") and here.is_stopped:
                await self._look_at_all(name, watched)
            elif interval_s < float("inf"):
                await self._look_at(name, watched, here.tasks)
            self._said.pop(name, None)
        except HeliographError as error:
            if self._said.get(name) != str(error):
                self._said[name] = str(error)
                log.warning("%s: how far behind it is cannot be told: %s", name, error)
        except Exception as error:  # a mistake of ours: metrics are not worth more than the copy
            log.error("%s: how far behind it is cannot be told", name, exc_info=error)
        took_s = time.monotonic() - began_s
        self._due_s[name] = began_s + max(interval_s, took_s / _SHARE)

    async def _look_at(self, name: str, watched: _Watched, tasks: Sequence[TaskReport]) -> None:
        running = [task for (connector, _), task in self._host.running.items() if connector == name]
        positions = {
            TopicPartition(view.source_topic, view.source_partition): view.next_source_offset
            async for view in in_turns(Views(running, 0), _AT_ONCE)
            if view.next_source_offset >= 0
        }
        starting = self._starting(name, tasks)
        assigned = assigned_before([task.config for task in tasks])
        partitions = sorted(
            one for task, own in zip(tasks, assigned, strict=True) if task.task not in starting for one in own
        )
        without = [one for one in partitions if one not in positions]
        positions |= {one: at for one, at in (await self._stored(watched, without)).items() if one not in positions}
        lag = await watched.reader.of(positions, _STAMPS)
        seen = {TopicPartition(one.topic, one.partition): one for one in lag.partitions}
        idle = [one for one in tasks if (name, one.task) not in self._host.running and one.task not in starting]
        resting = await _resting(watched, idle)
        self._host.seen[name] = Seen(watched.settings.flow_name, _now_ms(), seen, resting)

    async def _look_at_all(self, name: str, watched: _Watched) -> None:
        """Of a connector without tasks: what it selects, by what is stored."""
        now_s = time.monotonic()
        if now_s - watched.stored_s > _STORED_S:
            watched.stored, watched.stored_s = await watched.reader.positions(), now_s
        lag = await watched.reader.of(watched.stored, _STAMPS)
        noted = await read_states(watched.parts.store, record_settings(watched.settings))
        seen = {TopicPartition(one.topic, one.partition): one for one in lag.partitions}
        self._host.seen[name] = _of_stopped(watched.settings.flow_name, seen, noted)

    def _starting(self, name: str, tasks: Sequence[TaskReport]) -> set[int]:
        """Tasks that are reading where they go on, and tell it in a moment: nothing reads it beside them. One that
        takes long is no longer waited for."""
        starting = {task.task for task in tasks if task.state in _TO_RUN and self._is_silent(name, task.task)}
        if not starting:
            self._starting_s.pop(name, None)
            return starting
        since_s = self._starting_s.setdefault(name, time.monotonic())
        return starting if time.monotonic() - since_s < _STORED_S else set()

    def _is_silent(self, name: str, index: int) -> bool:
        task = self._host.running.get((name, index))
        return task is None or task.state == STARTING

    async def _stored(self, watched: _Watched, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        now_s = time.monotonic()
        is_known = all(one in watched.stored for one in partitions)
        if partitions and (now_s - watched.stored_s > _STORED_S or not is_known):
            watched.stored, watched.stored_s = await watched.reader.stored(partitions), now_s
        return {one: watched.stored[one] for one in partitions if one in watched.stored}

    async def _watch(self, name: str, config: Props) -> _Watched:
        settings, clients = settings_of(config, self._host)
        known = self._watched.get(name)
        if known is not None and known.clients == clients:
            known.settings = settings
            return known
        await self._forget(name)
        closing = AsyncExitStack()
        # Connections of its own: what a broker takes long over must not hold up the tasks'.
        parts = await closing.enter_async_context(
            looked_at_parts(clients, settings.source_alias, settings.target_alias, self._host.long_logs)
        )
        reader = LagReader(settings, parts.clusters.source, parts.store)
        watch = self._host.watches[name] = ContactWatch(settings.flow_name, parts.clusters.source, parts.store)
        closing.push_async_callback(watch.stop)
        watched = self._watched[name] = _Watched(settings, clients, parts, closing, reader, watch)
        return watched

    async def _forget(self, name: str) -> None:
        self._host.seen.pop(name, None)
        self._host.watches.pop(name, None)
        self._due_s.pop(name, None)
        self._ran.pop(name, None)
        self._absent_s.pop(name, None)
        self._starting_s.pop(name, None)
        if (watched := self._watched.pop(name, None)) is not None:
            await watched.closing.aclose()


def _of_stopped(
    flow: FlowName, lags: Mapping[TopicPartition, PartitionLag], noted: Mapping[TopicPartition, PartitionState]
) -> Seen:
    resting = tuple(
        Resting(None, one, lag.target_topic, noted[one].state if one in noted else _WITHOUT_TASK)
        for one, lag in lags.items()
    )
    return Seen(flow, _now_ms(), lags, resting, is_stopped=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _resting(watched: _Watched, idle: Sequence[TaskReport]) -> tuple[Resting, ...]:
    """Partitions of tasks that are here and do not run."""
    if not idle:
        return ()
    noted = await read_states(watched.parts.store, record_settings(watched.settings))
    return tuple(
        Resting(row["task"], TopicPartition(row["topic"], row["partition"]), row["target_topic"], row["state"])
        for row in await partition_rows(watched.settings, idle, noted)
    )
