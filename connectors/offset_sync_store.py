"""Offsets translated by what a topic of offset syncs holds (Kafka's ``OffsetSyncStore``). Pure.

Of each source partition 64 syncs are kept: the newest first, the oldest that may be used last, and between them such
that their distance grows as powers of two. Translation is thus closest near the end of a partition.
"""

from __future__ import annotations

from typing import Final

from connectors.dataplane.plan import TopicPartition
from connectors.mirror_records import OffsetSync

_SLOTS: Final = 64
#: What :meth:`OffsetSyncStore.translate` answers for an offset before all syncs.
TOO_OLD: Final = -1


class OffsetSyncStore:
    """Takes syncs as they were written and translates offsets.

    ``only_last``: of what is there when reading begins only the last sync of each partition may be used, as older ones
    may have been used before for what a reader does not know of.
    """

    def __init__(self, *, only_last: bool) -> None:
        self._only_last = only_last
        self._is_read = False
        self._slots: dict[TopicPartition, list[OffsetSync]] = {}

    def read_to_end(self) -> None:
        """The topic has been read to its end once: from now on offsets are translated."""
        self._is_read = True

    def take(self, sync: OffsetSync) -> None:
        """The next sync of the topic."""
        source = TopicPartition(sync.topic, sync.partition)
        slots = self._slots.get(source)
        starts_anew = self._only_last and not self._is_read
        if slots is None or starts_anew or sync.upstream_offset < slots[0].upstream_offset:
            self._slots[source] = [sync] * _SLOTS
        else:
            self._slots[source] = _with(slots, sync)

    def translate(self, source: TopicPartition, upstream_offset: int) -> int | None:
        """The downstream offset for a group at ``upstream_offset``: at the same record, or at one before.

        None where nothing is known, TOO_OLD where all that is known lies behind that offset.
        """
        slots = self._slots.get(source)
        if slots is None or not self._is_read:
            return None
        sync = next((slot for slot in slots if slot.upstream_offset <= upstream_offset), None)
        if sync is None:
            return TOO_OLD
        # Which records between a sync and the next were mirrored is not known: one further is all that is safe.
        return sync.downstream_offset + (sync.upstream_offset < upstream_offset)


def _with(original: list[OffsetSync], sync: OffsetSync) -> list[OffsetSync]:
    """The slots once ``sync`` is the newest.

    Each slot that has become too old for its place gets the newest older sync that fits there.
    """
    slots = [sync, *original[1:]]
    replacement, candidate = sync, 0
    for index in range(1, _SLOTS):
        before = slots[index - 1]
        skip = True
        while skip:
            old = original[candidate]
            is_apart = _is_apart(before, old, index - 1)
            fits = (
                is_apart
                and _is_recent(before, old, index - 1, index)
                and (index + 1 == _SLOTS or _is_apart(old, slots[index + 1], index))
            )
            if fits:
                replacement = old
            skip = not is_apart or (candidate + 1 < _SLOTS and old is original[candidate + 1])
            candidate += fits or skip
            skip = skip and candidate < index
        if _is_recent(before, slots[index], index - 1, index):
            break  # and so are all that follow
        slots[index] = replacement
    return slots


def _is_recent(newer: OffsetSync, older: OffsetSync, at: int, older_at: int) -> bool:
    """Java's invariant B: the older sync is not too far away for its slot."""
    return newer is older or newer.upstream_offset <= older.upstream_offset + (1 << older_at) - (1 << at)


def _is_apart(newer: OffsetSync, older: OffsetSync, at: int) -> bool:
    """Java's invariant C: the two are not so close that one of them is of no use."""
    return newer is older or newer.upstream_offset >= older.upstream_offset + (1 << max(at - 2, 0))
