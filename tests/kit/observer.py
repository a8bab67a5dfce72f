"""A reader that follows topics while they are written: what a log loses later has been seen here."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final, Self

from tests.kit.log_reader import Key, LogReader
from tests.kit.soak_judge import Seen

_POLL_S: Final = 0.1
_DIGEST_BYTES: Final = 8
_TIMESTAMP: Final = struct.Struct(">q")


class Observer:
    """Use as an async context manager; it reads until then."""

    def __init__(
        self, bootstrap: str, *, committed: bool, dropped: str | None = None, skips_deleted: bool = False
    ) -> None:
        """Records with a header ``dropped`` are not seen; ``skips_deleted``: nor what is deleted uncommitted."""
        self._dropped = dropped
        self._reader = LogReader(bootstrap, self._take, committed=committed, skips_deleted=skips_deleted)
        self._reading = asyncio.Lock()
        self._lives: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.seen: dict[Key, list[Seen]] = {}

    async def __aenter__(self) -> Self:
        await self._reader.open()
        self._task = asyncio.create_task(self._run(), name="observer")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._reader.close()

    async def follow(self, topics: Mapping[str, int]) -> None:
        """From their beginnings, now or as soon as they are there: names and partitions."""
        async with self._reading:
            for topic, partitions in topics.items():
                self._reader.follow(topic, partitions)
                for index in range(partitions):
                    self.seen.setdefault((topic, index), [])

    async def end_life(self, topic: str) -> None:
        """The topic will be deleted: what comes under its name later is of another one. All of it has to be read."""
        async with self._reading:
            self._reader.forget(topic)
            self._lives[topic] = self._lives.get(topic, 0) + 1

    async def at_end(self) -> None:
        """All that there is now has been read. Raises what the reader ended with."""
        assert self._task is not None, "it is opened"
        if self._task.done():
            self._task.result()
        async with self._reading:
            await self._reader.read_to_end()

    @property
    def records(self) -> int:
        return sum(len(seen) for seen in self.seen.values())

    async def _run(self) -> None:
        while True:
            async with self._reading:
                await self._reader.read_to_end()
            await asyncio.sleep(_POLL_S)

    def _take(self, key: Key, position: int, batch: Any) -> None:
        seen, life = self.seen[key], self._lives.get(key[0], 0)
        for record in batch:
            if record.offset >= position and self._dropped not in (name for name, _ in record.headers):
                seen.append(Seen(life, record.offset, _digest(record.key), _content(record)))


def _content(record: Any) -> int:
    parts = [record.key, record.value, _TIMESTAMP.pack(record.timestamp)]
    for name, value in record.headers:
        parts += [name.encode(), value]
    return _digest(*parts)


def _digest(*parts: bytes | None) -> int:
    """Of all parts, their borders, and which of them are null."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        found.update(b"-" if part is None else b"%d:" % len(part))
        found.update(part or b"")
    return int.from_bytes(found.digest(), "big")
