"""A partition whose records go to several of the target's: by key, as its topic has another number of partitions there,
or where a message handler says.

One reader, and one copier for each target partition that got something: each has a place of its own in the sequences,
as the source partition writes under a producer id that nothing else writes under. Records of a key, and all of one
source partition to one target partition, keep their order. The position is the least of all copiers', so after a crash
what the others had copied beyond it is copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from connect.wire.records import Record
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.plan import QUARANTINED, PartitionProgress, Skip, TopicPartition
from connectors.dataplane.records_copier import Opened, opened

#: Says where records go: a source batch in, :meth:`SpreadCopier.distribute` called with what becomes of it.
Submit = Callable[["SpreadCopier", Opened], None]


class SpreadPart(PartitionCopier):
    """What one source partition sends to one target partition."""

    def give(self, kept: Sequence[Record], part: Opened, skips: Sequence[Skip]) -> None:
        """Send these records of a source batch; without any its position passes the batch all the same."""
        self._put(list(kept), part.codec, part.following, part.leader_epoch, skips)


class SpreadCopier(PartitionCopier):
    """See the module. The arguments of its base come first. ``submit`` is given what was fetched."""

    def __init__(self, *args: Any, submit: Submit, **settings: Any) -> None:
        self._waiting_bytes = 0
        self._parts: dict[TopicPartition, SpreadPart] = {}
        super().__init__(*args, **settings)
        self._submit = submit
        self._waiting = 0
        self._opened_bytes = 0
        self._given_to = self.plan.next_source_offset
        self._given_epoch = self.plan.last_source_epoch
        #: Whether a record was found that is not to be left out; nothing behind it is copied.
        self._met_unfit = False

    @property
    def parts(self) -> tuple[PartitionCopier, ...]:
        return tuple(self._parts.values())

    @property
    def skips_refused(self) -> bool:
        """Whether records are left out that cannot be sent."""
        return self._skip_refused

    @property
    def given_to(self) -> int:
        """The source offset behind the last record that was shared out."""
        return self._given_to

    @property
    def given_epoch(self) -> int:
        """The leader epoch of the batch before :attr:`given_to`, -1 where it is not known."""
        return self._given_epoch

    @property
    def buffered_bytes(self) -> int:
        return self._waiting_bytes + sum(part.buffered_bytes for part in self._parts.values())

    @property
    def held_bytes(self) -> int:
        return self.buffered_bytes + self._opened_bytes

    @property
    def has_unsent(self) -> bool:
        return any(part.has_unsent for part in self._parts.values())

    @property
    def has_unacknowledged(self) -> bool:
        # What was shared out is all sent before an end: the position is behind none of it before all of it is there.
        return any((part.has_unacknowledged or part.has_unsent) and not part.stopped for part in self._parts.values())

    def taking(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[None]:
        for part in opened(fetched, self.fetch_offset, aborted if self._read_committed else None):
            reason = part.decision.reason
            self._batches[reason] = self._batches.get(reason, 0) + 1
            self.fetch_offset = max(self.fetch_offset, part.following)
            self.last_fetched_epoch = part.leader_epoch
            self._waiting += 1
            self._waiting_bytes += part.bytes
            self._opened_bytes += part.held_bytes
            self._submit(self, part)
            yield

    def wants(self, part: Opened) -> bool:
        """Whether what was read is still to be shared out; if not, it is forgotten."""
        wanted = not (self._met_unfit or self._is_ending or self.stopped)
        if not wanted:
            self._handled(part)
        return wanted

    def part(self, target: TopicPartition) -> SpreadPart | None:
        """Who writes to a target partition, if anybody does yet."""
        return self._parts.get(target)

    def enlist(self, part: SpreadPart) -> None:
        """One more target partition is written to."""
        self._parts[part.plan.target] = part

    def distribute(self, part: Opened, shares: dict[TopicPartition, list[Record]], skips: Sequence[Skip]) -> None:
        """Send the records of a source batch where they go; ``skips`` are those that are left out."""
        self._handled(part)
        if self._is_ending or self.stopped:
            return
        self._skips += skips
        self._given_to, self._given_epoch = max(self._given_to, part.following), part.leader_epoch
        for target, one in self._parts.items():
            one.give(shares.get(target, ()), part, ())
        self._move()

    def stop_at(self, reason: str, error: str) -> None:
        """A record cannot be sent, and is not to be left out: all before it is."""
        self._met_unfit = True
        self.stop_reading(reason, error, None, QUARANTINED)

    def discard_unsent(self) -> None:
        # Other parts may have sent what is behind it, so what a part has queued is not forgotten.
        self._is_ending = True

    def report(self) -> PartitionProgress | None:
        self._move()
        progress = super().report()
        if progress is not None:
            progress.topics = sorted({target.topic for target in self._parts})
        return progress

    def _end(self, *verdict: Any) -> None:
        super()._end(*verdict)
        for part in self._parts.values():
            part.stop(self.stopped_reason)

    def _move(self) -> None:
        """Take over where the parts stand."""
        stopped = None
        for part in self._parts.values():
            if (told := part.report()) is not None:
                self._records += told.records
                self._bytes += told.bytes
                self._skips += told.skips
                self._timestamp_ms = max(self._timestamp_ms, told.timestamp_ms)
            if part.stopped:
                stopped = part
        last = min(self._parts.values(), key=lambda part: part.next_source_offset, default=None)
        self.next_source_offset = self._given_to if last is None else min(last.next_source_offset, self._given_to)
        self.last_source_epoch = self._given_epoch if last is None else last.last_source_epoch
        if stopped is not None:
            self._end(stopped.state, stopped.stopped_reason, stopped.stopped_error, stopped.gap)
        self._stop_after_last()

    def _handled(self, part: Opened) -> None:
        self._waiting -= 1
        self._opened_bytes -= part.held_bytes
        self._waiting_bytes -= part.bytes

    def _stop_after_last(self) -> None:
        # What was read and is not shared out yet is still to be copied.
        if not ((self._waiting and not self._met_unfit) or self.has_unsent or self.has_unacknowledged):
            super()._stop_after_last()
