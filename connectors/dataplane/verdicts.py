"""What became of a log that no longer holds what it held, in a sentence for people. Pure.

Each says which partition, what was there and what is there now, and how one goes on. Until there are policies the
partition stops with it, and its stored position stays as it is: the evidence by which a later start sees the same.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from connectors.dataplane.plan import TopicPartition


class Verdict(NamedTuple):
    """Why a partition stops: the sentence, and the short name of the fault."""

    reason: str
    error: str


def made_anew(side: str, topic: str, current: UUID, before: UUID, source: TopicPartition) -> Verdict:
    """``side`` is source or target."""
    return Verdict(
        f"{side} topic {topic} was deleted and made anew (topic id {current}, was {before}); {_remedy(source)}",
        f"{side}-recreated",
    )


def deleted(side: str, topic: str, source: TopicPartition, next_source_offset: int) -> Verdict:
    """It bears the last word on a topic that nobody makes anew, so that names no remedy."""
    copied = f"up to source offset {next_source_offset - 1}" if next_source_offset else "not at all"
    return Verdict(f"{side} topic {topic} does not exist any more; {source} was copied {copied}", f"{side}-deleted")


def source_truncated(source: TopicPartition, read_to: int, epoch: int, end: int) -> Verdict:
    """``read_to``: behind the last offset read; ``epoch`` ends at ``end`` in the log as it is now (KIP-320)."""
    return Verdict(
        f"source {source} was truncated: leader epoch {epoch} ends at offset {end}, but offsets up to {read_to - 1} "
        f"had been read, so that {read_to - end} of those copied are no longer there; {_remedy(source)}",
        "source-truncated",
    )


def source_shorter(source: TopicPartition, read_to: int, end: int) -> Verdict:
    """As :func:`source_truncated` where no leader epoch tells it."""
    return Verdict(
        f"source {source} was truncated: it ends at offset {end}, but offsets up to {read_to - 1} had been read; "
        f"{_remedy(source)}",
        "source-truncated",
    )


def source_gap(source: TopicPartition, read_to: int, start: int) -> Verdict:
    return Verdict(
        f"source {source} begins at offset {start} now, and offset {read_to} was to be copied next: retention or a "
        f"deletion took {start - read_to} offsets that are not known to be copied; {_remedy(source)}",
        "source-gap",
    )


def source_another(source: TopicPartition, read_to: int, last_epoch: int) -> Verdict:
    """The offset is in range and still refused: the leader cannot place the epoch (``Partition.readRecords``)."""
    return Verdict(
        f"source {source} refuses offset {read_to}, which it has: its log knows nothing of leader epoch {last_epoch}, "
        f"which was read before, so it is another log; {_remedy(source)}",
        "source-truncated",
    )


def target_truncated(
    target: TopicPartition, acknowledged_to: int, end: int, source: TopicPartition, next_source_offset: int, why: str
) -> Verdict:
    """``acknowledged_to``: behind the last acknowledged offset; ``end``: where the log ends now."""
    now = f"ends at {end} now" if end < acknowledged_to else f"was written to again since, up to offset {end - 1}"
    return Verdict(
        f"target {target} was truncated: it had acknowledged offsets up to {acknowledged_to - 1}, and {now} ({why}); "
        f"records of {source} before source offset {next_source_offset} are missing there; {_remedy(source)}",
        "target-truncated",
    )


def _remedy(source: TopicPartition) -> str:
    return f"nothing more is copied until the stored source offset of {source} is altered or reset"
