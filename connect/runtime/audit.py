"""Writes and reads the audit topic of a worker's group: a queue that never delays what it records, its newest entries,
and what a command has changed on clusters."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final
from uuid import UUID

from connect.core.audit import AuditEntry, decode_entry, in_words
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Pauses, Scope, in_turns, is_set_within, wall_ms
from connect.kafka.log.compacted_topic import make_topic
from connect.kafka.log.log_ranges import read_ranges
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.producer import OutRecord, PlainWriter
from connect.kafka.log.topic_admin import Admin, known_topic

log = logging.getLogger(__name__)

#: Entries that wait for the cluster, and entries of one write.
_WAITING: Final = 1000
_AT_ONCE: Final = 100
_FLUSH_S: Final = 2.0
_RETRY_S: Final = (0.5, 30.0)
_WARN_AGAIN_S: Final = 300.0
_WRITE_S: Final = 10.0
_MAKE_S: Final = 10.0
#: Of a command, for its entry.
_COMMAND_S: Final = 15.0
#: The newest entries, in memory once they have been read; a search looks through these.
_READ: Final = 10_000
_MOST_SHOWN: Final = 1000
_DEFAULT_SHOWN: Final = 100


async def write_entries(cluster: Cluster, admin: Admin, topic: NewTopic, entries: Sequence[AuditEntry]) -> None:
    """Write entries in order; create the topic if it is missing. Raises HeliographError."""
    if await known_topic(cluster, topic.name) is None:
        await make_topic(admin, topic, timeout_s=_MAKE_S)
    writer = PlainWriter(cluster, timeout_s=_WRITE_S)
    # Without a key, which a compacted topic refuses: it would keep the last entry of each key.
    await writer.write(OutRecord(topic.name, b"", entry.to_bytes(), partition=0) for entry in entries)


@dataclass(slots=True)
class Outcome:
    """What a command reports of itself: its exit code, and what it changed."""

    code: int = 1
    detail: str = ""


@asynccontextmanager
async def audited(
    command: str, flow: str, target: Cluster, admin: Admin, topic: NewTopic | None
) -> AsyncIterator[Outcome]:
    """Record a command that changes clusters when it ends, also with an error. If the topic cannot be written, warn;
    None: nothing is recorded."""
    outcome = Outcome()
    try:
        yield outcome
    except BaseException as error:
        outcome.detail = f"{type(error).__name__}: {error}"
        raise
    finally:
        if topic is not None:
            user = f"{getpass.getuser()}@{socket.gethostname()}"
            entry = AuditEntry(
                "command", command, flow, user=user, detail=outcome.detail, status=outcome.code, at_ms=wall_ms()
            )
            try:
                async with asyncio.timeout(_COMMAND_S):
                    await write_entries(target, admin, topic, [entry])
            except (HeliographError, TimeoutError) as error:
                why = str(error) or f"no answer within {_COMMAND_S:g} s"
                log.warning("audit topic %s was not written: %s", topic.name, why)


class AuditLog:
    """The audit of one worker. ``put`` returns at once. While the cluster does not answer, up to a thousand entries
    wait; further ones are counted in ``dropped`` and lost, with a warning. ``topic``: the audit topic; None: nothing is
    recorded. ``worker_id``: this worker in its entries."""

    def __init__(self, cluster: Cluster, admin: Admin, topic: NewTopic | None, worker_id: str) -> None:
        self._cluster = cluster
        self._admin = admin
        self.topic = topic
        self._worker_id = worker_id
        self._waiting: deque[AuditEntry] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = asyncio.Event()
        self._scope = Scope("audit")
        self._warned_s = float("-inf")
        self.written = 0
        self.dropped = 0
        self._reading = asyncio.Lock()
        self._read: deque[bytes] = deque(maxlen=_READ)
        self._topic_id: UUID | None = None
        self._next = 0

    def start(self) -> None:
        if self.topic is not None:
            self._scope.spawn(self._write_all(self.topic), f"audit to {self.topic.name}")

    async def stop(self) -> None:
        """Write what waits, within two seconds, then stop. Harmless when repeated."""
        self._stopping.set()
        if not await is_set_within(self._idle, _FLUSH_S if self._waiting else 0):
            log.warning("%d audit entries were not written before the stop", len(self._waiting))
        await self._scope.close()

    def put(self, entry: AuditEntry) -> None:
        """Queue an entry, with the time and this worker."""
        if self.topic is None:
            return
        if len(self._waiting) >= _WAITING:
            self.dropped += 1
            self._warn(self.topic, f"{_WAITING} entries wait for its cluster")
            return
        self._waiting.append(replace(entry, at_ms=wall_ms(), worker=self._worker_id))
        self._idle.clear()
        self._arrived.set()

    async def _write_all(self, topic: NewTopic) -> None:
        pauses = Pauses(*_RETRY_S)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch = list(islice(self._waiting, _AT_ONCE))
                try:
                    await write_entries(self._cluster, self._admin, topic, batch)
                except HeliographError as error:
                    self._warn(topic, error)
                    # A stop is the last chance: then a pause of up to half a minute ends at once.
                    is_last = self._stopping.is_set()
                    await (asyncio.sleep(_RETRY_S[0]) if is_last else is_set_within(self._stopping, pauses.next_s()))
                else:
                    pauses.over()
                    self.written += len(batch)
                    for _ in batch:
                        self._waiting.popleft()
            self._idle.set()

    def _warn(self, topic: NewTopic, error: object) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARN_AGAIN_S:
            self._warned_s = now_s
            log.warning(
                "audit topic %s cannot be written: %s; retrying. %d entries wait, %d were dropped",
                topic.name,
                error,
                len(self._waiting),
                self.dropped,
            )

    async def report(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest entries, the newest first: ``top`` of those that contain ``search``, in any case. Raises
        ConfigError for a wrong ``top``, RetriableError or SecurityError if the topic cannot be read."""
        top = query.get("top") or str(_DEFAULT_SHOWN)
        if not (top.isascii() and top.isdigit()):
            raise ConfigError(f"top is '{top}'; it has to be the number of entries to show, such as 100", "top")
        if self.topic is None:
            return {"enabled": False, "entries": []}
        async with self._reading:
            await self._read_on(self.topic.name)
        wanted, found = query.get("search", "").lower(), list[dict[str, Any]]()
        async for value in in_turns(reversed(tuple(self._read))):
            if len(found) == min(int(top), _MOST_SHOWN):
                break
            if wanted in value.decode(errors="replace").lower() and (entry := decode_entry(value)) is not None:
                found.append({**entry, **in_words(entry)})
        return {
            "enabled": True,
            "topic": self.topic.name,
            "entries": found,
            "searched": len(self._read),
            "waiting": len(self._waiting),
            "dropped": self.dropped,
        }

    async def _read_on(self, topic: str) -> None:
        """Read what was written since the last call, at most the newest entries."""
        known = await known_topic(self._cluster, topic)
        if (topic_id := known.topic_id if known else None) != self._topic_id or known is None:
            self._read.clear()
            self._topic_id, self._next = topic_id, 0
        if known is None:
            return
        place = (topic, 0)
        begin = (await list_offsets(self._cluster, [place], EARLIEST))[place]
        end = (await list_offsets(self._cluster, [place], LATEST))[place]
        if not begin <= self._next <= end:
            # Not read before, or deleted by retention; without ids, recreated.
            self._read.clear()
        first = max(begin, end - _READ, self._next if self._read else 0)
        ranges = [(first, end)] if first < end else []
        # Kept only when all are read: the next call reads the same again after an error.
        found = [record.value or b"" async for record in read_ranges(self._cluster, place, ranges)]
        self._read.extend(found)
        self._next = end
