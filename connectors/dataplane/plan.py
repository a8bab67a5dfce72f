"""What worker and slice tell each other: versioned plain data, JSON on the link.

Dataclasses here are the meaning; ``to_wire``/``from_wire`` the form. A slice of another version is refused by
the worker, so fields may change with ``LINK_VERSION``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from connectors.gaps import Gap

LINK_VERSION: Final = 15
#: A broker's default ``max.message.bytes``.
DEFAULT_MAX_MESSAGE_BYTES: Final = 1048588
#: Of the largest batch that others are merged into.
DEFAULT_BATCH_BYTES: Final = 1024 * 1024

#: As Java's consumer fetches of a partition.
_LEAST_PARTITION_BYTES: Final = 1024 * 1024
#: As much as keeps a near broker busy.
_MOST_FETCH_BYTES: Final = 8 * 1024 * 1024
#: Also what keeps a broker busy at a distance of 100 ms.
_MOST_HELD_BYTES: Final = 16 * 1024 * 1024

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
class ProducerIdentity:
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
class Proof:
    """Where an unclean predecessor may have stopped, for resuming by counting.

    ``producer``/``next_sequence``: under which it wrote and what it would have sent next at the stored
    position; ``is_fenced``: whether the marker of a fence ends what it wrote; ``is_last_ours``: if ``next_sequence`` is
    not 0, the record before the stored end has the sequence before it.
    """

    producer: ProducerIdentity
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


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition pair of a slice, and where to go on.

    ``next_source_offset`` is the offset of the next source record, ``last_source_epoch`` the leader epoch of the
    batch before it (-1 unknown), ``target_end`` the offset behind the last record known to be ours.
    ``pipelined`` says that the target's leader already knows the producer id here, by an acknowledged batch or
    the marker of a fence: only then may several batches be in flight. ``max_message_bytes`` is the target topic's.
    ``producer`` is under whom to write, if that is not the slice's.
    """

    source: TopicPartition
    source_topic_id: UUID | None
    target: TopicPartition
    target_topic_id: UUID | None
    next_source_offset: int
    last_source_epoch: int
    target_end: int
    next_sequence: int
    pipelined: bool
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    proof: Proof | None = None
    producer: ProducerIdentity | None = None
    ways: Ways = ONE_WAY

    def to_wire(self) -> dict[str, Any]:
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "source": list(self.source),
            "target": list(self.target),
            "source_topic_id": _id_text(self.source_topic_id),
            "target_topic_id": _id_text(self.target_topic_id),
            "ways": list(self.ways),
            "proof": asdict(self.proof) if self.proof else None,
            "producer": asdict(self.producer) if self.producer else None,
        }

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        proof = data["proof"]
        typed = {
            "source": TopicPartition(*data["source"]),
            "target": TopicPartition(*data["target"]),
            "source_topic_id": _id_from(data["source_topic_id"]),
            "target_topic_id": _id_from(data["target_topic_id"]),
            "ways": Ways.from_wire(data["ways"]),
            "proof": Proof(**{**proof, "producer": ProducerIdentity(**proof["producer"])}) if proof else None,
            "producer": ProducerIdentity(**data["producer"]) if data["producer"] else None,
        }
        return cls(**{**data, **typed})


