"""Replace batches that the target refused permanently: by smaller ones, or by ones without the records at fault.

A refusal leaves a hole in the sequence, so every batch behind it was refused too (OUT_OF_ORDER_SEQUENCE_NUMBER). The
replacements have other boundaries, and the batches that follow other sequences.

Only records that the broker blames are left out (``error_codes.OF_RECORDS``). UNKNOWN_SERVER_ERROR blames none, and may
come from a disk or a defect of the broker: the batch is sent again unchanged a few times, then it stops the partition
whatever ``errors.tolerance`` says. Java's task would continue behind it and lose it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from connect.core.errors import RetriableError
from connect.wire import records
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.error_codes import Refusal, add_skip
from connectors.dataplane.batches.outgoing_batches import Builder, Outgoing, halves
from connectors.formats.types import Skip, TopicPartition


class RecordRejected(Exception):
    """A permanently refused batch that must not be left out; ``reason`` is the whole sentence."""

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class CopiesUnderWay(RetriableError):
    """A batch must change, but a copy of it or of a later one may still reach the target, so its sequences cannot be
    reused: the slice ends, and the next one begins behind a fence or in another producer epoch."""


@dataclass(slots=True)
class Replacement:
    """The batches to send instead, in order, and what was left out before the first of them. ``behind``: (next source
    offset, source epoch) once all before is acknowledged, if no batch remains to carry it."""

    batches: list[Outgoing] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    behind: tuple[int, int] | None = None

    def add(self, parts: Sequence[Outgoing], skips: Sequence[Skip], behind: tuple[int, int]) -> None:
        """Add the replacements of one batch. The first reports what was left out: the position may pass it with any of
        them, and reporting it twice after a crash is better than never."""
        bearer = parts[0] if parts else self.batches[-1] if self.batches else None
        self.batches += parts
        if bearer is None:
            self.skips += skips
            self.behind = behind
        else:
            bearer.skips += tuple(skips)
            self.batches[-1].next_source_offset, self.batches[-1].source_epoch = behind


@dataclass(frozen=True, slots=True)
class BatchSplitter:
    """Replaces refused batches; ``skip``: leave out records at fault (``errors.tolerance = all``)."""

    builder: Builder
    target: TopicPartition
    skip: bool

    def split_or_skip(self, refused: Sequence[Outgoing], max_message_bytes: int) -> Replacement:
        """Return what to send instead of ``refused``, which includes the batches behind it; the caller numbers them.
        Raises :class:`RecordRejected` at the first batch that stops the partition."""
        replacement = Replacement()
        for outgoing in refused:
            if outgoing.refusal is None:
                replacement.add([outgoing], (), (outgoing.next_source_offset, outgoing.source_epoch))
            else:
                self._split_or_skip(outgoing, outgoing.refusal, max_message_bytes, replacement)
        return replacement

    def _split_or_skip(
        self, outgoing: Outgoing, refusal: Refusal, max_message_bytes: int, replacement: Replacement
    ) -> None:
        fault = _at_fault(outgoing, refusal)
        is_merged = outgoing.source_batches > 1
        if not self.skip and (fault or not refusal.is_for_size) and not is_merged:
            raise _record_rejected(outgoing, refusal, fault, self.target)
        opened = outgoing.opened()
        skips = list(outgoing.skips)
        codec, epoch = outgoing.codec, outgoing.source_epoch
        if fault and self.skip:
            for index in sorted(fault):
                add_skip(skips, opened[index].offset, refusal.code)
            kept = [record for index, record in enumerate(opened) if index not in fault]
            parts: Sequence[Sequence[records.Record]] = [kept] if kept else []
        else:
            parts = list(self.builder.fitting(opened, codec, max_message_bytes))
            parts = halves(opened) if len(parts) == 1 else parts
        built = list(self.builder.outgoings(parts, codec, outgoing.base_sequence, epoch))
        for part in built:
            part.is_mergeable = False
            # A merged batch is halved until it holds one source batch, so that all before the one at fault is copied.
            part.source_batches = outgoing.source_batches // 2
        replacement.add(built, skips, (outgoing.next_source_offset, epoch))


def _at_fault(outgoing: Outgoing, refusal: Refusal) -> frozenset[int]:
    """Return the indexes of the records known to be at fault; none if the batch must be split to find them."""
    if outgoing.count == 1:
        return frozenset((0,))
    if refusal.is_for_size:
        return frozenset()
    return frozenset(index for index in refusal.records if 0 <= index < outgoing.count)


def _record_rejected(
    outgoing: Outgoing, refusal: Refusal, fault: Collection[int], target: TopicPartition
) -> RecordRejected:
    what = outgoing.what
    if fault:
        offsets = [offset for index, offset in enumerate(outgoing.source_offsets()) if index in fault]
        others = f" and {len(offsets) - 1} others" if len(offsets) > 1 else ""
        what = f"the record at source offset {offsets[0]}{others} in {what}"
    return RecordRejected(
        error_codes.explained(refusal.code, target, what, refusal.message), error_codes.code_name(refusal.code)
    )
