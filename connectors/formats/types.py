"""Values shared by every part of a mirror: partitions, runs of records, producers, compression, states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, NamedTuple, Self, get_args, get_origin, get_type_hints
from uuid import UUID


class Wired:
    """A dataclass that crosses a process border as JSON: its fields by name, sequences as lists, ids as text. A field
    that an older release does not send has its default, and an unknown one is ignored."""

    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        kind: Any = type(self)
        return {name: _to_wire(getattr(self, name)) for name in _types_of(kind)}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        kind: Any = cls
        return cls(**{name: _from_wire(one, data[name]) for name, one in _types_of(kind).items() if name in data})


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass or named tuple, in order; an optional one without None."""
    hints = get_type_hints(kind)
    return {name: get_args(one)[0] if get_origin(one) is UnionType else one for name, one in hints.items()}


def _to_wire(value: Any) -> Any:
    if isinstance(value, Wired):
        return value.to_wire()
    if isinstance(value, tuple | list):
        return [_to_wire(one) for one in value]
    return str(value) if isinstance(value, UUID) else value


def _from_wire(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if (sequence := get_origin(kind)) in (tuple, list):  # whose values have one type
        return sequence(_from_wire(get_args(kind)[0], one) for one in value)
    if not isinstance(kind, type):
        return value
    if issubclass(kind, Wired):
        return kind.from_wire(value)
    if issubclass(kind, tuple):
        return kind(*map(_from_wire, _types_of(kind).values(), value))
    return kind(value) if issubclass(kind, UUID | Enum) else value


class FlowName(NamedTuple):
    """A flow by the aliases of its clusters; as text, ``us->eu``, as in a properties file."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


def is_recreated(topic_id: UUID | None, earlier: UUID | None) -> bool:
    """Whether a topic is not the ``earlier`` one of its name; False if an id is unknown (before Kafka 2.8)."""
    return None not in (topic_id, earlier) and topic_id != earlier


#: A broker's default ``max.message.bytes``.
DEFAULT_MAX_MESSAGE_BYTES: Final = 1048588
#: Size of the largest merged batch.
DEFAULT_BATCH_BYTES: Final = 1024 * 1024

#: (upstream start, downstream start, count)
Run = tuple[int, int, int]
#: (first source offset, last source offset, error code): records that the target refused and that were left out
Skip = tuple[int, int, int]

RUNNING: Final = "running"
STOPPED: Final = "stopped"
#: Stopped by a batch that the target refuses permanently.
QUARANTINED: Final = "QUARANTINED"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OfPair:
    """What concerns a source partition and the target partition that it is copied to."""

    __slots__ = ()
    source_topic: str
    source_partition: int
    target_topic: str
    target_partition: int

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.source_topic, self.source_partition)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.target_partition)


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch(Wired):
    producer_id: int
    epoch: int

    def raised(self) -> Self | None:
        """Return it with the next epoch; None if none is left. The last epoch stays unused, as after a fence."""
        return None if self.epoch >= _LAST_EPOCH else type(self)(self.producer_id, self.epoch + 1)


_LAST_EPOCH: Final = 32765


class Compression(NamedTuple):
    """How uncompressed batches are compressed: the codec's number (0: none), and its level (None: not set)."""

    codec: int
    level: int | None = None

    def level_of(self, codec: int) -> int | None:
        return self.level if codec == self.codec else None


NO_COMPRESSION: Final = Compression(0)


@dataclass(frozen=True, slots=True)
class ResumeProof(Wired):
    """Where an unclean predecessor may have stopped, for resuming by counting. ``producer``: under which it wrote;
    ``next_sequence``: of its next record at the stored position; ``is_fenced``: a fence's marker ends what it wrote;
    ``is_last_ours``: if ``next_sequence`` is not 0, the record before the stored end has the sequence before it."""

    producer: ProducerIdAndEpoch
    next_sequence: int
    is_fenced: bool
    is_last_ours: bool = False


class Ways(NamedTuple):
    """How to distinguish the records of a source topic that a query or transforms send to several topics.

    ``seen_as`` is the topic as transforms see it. ``asked`` are the names that a query may give, ``named`` those that
    transforms may give: the first is ours, the others belong to other connectors. Without ``named`` transforms must
    give every record the one name that renaming the topic gives.
    """

    seen_as: str = ""
    asked: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


ONE_WAY: Final = Ways()