@dataclass(frozen=True, slots=True)
class SliceSettings:
    """How a slice copies; bytes and milliseconds. ``flow`` and the aliases are for messages. ``source``/``target`` are
    ConnectionSettings on the wire, secrets included: they pass over the control link and nowhere else. ``rack`` is
    where it reads if it can. ``skip_refused`` leaves out records that the target refuses for good; ``compression`` is
    for batches that come uncompressed; ``transform_sql`` is what records go through, if anything, and ``chain`` (a
    ChainPlan on the wire, secrets included) behind it. ``by_key``: the slice copies by key, and ``handler`` (a
    HandlerPlan's fields), if any, says where its records go."""

    flow: str
    task: int
    source: dict[str, Any] = field(repr=False)
    target: dict[str, Any] = field(repr=False)
    read_committed: bool = False
    lease_ms: int = 5000
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int | None = None
    buffer_bytes: int = 48 * 1024 * 1024
    batch_bytes: int = DEFAULT_BATCH_BYTES
    in_flight_requests: int = 64
    in_flight_bytes: int = 16 * 1024 * 1024
    progress_interval_ms: int = 100
    rack: str = ""
    skip_refused: bool = False
    compression: Compression = NO_COMPRESSION
    transform_sql: str = ""
    chain: dict[str, Any] | None = field(default=None, repr=False)
    by_key: bool = False
    handler: dict[str, Any] | None = field(default=None, repr=False)
    source_alias: str = ""
    target_alias: str = ""

    def partition_held_bytes(self, partitions: int) -> int:
        """One of so many partitions is fetched again as long as it holds less.

        All together hold half of what the slice may, so that those that the target takes slowly leave the others their
        room. A few partitions hold more than one fetch of each, so that none waits for its next one.
        """
        if self.partition_max_bytes is not None:
            return 2 * self.partition_max_bytes
        share = self.buffer_bytes // 2 // max(partitions, 1)
        return min(max(share, _LEAST_PARTITION_BYTES), _MOST_HELD_BYTES)

    def partition_fetch_bytes(self, partitions: int, *, is_far: bool = False) -> int:
        """How much of one of so many partitions is fetched at once."""
        if self.partition_max_bytes is not None:
            return self.partition_max_bytes
        return min(self.partition_held_bytes(partitions), _MOST_HELD_BYTES if is_far else _MOST_FETCH_BYTES)

    def to_wire(self) -> dict[str, Any]:
        return {**asdict(self), "compression": list(self.compression)}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "compression": Compression(*data["compression"])})


@dataclass(frozen=True, slots=True)
class TransactionTerms:
    """How a slice fills transactions.

    ``version`` is what the target has finalised of ``transaction.version``. A transaction is ended when all that was
    read is acknowledged, ``spacing_ms`` after the one before at the earliest, or when it has lasted ``length_ms``.
    """

    transactional_id: str
    version: int
    spacing_ms: int
    length_ms: int

    @property
    def adds_implicitly(self) -> bool:
        """Whether Produce adds partitions to the transaction by itself (KIP-890); else the worker does, when asked."""
        return self.version >= _IMPLICIT_FROM

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        return cls(**data)


_IMPLICIT_FROM: Final = 2


@dataclass(slots=True)
class PartitionProgress:
    """What a slice did to one partition since its last report, and where it stands now.

    ``runs`` are new (upstream, downstream, count), ``skips`` new too; ``batches`` counts by kind; positions are those
    of acknowledged batches only. ``state`` is ``RUNNING``, ``STOPPED`` or ``QUARANTINED``, the latter two with a
    ``reason`` for people, and with ``gap`` where a log is no longer what it was.
    """

    source: TopicPartition
    next_source_offset: int
    last_source_epoch: int
    target_end: int
    next_sequence: int
    high_watermark: int
    log_start_offset: int
    timestamp_ms: int
    records: int
    bytes: int
    batches: dict[str, int]
    runs: list[Run] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    dropped: int = 0
    changed: int = 0
    state: str = RUNNING
    reason: str = ""
    error: str = ""
    gap: Gap | None = None

    def to_wire(self) -> list[Any]:
        gap = self.gap.to_wire() if self.gap else None
        return [gap, list(self.source), *_progress_of(self)]

    @classmethod
    def from_wire(cls, data: list[Any]) -> Self:
        gap, source, *values = data  # by place: thousands a second come to a worker
        one = cls(TopicPartition(*source), *values)
        one.runs = [(upstream, downstream, count) for upstream, downstream, count in one.runs]
        one.skips = [(first, last, code) for first, last, code in one.skips]
        one.gap = Gap.from_wire(gap) if gap else None
        return one


_progress_of: Final = attrgetter(*(one.name for one in fields(PartitionProgress) if one.name not in ("source", "gap")))


def _id_text(topic_id: UUID | None) -> str | None:
    return str(topic_id) if topic_id else None


def _id_from(text: str | None) -> UUID | None:
    return UUID(text) if text else None
