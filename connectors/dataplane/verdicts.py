"""What became of a log that no longer holds what it held, in a sentence for people and as data. Pure.

Each says which partition, what was there and what is there now, and how one goes on. Where no policy takes care of it
the partition stops with it, and its stored position stays as it is: the evidence by which a later start sees the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from connect.kafka.cluster import TopicMetadata
from connectors.dataplane.plan import TopicPartition
from connectors.gaps import UNKNOWN, Gap, GapKind

_REMEDY: Final = "nothing more is copied until the stored source offset of "


class Verdict(NamedTuple):
    """Why a partition stops: the sentence, the short name of the fault, and what happened as data."""

    reason: str
    error: str
    gap: Gap | None = None


def of_topic(
    side: str,
    topic: TopicMetadata | None,
    expected: tuple[str, UUID | None],
    source: TopicPartition,
    next_source_offset: int,
    known_end: int = UNKNOWN,
) -> Verdict | None:
    """What became of a topic of a ``side``, source or target; None if it is the ``expected`` one, by name and id."""
    name, before = expected
    if topic is None or not topic.exists:
        return deleted(side, name, source, next_source_offset, known_end)
    if before and topic.topic_id and topic.topic_id != before:
        return made_anew(side, name, topic.topic_id, before, source, next_source_offset, known_end)
    return None


def made_anew(
    side: str,
    topic: str,
    current: UUID,
    before: UUID,
    source: TopicPartition,
    next_source_offset: int = UNKNOWN,
    known_end: int = UNKNOWN,
) -> Verdict:
    """``side`` is source or target; ``known_end`` is behind the last offset that the old source was seen to have."""
    kind = GapKind.SOURCE_RECREATED if side == "source" else GapKind.TARGET_RECREATED
    lost = f"; its offsets {next_source_offset} to {known_end - 1} are lost"
    missing = side == "source" and known_end > next_source_offset >= 0
    return _verdict(
        f"{side} topic {topic} was deleted and made anew (topic id {current}, was {before})"
        f"{lost if missing else ''}; {_remedy(source)} (or on.topic.recreated set)",
        Gap(
            kind,
            next_source_offset if side == "source" else UNKNOWN,
            known_end - 1 if missing else UNKNOWN,
            old_id=before,
            new_id=current,
        ),
    )


def deleted(side: str, topic: str, source: TopicPartition, next_source_offset: int, known_end: int = -1) -> Verdict:
    """It bears the last word on a topic that nobody makes anew, so that names no remedy."""
    copied = f"up to source offset {next_source_offset - 1}" if next_source_offset else "not at all"
    kind = GapKind.SOURCE_DELETED if side == "source" else GapKind.TARGET_DELETED
    last = known_end - 1 if side == "source" and known_end > next_source_offset else UNKNOWN
    first = next_source_offset if side == "source" else UNKNOWN
    return _verdict(
        f"{side} topic {topic} does not exist any more; {source} was copied {copied}", Gap(kind, first, last)
    )


def source_truncated(source: TopicPartition, read_to: int, epoch: int, end: int) -> Verdict:
    """``read_to``: behind the last offset read; ``epoch`` ends at ``end`` in the log as it is now (KIP-320)."""
    return _verdict(
        f"source {source} was truncated: leader epoch {epoch} ends at offset {end}, but offsets up to {read_to - 1} "
        f"had been read, so that {read_to - end} of those copied are no longer there; {_remedy(source)} "
        "(or on.source.gap set)",
        Gap(GapKind.SOURCE_TRUNCATED, end, read_to - 1, go_on_at=end, leader_epoch=epoch),
    )


def source_shorter(source: TopicPartition, read_to: int, end: int) -> Verdict:
    """As :func:`source_truncated` where no leader epoch tells it."""
    return _verdict(
        f"source {source} was truncated: it ends at offset {end}, but offsets up to {read_to - 1} had been read; "
        f"{_remedy(source)} (or on.source.gap set)",
        Gap(GapKind.SOURCE_TRUNCATED, end, read_to - 1, go_on_at=end),
    )


def source_gap(source: TopicPartition, read_to: int, start: int) -> Verdict:
    return _verdict(
        f"source {source} begins at offset {start} now, and offset {read_to} was to be copied next: retention or a "
        f"deletion took {start - read_to} offsets that are not known to be copied; {_remedy(source)} "
        "(or on.source.gap set)",
        Gap(GapKind.SOURCE_GAP, read_to, start - 1, go_on_at=start),
    )


def source_another(source: TopicPartition, read_to: int, last_epoch: int) -> Verdict:
    """The offset is in range and still refused: the leader cannot place the epoch (``Partition.readRecords``)."""
    return _verdict(
        f"source {source} refuses offset {read_to}, which it has: its log knows nothing of leader epoch {last_epoch}, "
        f"which was read before, so it is another log; {_remedy(source)}",
        Gap(GapKind.SOURCE_TRUNCATED, leader_epoch=last_epoch),
    )


def target_truncated(
    target: TopicPartition, acknowledged_to: int, end: int, source: TopicPartition, next_source_offset: int, why: str
) -> Verdict:
    """``acknowledged_to``: behind the last acknowledged offset; ``end``: where the log ends now."""
    shorter = end < acknowledged_to
    now = f"ends at {end} now" if shorter else f"was written to again since, up to offset {end - 1}"
    return _verdict(
        f"target {target} was truncated: it had acknowledged offsets up to {acknowledged_to - 1}, and {now} ({why}); "
        f"records of {source} before source offset {next_source_offset} are missing there; {_remedy(source)}",
        Gap(
            GapKind.TARGET_TRUNCATED,
            last=next_source_offset - 1,
            target_first=end if shorter else UNKNOWN,
            target_last=acknowledged_to - 1,
        ),
    )


def _verdict(reason: str, gap: Gap) -> Verdict:
    return Verdict(reason, gap.state, gap)


def _remedy(source: TopicPartition) -> str:
    return f"{_REMEDY}{source} is altered or reset"


def facts(reason: str) -> str:
    """Of a verdict's sentence what happened, without what to do about it: for a command that knows another way."""
    return reason.partition(f"; {_REMEDY}")[0]
