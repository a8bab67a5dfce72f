"""Where the transactions of an exactly-once task end (KIP-618, ``transaction.boundary``); pure.

An abort drops the records of the transaction; their offsets are stored all the same, in a transaction of their own.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from connect.api.source import SourceRecord
from connect.core.errors import PermanentError


class Ending(Enum):
    """What becomes of the open transaction."""

    NONE = auto()
    COMMIT = auto()
    ABORT = auto()


class Boundaries(Protocol):
    """Asked after each record, each batch, and before a task pauses or stops. Times are of a steady clock, in ms."""

    def begin(self, now_ms: float) -> None:
        """The task enters its loop, at first or after a pause."""
        ...

    def after_record(self, record: SourceRecord) -> Ending: ...

    def after_batch(self, now_ms: float) -> Ending: ...

    def at_end(self) -> Ending: ...


class PollBoundaries:
    """``poll``: a transaction for each batch."""

    def begin(self, now_ms: float) -> None:
        pass

    def after_record(self, record: SourceRecord) -> Ending:
        return Ending.NONE

    def after_batch(self, now_ms: float) -> Ending:
        return Ending.COMMIT

    def at_end(self) -> Ending:
        return Ending.COMMIT


class IntervalBoundaries(PollBoundaries):
    """``interval``: at the end of the first batch after an interval."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms = 0.0

    def begin(self, now_ms: float) -> None:
        self._last_ms = now_ms

    def after_batch(self, now_ms: float) -> Ending:
        if now_ms < self._last_ms + self._interval_ms:
            return Ending.NONE
        self._last_ms = now_ms
        return Ending.COMMIT


class ConnectorBoundaries:
    """``connector``: where the task says; also what it says it to (:class:`connect.api.source.TransactionContext`)."""

    def __init__(self) -> None:
        self._batch: set[Ending] = set()
        # By identity: two records may be equal. The record is kept, so that its id is not given to another one.
        self._records: dict[int, tuple[SourceRecord, set[Ending]]] = {}

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        self._request(record, Ending.COMMIT)

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        self._request(record, Ending.ABORT)

    def begin(self, now_ms: float) -> None:
        pass

    def after_record(self, record: SourceRecord) -> Ending:
        _, endings = self._records.pop(id(record), (record, set()))
        return _single(endings, "record")

    def after_batch(self, now_ms: float) -> Ending:
        endings, self._batch = self._batch, set()
        return _single(endings, "batch")

    def at_end(self) -> Ending:
        return self.after_batch(0)

    def _request(self, record: SourceRecord | None, ending: Ending) -> None:
        if record is None:
            self._batch.add(ending)
        else:
            self._records.setdefault(id(record), (record, set()))[1].add(ending)


def _single(endings: set[Ending], what: str) -> Ending:
    if len(endings) > 1:
        # Raised here and not to the task, which might swallow it.
        raise PermanentError(f"the task asked to commit and to abort the transaction after the same {what}")
    return next(iter(endings), Ending.NONE)
