"""Reads what number tasks write as it comes: who made which number when, and whether any is missing."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka import ConsumerRecord

from tests.kit.follower import Flow, Follower, longest_gap


class Stamp(NamedTuple):
    """A record: when it was made and when it came here, in seconds since 1970, by which worker."""

    made_s: float
    came_s: float
    number: int
    worker: str


@dataclass(slots=True)
class _Seen:
    """All records of one task, in the topic's order; ``offset`` is the next one's."""

    offset: int = 0
    made: array[float] = field(default_factory=lambda: array("d"))
    came: array[float] = field(default_factory=lambda: array("d"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    workers: list[str] = field(default_factory=list)


class NumberWatch(Follower):
    """Follows all partitions of some topics from now on. Use as a context manager."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        super().__init__(bootstrap, topics)
        self._seen = {flow: _Seen() for flow in self._flows}

    def first_made_after(self, at_s: float, workers: Collection[str]) -> dict[Flow, Stamp | None]:
        """Of each task the first record that one of the workers made after ``at_s``."""
        with self._lock:
            self._check()
            return {
                flow: next((stamp for stamp in _since(seen, at_s) if stamp.worker in workers), None)
                for flow, seen in self._seen.items()
            }

    def stamps(self, since_s: float = 0.0) -> dict[Flow, list[Stamp]]:
        """The records of each task that were made since then, in the order of the topic."""
        with self._lock:
            self._check()
            return {flow: _since(seen, since_s) for flow, seen in self._seen.items()}

    def faults(self) -> list[str]:
        with self._lock:
            self._check()
            found = []
            for (topic, index), seen in self._seen.items():
                if not seen.numbers:
                    found.append(f"{topic}-{index}: nothing was written")
                elif lost := missing(seen.numbers):
                    found.append(f"{topic}-{index}: {lost} numbers are missing")
            return found

    def counts(self) -> tuple[int, int]:
        with self._lock:
            records = sum(len(seen.numbers) for seen in self._seen.values())
            return records, records - sum(len(set(seen.numbers)) for seen in self._seen.values())

    def longest_gaps(self, since_s: float, until_s: float) -> dict[Flow, float]:
        """Of each task the longest time without a new record, in seconds, by when they were made."""
        with self._lock:
            self._check()
            return {flow: longest_gap(seen.made, since_s, until_s) for flow, seen in self._seen.items()}

    def _take(self, flow: Flow, records: Sequence[ConsumerRecord[bytes, bytes]], came_s: float) -> None:
        seen = self._seen[flow]
        for record in records:
            if record.offset < seen.offset:
                continue
            assert record.value is not None
            seen.offset = record.offset + 1
            number, _, worker = record.value.decode().partition(" ")
            seen.made.append(record.timestamp / 1000)
            seen.came.append(came_s)
            seen.numbers.append(int(number))
            seen.workers.append(worker)


def missing(numbers: Iterable[int]) -> int:
    there = set(numbers)
    return max(there) + 1 - len(there)


def _since(seen: _Seen, at_s: float) -> list[Stamp]:
    """What was made after ``at_s``."""
    # What came before that was made before.
    start = bisect.bisect_left(seen.came, at_s)
    found = zip(seen.made[start:], seen.came[start:], seen.numbers[start:], seen.workers[start:], strict=True)
    return [stamp for stamp in itertools.starmap(Stamp, found) if stamp.made_s > at_s]
