"""The last records of a key in two logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from connectors.verification.alignment import digest_of, has_own_time, timestamp_of

Key = bytes | None


class Last(NamedTuple):
    """The last record of a key in one log. ``time_ms`` is None if the target's log has set it."""

    offset: int
    digest: int
    time_ms: int | None
    is_tombstone: bool

    @classmethod
    def of(cls, record: Any, is_target: bool) -> Last:
        time_ms = None if is_target and has_own_time(record) else timestamp_of(record)
        return cls(record.offset, digest_of(record, False), time_ms, record.value is None)

    def is_same(self, other: Last) -> bool:
        return self.digest == other.digest and self._is_of_time(other)

    def is_like(self, other: Last) -> bool:
        return self.digest == other.digest or self._is_of_time(other)

    def _is_of_time(self, other: Last) -> bool:
        return self.time_ms is None or other.time_ms is None or self.time_ms == other.time_ms


@dataclass(slots=True)
class KeyLasts:
    """The last records of one key; ``is_later``: whether source and target have more of it behind the compared ends,
    ``is_deleted_later``: whether the source has a tombstone there that may have been copied."""

    source: Last | None = None
    target: Last | None = None
    is_later: tuple[bool, bool] = (False, False)
    is_deleted_later: bool = False

    @property
    def is_same(self) -> bool:
        return self.source is not None and self.target is not None and self.source.is_same(self.target)
