"""Copy one partition as a state machine: fetched bytes and answers go in, batches to produce and runs come out.

It has no socket and no clock. :mod:`connectors.dataplane.batches.send_queue` lists what holds at every moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import PlainRun
from connectors.dataplane.batches import fetched_batches
from connectors.dataplane.batches.fetched_batches import cut
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.dataplane.batches.send_queue import SendQueue
from connectors.formats.types import Skip


class PartitionCopier(SendQueue):
    """A send queue filled from fetch answers; batches that must change are rebuilt from their records."""

    def take(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take a whole fetch answer, as :meth:`taking`."""
        for _ in self.taking(fetched, aborted):
            pass

    def taking(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[None]:
        """Take a fetch answer, a batch at each step; ``fetched`` is changed in place and kept until acknowledged.

        ``aborted``: (producer id, first offset) of this answer. Take no further step once the copier is not
        :attr:`is_read`. Raises :class:`cut.CorruptBatch` after taking what came before it.
        """
        listed = aborted if self._read_committed else None
        decided = cut(
            fetched,
            self.fetch_offset,
            listed,
            self.max_message_bytes,
            run_limits=self._run_limits,
        )
        for batch, header, decision, run in decided:
            if header is None:
                self._count(decision)
                self._take_old(batch)
            elif decision is fetched_batches.SHALLOW:
                self._take_shallow(batch, header, run)
            else:
                self._count(decision)
                self._take_batch(batch, header, decision)
            yield

    def _run_limits(self, codec: int) -> tuple[int, int]:
        small_bytes, most_bytes = self._merging.run_limits(codec)
        return small_bytes, min(most_bytes, self.max_message_bytes)

    def _take_shallow(self, batch: memoryview, header: wire.BatchHeader, run: PlainRun | None) -> None:
        first, epoch = header.base_offset, header.leader_epoch
        following, latest_ms, number = first + header.record_count, header.max_timestamp, 1
        if run is not None:
            number, following, latest_ms = run.batches, run.next_offset, run.max_timestamp_ms
        count = following - first
        codec, sequence = header.codec, self._queued_sequence
        self._enqueue(
            Outgoing(
                batch, sequence, count, ((first, count),), following, epoch, latest_ms, codec, source_batches=number
            )
        )
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = epoch

    def _take_batch(self, batch: memoryview, header: wire.BatchHeader, decision: fetched_batches.Decision) -> None:
        following = header.last_offset + 1
        if decision.kind is fetched_batches.BatchKind.DROPPED:
            self._pass_over(following, header.leader_epoch)
        else:
            self._rebuild(list(records.decode(batch, header.magic)), header.codec, following, header.leader_epoch)
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = header.leader_epoch

    def _take_old(self, messages: memoryview) -> None:
        opened = list(records.decode(messages, messages[16]))
        following = max((record.offset + 1 for record in opened), default=self.fetch_offset)
        codec = messages[17] & wire.CODEC_MASK
        self._rebuild(opened, codec, following, -1)
        self.fetch_offset = max(self.fetch_offset, following)
        self.last_fetched_epoch = -1

    def _rebuild(self, opened: list[records.Record], codec: int, following: int, epoch: int) -> None:
        self._put([record for record in opened if record.offset >= self.fetch_offset], codec, following, epoch)

    def _put(
        self, kept: list[records.Record], codec: int, following: int, epoch: int, left_out: Sequence[Skip] = ()
    ) -> None:
        """Queue batches built from these records, which cover all offsets before ``following``."""
        skips = list(left_out)
        parts = list(self._builder.fitting(kept, codec, self.max_message_bytes))
        for outgoing in self._builder.outgoings(parts, codec, self._queued_sequence, epoch):
            outgoing.skips, skips = tuple(skips), []
            self._enqueue(outgoing)
        self._pass_over(following, epoch, skips)
