"""When the first records and the last one were seen at the target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from bench.loads import PARTITIONS
from bench.topics import BenchError, Contents, Topics

POLL_INTERVAL_S: Final = 0.025
_DEADLINE_S: Final = 600.0

Look = TypeVar("Look")


@dataclass(frozen=True, slots=True)
class Seen(Generic[Look]):
    """Records at the target at one moment (``time.monotonic()``), and what the caller looked at then."""

    at_s: float
    records: int
    look: Look


async def watch(
    target: Topics,
    topic: str,
    held: Contents,
    look: Callable[[], Look],
    failure: Callable[[], str | None],
) -> tuple[Seen[Look], Seen[Look]]:
    """Polls the end offsets of ``topic`` until it holds what the source holds.

    ``failure`` says why nothing more will come, None while there is hope. Raises BenchError then, and at the
    deadline.
    """
    deadline_s = time.monotonic() + _DEADLINE_S
    first: Seen[Look] | None = None
    records = 0
    while time.monotonic() < deadline_s:
        ends = await target.end_offsets(topic, PARTITIONS)
        records = sum(ends.values())
        if records and first is None:
            first = Seen(time.monotonic(), records, look())
        if first and all(ends.get(partition, 0) >= end for partition, end in held.end_offsets.items()):
            return first, Seen(time.monotonic(), records, look())
        if why := failure():
            raise BenchError(f"{topic} stopped at {records} of {held.records} records: {why}")
        await asyncio.sleep(POLL_INTERVAL_S)
    raise BenchError(f"{topic} was not complete after {_DEADLINE_S:.0f} s: {records} of {held.records} records")
