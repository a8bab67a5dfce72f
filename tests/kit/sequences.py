"""Judges one partition's sequence numbers, in the order of its log: gaps, duplicates, disorder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class SequenceTracker:
    """Takes numbers in log order; invariant: ``records`` = ``next_sequence`` - missing + duplicates."""

    next_sequence: int = 0
    records: int = 0
    duplicates: int = 0
    disorder: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    first_fault: str = ""

    @property
    def gaps(self) -> int:
        return sum(end - start for start, end in self.missing)

    def take(self, sequences: Sequence[int], where: str = "") -> None:
        """The next numbers of the log; ``where`` names their place in messages."""
        if not sequences:
            return
        first, count = sequences[0], len(sequences)
        # Whole batches in order are the rule; only the others are looked at one by one.
        if first == self.next_sequence and sequences[-1] == first + count - 1 and _is_run(sequences):
            self.next_sequence += count
            self.records += count
            return
        for sequence in sequences:
            self._take_one(sequence, where)

    def _take_one(self, sequence: int, where: str) -> None:
        self.records += 1
        if sequence == self.next_sequence:
            self.next_sequence += 1
        elif sequence > self.next_sequence:
            self._fault(f"{where}: {sequence} follows {self.next_sequence - 1}")
            self.missing.append((self.next_sequence, sequence))
            self.next_sequence = sequence + 1
        elif self._fill(sequence):
            self._fault(f"{where}: {sequence} comes late")
            self.disorder += 1
        else:
            self._fault(f"{where}: {sequence} comes again")
            self.duplicates += 1

    def _fill(self, sequence: int) -> bool:
        for index, (start, end) in enumerate(self.missing):
            if start <= sequence < end:
                left, right = (start, sequence), (sequence + 1, end)
                self.missing[index : index + 1] = [part for part in (left, right) if part[0] < part[1]]
                return True
        return False

    def _fault(self, text: str) -> None:
        self.first_fault = self.first_fault or text


def _is_run(sequences: Sequence[int]) -> bool:
    return list(sequences) == list(range(sequences[0], sequences[0] + len(sequences)))
