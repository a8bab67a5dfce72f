"""The next records of a group where a cleaner takes older values, compared (pure). Either side may lack what the other
still has, and much of it comes later than a sample reaches.

A place is too far where a record that the group would read next at the source lies before it on the target, and nowhere
behind it. Not even one that was written twice lies so at the right place: a cleaner takes a record because there is a
newer one of its key, and has taken its like from before the place first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from connectors.comparison import abbreviate
from connectors.failover.model import DIFFERS, NOT_COMPARED, SAME

#: So many records, or offsets, around a place are read where the sample does not tell.
FAR: Final = 10_000
#: A record has the time that its producer gave it.
CREATE_TIME: Final = 0
_LOG_APPEND_TIME: Final = 1
Identity = tuple[Any, ...]


class Verdict(NamedTuple):
    """``records`` are those found to be the same."""

    records: int
    outcome: str
    why: str = ""


class Sample:
    """What the source goes on with, as far as the target does not show it; records are as aiokafka hands them out."""

    def __init__(self, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
        self._ours = ours
        self._keys: set[bytes] = set()
        #: Records of the source that were not met behind the place.
        self.unfound = list(ours)
        self._is_in_order = _are_in_order(ours, theirs)
        for record in theirs:
            self.take(record)

    def take(self, record: Any) -> bool:
        """A record from behind the place on the target; whether it tells anything new."""
        is_new_key = record.key is not None and record.key not in self._keys
        if is_new_key:
            self._keys.add(record.key)
        left = [one for one in self.unfound if not _is_copy(record, one)]
        is_found = len(left) < len(self.unfound)
        self.unfound = left
        return is_found or is_new_key

    @property
    def missing(self) -> list[Any]:
        """Those without a newer one of their keys either; but a cleaner drops the mark of a deletion after a while."""
        return [one for one in self.unfound if one.value is not None and one.key not in self._keys]

    def like(self, record: Any) -> list[Any]:
        """Those of which ``record``, from before the place, may be the copy."""
        return [one for one in self.unfound if _is_copy(record, one) and record.timestamp == one.timestamp]

    def verdict(self, lying: Sequence[Any], *, is_whole: bool) -> Verdict:
        """``lying``: those whose copies lie before the place; ``is_whole``: the target was read to its end."""
        shared = len(self._ours) - len(self.unfound)
        if lying:
            where = f"{abbreviate(lying[0].value)} lies before the place on the target"
            if is_whole:
                return Verdict(shared, DIFFERS, f"{where}, and is passed over")
            return Verdict(shared, NOT_COMPARED, f"{where}, and is passed over unless it comes again later than {FAR}")
        if missing := len(self.missing):
            far = "" if is_whole else f", as far as {FAR} of them tell"
            why = f"{missing} of the next records are not among those on the target, nor newer ones of their keys{far}"
            return Verdict(shared, NOT_COMPARED, why)
        if not shared:
            return Verdict(0, NOT_COMPARED, "none of the next records is left on both sides")
        if not self._is_in_order:
            return Verdict(shared, NOT_COMPARED, "the next records come in another order, or more than once")
        return Verdict(shared, SAME)


def identity(record: Any) -> Identity:
    """What a copy has in common with its record, whatever its topic."""
    headers = tuple((name, None if value is None else bytes(value)) for name, value in record.headers)
    return record.key, record.value, headers


def _is_copy(theirs: Any, ours: Any) -> bool:
    if theirs.key != ours.key or identity(theirs) != identity(ours):
        return False
    return bool(theirs.timestamp == ours.timestamp or theirs.timestamp_type == _LOG_APPEND_TIME)


def _are_in_order(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    mine, other = ([(*identity(one), one.timestamp) for one in some] for some in (ours, theirs))
    here, there = set(mine), set(other)
    kept, met = [one for one in mine if one in there], [one for one in other if one in here]
    shared = min(len(kept), len(met))
    return kept[:shared] == met[:shared]
