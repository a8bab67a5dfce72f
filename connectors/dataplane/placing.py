"""Where a copy goes on at a source that may have lost what was copied, and what stays in doubt. Pure.

Never behind a record that may not have been copied: what cannot be told comes again, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connectors.dataplane.survivors import Bounds, Survivors

_COMPACTED = "the source may have been compacted"
_CUT = "the source lost its beginning"
_UNLIKE = "what the source has is not what the target has"
_ALIKE = "the source may have been compacted, and records there are alike"
_UNTOLD = "the source does not tell whether it is compacted, and records there are alike"
#: Where the source may have lost what was never copied, so many different records tell that it begins with copied ones.
#: A single one may have been sent twice, and what was copied have been the first.
_LEAST_FOUND: Final = 2


@dataclass(frozen=True, slots=True)
class Place:
    """``may_double``: at most so many records come again. ``may_be_there``: of what is lost from here to the source's
    beginning at most so many are at the target. ``reason`` says why where either is not 0."""

    offset: int
    may_double: int = 0
    may_be_there: int = 0
    reason: str = ""

    @property
    def is_exact(self) -> bool:
        return not (self.may_double or self.may_be_there)


@dataclass(frozen=True, slots=True)
class Thinned:
    """A partition whose source cannot be counted off any more.

    Args:
        bounds: As for the walk.
        is_compacted: The source may lose records anywhere, else only at its beginning; None: it does not tell.
        may_differ: The source may give other records than those that were copied, as with a changed query, or where
            some were left out.
    """

    bounds: Bounds
    is_compacted: bool | None
    may_differ: bool

    def place(self, walk: Survivors, *, differs: bool) -> Place:
        """Behind a walk that has come to its end; what it may not pass over is given back.

        ``differs``: further on the source has what is at the target and was not found.
        """
        if walk.unlike:
            return self._without(walk, _UNLIKE)
        if walk.has_likes and (self.may_differ or self.is_compacted is None):
            return self._without(walk, _UNTOLD if self.is_compacted is None else _ALIKE)
        if self._is_cut_in_doubt(walk):
            return self._without(walk, _CUT)
        given_back = walk.cut_short(may_vanish=self.is_compacted is not False)
        if given_back and self._has_unseen:
            return self._without(walk, _CUT)
        doubt, reason = self._doubtful(walk, given_back, differs=differs), _UNLIKE if differs else _COMPACTED
        if not walk.passed and self.bounds.certain_before <= self.bounds.source_start:
            return self._placed(self.bounds.kept_before, doubt, reason)
        return self._placed(max(walk.position, self.bounds.kept_before), doubt, reason)

    def _is_cut_in_doubt(self, walk: Survivors) -> bool:
        """Whether what the source begins with may not be what was copied, though it is like it."""
        tells_little = walk.has_likes or walk.ignores_time or (walk.passed > 0 and walk.found < _LEAST_FOUND)
        if self._has_unseen and tells_little:
            return True
        if self.is_compacted is False or (self.is_compacted is None and self._has_unseen):
            # Of a plain one, nothing may be missing from where it begins.
            return walk.has_likes or (walk.passed > 0 and not walk.is_ending)
        return False

    @property
    def _has_unseen(self) -> bool:
        """Whether the source's beginning may have taken records away that were not copied."""
        return self.bounds.stored < self.bounds.source_start >= self.bounds.certain_before

    def _doubtful(self, walk: Survivors, given_back: int, *, differs: bool) -> int:
        """Where the walk ended at a record that a whole surplus does not have, that was not copied. One of a surplus
        that the target has lost some of may have been."""
        if walk.is_whole and not differs and not (self.may_differ and walk.remaining):
            return given_back
        return self.bounds.arrived - walk.passed if walk.is_over or given_back else 0

    def _without(self, walk: Survivors, reason: str) -> Place:
        """What was found tells nothing; what is certain stays so, as far as no later leader wrote it."""
        if self.bounds.kept_before < self.bounds.certain_before:
            return self._placed(self.bounds.kept_before, self.bounds.arrived, reason)
        return self._placed(self.bounds.certain_before, self.bounds.arrived - walk.certain, reason)

    def _placed(self, offset: int, may_double: int, reason: str) -> Place:
        may_be_there = min(self.bounds.arrived, max(0, self.bounds.source_start - offset))
        if not may_double and not may_be_there:
            return Place(offset)
        return Place(offset, may_double, may_be_there, reason if may_double else _CUT)
