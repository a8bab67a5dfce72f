"""Which source offsets may be stored while acknowledgements come in any order (Kafka's ``SubmittedRecords``); pure.

Invariant: the offset of a record is committable once it and all records of its source partition that were submitted
before it have been acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from connect.api.source import Fields


class Submitted:
    """One record that was given to the producer."""

    __slots__ = ("acked", "key", "offset")

    def __init__(self, key: bytes, offset: Fields) -> None:
        self.key = key
        self.offset = offset
        self.acked = False


@dataclass(frozen=True, slots=True)
class Committable:
    """Offsets that may be stored, by the key of their source partition.

    ``messages`` counts the records that they stand for, ``pending`` those that cannot be committed yet.
    """

    offsets: Mapping[bytes, Fields] = field(default_factory=dict)
    messages: int = 0
    pending: int = 0


class SubmittedRecords:
    """Records on their way, by source partition in the order of submission."""

    def __init__(self) -> None:
        self.unacked = 0
        self._queues: dict[bytes, deque[Submitted]] = {}

    def submit(self, key: bytes, offset: Fields) -> Submitted:
        """Take note of a record before it is sent; ``key`` is that of its source partition."""
        record = Submitted(key, offset)
        self._queues.setdefault(key, deque()).append(record)
        self.unacked += 1
        return record

    def ack(self, record: Submitted) -> None:
        """The record has arrived, or is left out for good; once is enough."""
        if not record.acked:
            record.acked = True
            self.unacked -= 1

    def drop(self, record: Submitted) -> None:
        """Forget the last record of its partition, which the producer did not take: it will be submitted again."""
        queue = self._queues[record.key]
        assert queue[-1] is record and not record.acked
        queue.pop()
        if not queue:
            del self._queues[record.key]
        self.unacked -= 1

    def committable(self) -> Committable:
        """Take out what may be committed since the last call."""
        offsets: dict[bytes, Fields] = {}
        messages = pending = 0
        for key, queue in list(self._queues.items()):
            while queue and queue[0].acked:
                offsets[key] = queue.popleft().offset
                messages += 1
            pending += len(queue)
            if not queue:
                del self._queues[key]
        return Committable(offsets, messages, pending)
