"""Values that every part of a mirror shares: partitions, runs of records, producers, compression, states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self


class FlowName(NamedTuple):
    """A flow by the aliases of its clusters. Its text is that of a properties file, like ``us->eu``."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


#: A broker's default ``max.message.bytes``.
DEFAULT_MAX_MESSAGE_BYTES: Final = 1048588
#: Of the largest batch that others are merged into.
DEFAULT_BATCH_BYTES: Final = 1024 * 1024

#: (upstream start, downstream start, count)
Run = tuple[int, int, int]
#: (first source offset, last source offset, error code): records that the target refused and that were left out
Skip = tuple[int, int, int]

RUNNING: Final = "running"
STOPPED: Final = "stopped"
#: Stopped by what the target refuses for good.
QUARANTINED: Final = "QUARANTINED"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    producer_id: int
    epoch: int

    def raised(self) -> Self | None:
        """With the next epoch; None if they are used up. The last one stays unused, as a fence leaves it."""
        return None if self.epoch >= _LAST_EPOCH else type(self)(self.producer_id, self.epoch + 1)


_LAST_EPOCH: Final = 32765


class Compression(NamedTuple):
    """What batches that come uncompressed are compressed with: a codec by its number in a batch's attributes, 0 for
    none, and how hard it tries (None: Kafka's default)."""

    codec: int
    level: int | None = None

    def level_of(self, codec: int) -> int | None:
        return self.level if codec == self.codec else None


NO_COMPRESSION: Final = Compression(0)


@dataclass(frozen=True, slots=True)
class ResumeProof:
    """Where an unclean predecessor may have stopped, for resuming by counting.

    ``producer``/``next_sequence``: under which it wrote and what it would have sent next at the stored
    position; ``is_fenced``: whether the marker of a fence ends what it wrote; ``is_last_ours``: if ``next_sequence`` is
    not 0, the record before the stored end has the sequence before it.
    """

    producer: ProducerIdAndEpoch
    next_sequence: int
    is_fenced: bool
    is_last_ours: bool = False


class Ways(NamedTuple):
    """How records of a source topic are told apart that a query or transforms send to several topics.

    ``seen_as`` is the topic as transforms see it. ``asked`` are the names that a query may give, ``named`` those that
    transforms may: the first is ours, the others are left to other connectors. Without ``named`` all have to come out
    of transforms under the one that renaming them gives.
    """

    seen_as: str = ""
    asked: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, data: list[Any]) -> Self:
        return cls(data[0], tuple(data[1]), tuple(data[2]))


ONE_WAY: Final = Ways()
