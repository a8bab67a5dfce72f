"""The config topic: one log, written by anybody, or by whoever claimed it last where it has a transactional writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Record = tuple[str, bytes | None]


@dataclass
class ConfigTopic:
    #: Whether the leader's writes are fenced (``exactly.once.source.support``).
    transactional: bool
    records: list[Record] = field(default_factory=list)
    followers: list[Callable[[], None]] = field(default_factory=list)
    epoch: int = 0

    def claim(self) -> int:
        self.epoch += 1
        return self.epoch

    def append(self, batch: Sequence[Record], epoch: int | None) -> int | None:
        """The log's end behind the batch; None where the writer is fenced off."""
        if self.transactional and epoch is not None and epoch != self.epoch:
            return None
        self.records += batch
        for follow in self.followers:
            follow()
        return len(self.records)
