"""Watch the lag of the mirrors of a worker. A task reports the current lag and state of the partitions that it copies;
the watch polls the source for others, and the sizes and ages of partitions that have moved since."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from connect.api.connector import Props
from connect.api.source import ConnectorHere, TaskReport
from connect.core.errors import HeliographError
from connect.core.model import State
from connect.kafka.concurrency import Scope, in_turns, wall_ms
from connect.kafka.security.connection_settings import open_stores
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_facts import SAMPLE_S
from connectors.flow_progress import LagSnapshot, PartitionLag, Resting
from connectors.formats.types import FlowName, TopicPartition
from connectors.internal_topics import PartitionState, read_states, record_settings
from connectors.lag_reader import NOTICED_WITHIN_S, ContactWatch, LagReader
from connectors.source.mirror_reports import partition_rows
from connectors.source.plugin import settings_of
from connectors.source.positions.partition_pairs import STARTING, Entry
from connectors.source.task import MirrorSourceTask
from connectors.source.worker_context import FlowParts, MirrorHost, looked_at_parts
from connectors.topic_sync.partition_assignment import assigned_before
from connectors.verification.state import read_last_run

log = logging.getLogger(__name__)

#: Returns, by name, getters of the mirrors that concern this worker, even those without tasks here.
ConnectorsHere = Callable[[], Mapping[str, Callable[[], ConnectorHere]]]
_TICK_S: Final = 1.0
_AFTER_ERROR_S: Final = 10.0
#: Polls take at most this share of the time: after a slow one the next is delayed.
_SHARE: Final = 0.1
#: Partitions per poll whose oldest record to copy is looked up, because its timestamp gives the lag in time.
_STAMPS: Final = 200
#: A slice that fetched within this time knows where the source's partitions end.
_CURRENT_MS: Final = 5000
#: States in the group of tasks that copy or are about to.
_TO_RUN: Final = frozenset({State.UNASSIGNED, State.RUNNING, State.RESTARTING})
#: The state of a partition that no task has.
_WITHOUT_TASK: Final = State.UNASSIGNED.lower()
#: How often the record of the last verification is read.
_VERIFIED_EACH_S: Final = 60.0
#: How long stored positions of tasks that do not run are cached, if no task starts meanwhile.
_STORED_S: Final = 60.0


@dataclass(slots=True)
class _Watched:
    """A watched connector; replaced when its client settings change."""

    config: Props
    settings: MirrorSourceSettings
    clients: FlowClients
    parts: FlowParts
    closing: AsyncExitStack
    reader: LagReader
    watch: ContactWatch
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    stored_s: float = float("-inf")
    #: The tasks of the last poll that ran here, and the lag of their partitions for which nothing waited and that have
    #: not moved since.
    running: list[MirrorSourceTask] = field(default_factory=list)
    at_rest: dict[TopicPartition, PartitionLag] = field(default_factory=dict)
    #: The configs of the tasks of the last poll, and the partitions of each.
    configs: list[Props] = field(default_factory=list)
    assigned: list[frozenset[TopicPartition]] = field(default_factory=list)
    #: As of the last poll.
    is_stopped: bool = False
    starts: int = 0


class LagWatch:
    """Polls the lag of one worker's mirrors into ``host.seen``."""

    def __init__(self, host: MirrorHost, here: ConnectorsHere) -> None:
        self._host, self._here = host, here
        self._watched: dict[str, _Watched] = {}
        self._due_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        #: Tasks that ran at the last poll; a change makes the next one due.
        self._ran: dict[str, frozenset[tuple[str, int]]] = {}
        #: Since when connectors have had starting tasks.
        self._starting_s: dict[str, float] = {}
        #: Since when watched connectors have been missing here.
        self._absent_s: dict[str, float] = {}
        self._scope = Scope("lag of mirrors")

    def start(self) -> None:
        """Start polling, within a running loop."""
        self._scope.spawn(self._forever(), f"lag of mirrors in {self._host.group_id}")
        self._scope.spawn(read_last_runs(self._host, self._watched), f"last verifications in {self._host.group_id}")
        self._scope.spawn(self._sample_forever(), f"last hour of mirrors in {self._host.group_id}")

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
                    self._said.pop(name, None)
                    self._host.forget(name)
            self._absent_s = {name: since_s for name, since_s in self._absent_s.items() if name not in here}
            for name, connector in here.items():
                running = frozenset(
                    key for key, task in self._host.running.items() if key[0] == name and task.state != STARTING
                )
                if time.monotonic() >= self._due_s.get(name, 0.0) or running != self._ran.get(name):
                    await self._look(name, connector)
                    self._ran[name] = running
            await asyncio.sleep(_TICK_S)

    async def _sample_forever(self) -> None:
        while True:
            for name in self._here():
                self._host.sample(name)
                await asyncio.sleep(0)
            await asyncio.sleep(SAMPLE_S)

    def _is_over(self, name: str) -> bool:
        """Return whether a missing connector no longer concerns this worker. It still does if the worker has lost it
        because a cluster does not answer, which metrics have to show for that time."""
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
                before = self._host.seen.get(name)  # kept until the next poll, which waits for the source's answer
                lags = {} if before is None else before.lags
                self._host.seen[name] = _of_stopped(watched.settings.flow_name, lags, {})
                watched.stored_s = float("-inf")
            watched.is_stopped = here.is_stopped
            if watched.starts != (starts := self._host.starts[name]):
                # because a task that has started, even one that has failed since, may have moved its positions
                watched.starts, watched.stored_s = starts, float("-inf")
            if not watched.watch.contact.knows_lag:
                interval_s = _TICK_S  # the watch has logged why; once the source answers, the next poll is due
            elif interval_s < float("inf") and here.is_stopped:
                await self._look_at_all(name, watched)
            elif interval_s < float("inf"):
                await self._look_at(name, watched, here.tasks)
            self._said.pop(name, None)
        except HeliographError as error:
            if self._said.get(name) != str(error):
                self._said[name] = str(error)
                log.warning("%s: its lag cannot be read: %s", name, error)
        except Exception as error:  # a bug in the metrics must not stop the copy
            log.error("%s: its lag cannot be read", name, exc_info=error)
        took_s = time.monotonic() - began_s
        self._due_s[name] = began_s + max(interval_s, took_s / _SHARE)

    async def _look_at(self, name: str, watched: _Watched, tasks: Sequence[TaskReport]) -> None:
        running = [task for (connector, _), task in self._host.running.items() if connector == name]
        is_same, watched.running = running == watched.running, running
        try:
            waiting, resting = await self._read(name, watched, tasks, is_same=is_same)
        except BaseException:
            watched.running = []  # so that the next poll looks at everything, even if no task runs then
            watched.at_rest.clear()
            raise
        lags = watched.at_rest | waiting
        self._host.seen[name] = LagSnapshot(watched.settings.flow_name, wall_ms(), lags, resting, waiting=waiting)

    async def _read(
        self, name: str, watched: _Watched, tasks: Sequence[TaskReport], *, is_same: bool
    ) -> tuple[dict[TopicPartition, PartitionLag], tuple[Resting, ...]]:
        """Read the lag of the partitions that are not known to be at rest; return it, and those whose tasks do not
        run. ``is_same``: whether the tasks that run here are those of the last poll."""
        moved: dict[TopicPartition, tuple[MirrorSourceTask, Entry]] = {}
        positions: dict[TopicPartition, int] = {}
        at_rest, known = watched.at_rest, self._host.seen[name].lags if name in self._host.seen else {}
        if not is_same:
            at_rest.clear()
        for task in watched.running:
            is_current = wall_ms() - task.meters.fetched_ms <= _CURRENT_MS
            async for source in in_turns(_take_news(task, everything=not (is_same and is_current))):
                at_rest.pop(source, None)
                if (entry := task.ledger.entries.get(source)) is None or entry.position is None:
                    continue
                if is_current and source in known and _is_at_rest(known[source], entry):
                    at_rest[source] = known[source]
                else:
                    moved[source], positions[source] = (task, entry), entry.position.next_source_offset
        starting = self._starting(name, tasks)
        own = [of for task, of in zip(tasks, _assigned(watched, tasks), strict=True) if task.task not in starting]
        without = frozenset[TopicPartition]().union(*own).difference(at_rest, positions)
        positions |= await self._stored(watched, sorted(without))
        read = await watched.reader.of(positions, _STAMPS)
        waiting = {TopicPartition(one.topic, one.partition): one for one in read.partitions}
        async for source, (task, entry) in in_turns(moved.items()):
            if source in waiting and _is_at_rest(waiting[source], entry):
                at_rest[source] = waiting.pop(source)
            else:
                task.news[source] = None
        idle = [one for one in tasks if (name, one.task) not in self._host.running and one.task not in starting]
        return waiting, await _resting(watched, idle)

    async def _look_at_all(self, name: str, watched: _Watched) -> None:
        """Poll the lag of a connector without tasks, from its stored positions."""
        now_s = time.monotonic()
        if now_s - watched.stored_s > _STORED_S:
            watched.stored, watched.stored_s = await watched.reader.positions(), now_s
        lag = await watched.reader.of(watched.stored, _STAMPS)
        noted = await read_states(watched.parts.store, record_settings(watched.settings))
        seen = {TopicPartition(one.topic, one.partition): one for one in lag.partitions}
        self._host.seen[name] = _of_stopped(watched.settings.flow_name, seen, noted)

    def _starting(self, name: str, tasks: Sequence[TaskReport]) -> set[int]:
        """Return the tasks that are reading their stored positions and will report them soon, so that the watch does
        not read them too; none once that takes long."""
        here = {index for (of, index), task in self._host.running.items() if of == name and task.state != STARTING}
        starting = {task.task for task in tasks if task.state in _TO_RUN} - here
        if not starting:
            self._starting_s.pop(name, None)
            return starting
        since_s = self._starting_s.setdefault(name, time.monotonic())
        return starting if time.monotonic() - since_s < _STORED_S else set()

    async def _stored(self, watched: _Watched, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        now_s = time.monotonic()
        is_known = all(one in watched.stored for one in partitions)
        if partitions and (now_s - watched.stored_s > _STORED_S or not is_known):
            watched.stored, watched.stored_s = await watched.reader.stored(partitions), now_s
        return {one: watched.stored[one] for one in partitions if one in watched.stored}

    async def _watch(self, name: str, config: Props) -> _Watched:
        await open_stores(config)
        settings, clients = settings_of(config, self._host)
        known = self._watched.get(name)
        if known is not None and known.clients == clients:
            if known.config != config:
                known.config, known.settings = config, settings
                known.reader = LagReader(settings, known.parts.clusters.source, known.parts.store)
                known.stored_s, known.running = float("-inf"), []  # so that the next poll looks at everything
                known.at_rest.clear()
                self._host.seen.pop(name, None)  # what was read there is at rest for as long as nothing moves
            return known
        await self._forget(name)
        closing = AsyncExitStack()
        # Separate connections, so that a slow request does not delay those of tasks.
        parts = await closing.enter_async_context(
            looked_at_parts(clients, settings.source_alias, settings.target_alias, self._host.long_logs)
        )
        reader = LagReader(settings, parts.clusters.source, parts.store)
        watch = self._host.watches[name] = ContactWatch(settings.flow_name, parts.clusters.source, parts.store)
        closing.push_async_callback(watch.stop)
        watched = self._watched[name] = _Watched(config, settings, clients, parts, closing, reader, watch)
        return watched

    async def _forget(self, name: str) -> None:
        known: dict[str, Any]
        for known in (self._due_s, self._ran, self._absent_s, self._starting_s, self._host.seen, self._host.watches):
            known.pop(name, None)
        if (watched := self._watched.pop(name, None)) is not None:
            await watched.closing.aclose()


def _take_news(task: MirrorSourceTask, *, everything: bool) -> list[TopicPartition]:
    """Return the partitions of a task that may not be at rest any more, or ``everything``."""
    ledger = task.ledger
    found = ledger.entries if everything else {**task.news, **ledger.behind, **ledger.apart}
    task.news.clear()
    return list(found)


def _assigned(watched: _Watched, tasks: Sequence[TaskReport]) -> list[frozenset[TopicPartition]]:
    """Return the partitions of each task, which are read from its config if that has changed."""
    configs = [task.config for task in tasks]
    if configs != watched.configs:
        watched.configs, watched.assigned = configs, [frozenset(own) for own in assigned_before(configs)]
    return watched.assigned


def _is_at_rest(lag: PartitionLag, entry: Entry) -> bool:
    """Return whether nothing waits and nothing has moved since ``lag`` was read, so that it need not be read again."""
    at, position = lag.position, entry.position
    return (
        entry.is_copied
        and lag.end == at == entry.high_watermark
        and position is not None
        and position.next_source_offset == at
    )


def _of_stopped(
    flow: FlowName, lags: Mapping[TopicPartition, PartitionLag], noted: Mapping[TopicPartition, PartitionState]
) -> LagSnapshot:
    resting = tuple(
        Resting(None, one, lag.target_topic, noted[one].state if one in noted else _WITHOUT_TASK)
        for one, lag in lags.items()
    )
    return LagSnapshot(flow, wall_ms(), lags, resting, is_stopped=True)


async def _resting(watched: _Watched, idle: Sequence[TaskReport]) -> tuple[Resting, ...]:
    """Return the partitions of ``idle`` tasks."""
    if not idle:
        return ()
    noted = await read_states(watched.parts.store, record_settings(watched.settings))
    return tuple(
        Resting(row["task"], TopicPartition(row["topic"], row["partition"]), row["target_topic"], row["state"])
        for row in await partition_rows(watched.settings, idle, noted)
    )


async def read_last_runs(host: MirrorHost, watched: Mapping[str, _Watched]) -> None:
    """Read what is known of the connectors in ``watched`` into ``host.verified``, without end."""
    due_s: dict[str, float] = {}
    said: dict[str, str] = {}
    while True:
        for name, one in list(watched.items()):
            if time.monotonic() < due_s.get(name, 0.0):
                continue
            due_s[name] = time.monotonic() + _VERIFIED_EACH_S
            try:
                source = one.parts.clusters.source if host.contact(name).knows_lag else None
                last = await read_last_run(source, one.parts.store, one.settings)
                if watched.get(name) is one:  # else it was forgotten meanwhile
                    host.verified[name] = one.settings, last
                said.pop(name, None)
            except HeliographError as error:
                if said.get(name) != str(error):
                    log.warning("%s: what its last verification found cannot be read: %s", name, error)
                said[name] = str(error)
            except Exception as error:  # a bug in the metrics must not stop the copy
                log.error("%s: what its last verification found cannot be read", name, exc_info=error)
        await asyncio.sleep(_TICK_S)
