"""Batches appended to the new primary, each in one transaction with the mark that counts it.

Only one appender of a flow can commit: the next one claims its transactional id, which ends what the one before left
open. So the marks that are read after the claim name exactly what is there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.producer import SEQUENCES, Batch, Check, Placed, produce_all
from connect.kafka.transactions import (
    Partition,
    ProducerIdentity,
    Superseded,
    TopicsRefused,
    add_partitions,
    claim,
    end_transaction,
    init_producer_id,
    until,
)
from connectors.dataplane.plan import TopicPartition
from connectors.failover.lease import decode, decode_object, encode_key, stored
from connectors.failover.site import Site
from connectors.positions import Position, text
from connectors.stored_offsets import read_positions

#: So long a batch may wait for its leader and the replicas.
_BATCH_S: Final = 20.0
#: Of which so long a leader may wait for replicas, so that it says what it waits for.
_LEADER_S: Final = 10.0
_COMMIT_S: Final = 15.0
#: Longer than both. If the process is killed, the lease beside the mark can be read only when this has passed.
_TRANSACTION_TIMEOUT_MS: Final = 40_000
_ABORT_S: Final = 10.0
_V2: Final = 2
_MARK_BYTES: Final = 16 << 10


class CommitUnknown(RetriableError):
    """A batch may have been appended, and may not; the mark tells."""


def transactional_id(flow: str) -> str:
    """Of who appends for a flow, such as ``us->eu``. No alias has a colon: it is the id of no lease."""
    return f"heliograph-failover-{flow}:append"


class Appender:
    """One batch at a time. Uses the cluster's connections and leaves them open.

    Args:
        marks: The partition that marks are written to.
    """

    def __init__(self, target: Cluster, flow: str, marks: Partition) -> None:
        self._target = target
        self._id = transactional_id(flow)
        self._marks = marks
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[Partition, int] = {}

    async def open(self) -> None:
        """Shut out the appender before. Raises as :func:`connect.kafka.transactions.init_producer_id`."""
        self._identity = await init_producer_id(self._target, self._id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)

    def batch(self, partition: Partition, size: int) -> DefaultRecordBatchBuilder:
        """An empty one, compressed: what was so at the source may be too large for the same topic without."""
        return DefaultRecordBatchBuilder(
            magic=_V2,
            compression_type=DefaultRecordBatch.CODEC_ZSTD,
            is_transactional=1,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=self._sequences.get(partition, 0),
            batch_size=size,
        )

    async def append(self, partition: Partition, batch: Batch, mark: tuple[bytes, bytes], check: Check) -> None:
        """Commit ``batch``, the next of ``partition``, with the key and value of its ``mark``.

        After an error the batches of :meth:`batch` begin again, and those that were made before are not to be used.

        Raises:
            CommitUnknown: it is not known whether it is committed.
            Superseded: another one has begun to append.
            TopicsRefused: the right to write to the partition is missing; other partitions may be appended to.
            HeliographError: it is not; as ``check``, which gets each error code of a leader.
        """
        builder = self.batch(self._marks, _MARK_BYTES)
        builder.append(0, int(time.time() * 1000), *mark, [])
        batches = {partition: batch, self._marks: Batch(bytes(builder.build()), 1)}
        try:
            await until(_BATCH_S, "waiting for the target", lambda: self._write(batches, check))
        except TopicsRefused:
            # Others are appended after this one. Unless the sequences begin again, brokers may take those for repeated.
            await self._give_up()
            raise
        except HeliographError:
            with contextlib.suppress(HeliographError):
                await self._give_up()
            raise
        try:
            await until(_COMMIT_S, f"committing {self._id}", self._commit)
        except Superseded:
            raise
        except HeliographError as error:
            raise CommitUnknown(str(error)) from error
        for one, each in batches.items():
            self._sequences[one] = (self._sequences.get(one, 0) + each.records) % SEQUENCES

    async def _write(self, batches: dict[Partition, Batch], check: Check) -> None:
        """The same bytes however often: a leader that has them answers as if it took them."""
        known = await self._target.topics({topic for topic, _ in batches})
        placed: Placed = {}
        for one, batch in batches.items():
            leader = known.leader(*one)
            if leader is None:
                raise RetriableError(f"{one[0]}-{one[1]} has no leader")
            placed.setdefault(leader, {})[one] = [batch]
        await add_partitions(self._target, self._id, self._identity, list(batches))
        await produce_all(self._target, placed, self._id, _LEADER_S, check)

    async def _commit(self) -> None:
        await end_transaction(self._target, self._id, self._identity, commit=True)

    async def _give_up(self) -> None:
        """By a new epoch, so that a batch that arrives late is refused; unless another one has claimed the id."""
        await until(_ABORT_S, f"giving {self._id} up", self._reclaim)

    async def _reclaim(self) -> None:
        self._identity = await claim(self._target, self._id, self._identity, timeout_ms=_TRANSACTION_TIMEOUT_MS)
        self._sequences.clear()


#: Behind the key of the lease.
_APPENDED: Final = text("appended")
_ALL: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """The stranded records of ``source`` up to the offset ``appended`` were appended to ``target``; -1 for none.

    Those up to ``unknown_to`` may have been. Both topics are named by their ids, None for brokers that have none.
    ``copied``: up to which offset the flow had copied the source then, -1 without a position; None where an earlier
    version has written the mark, before it appended anything.
    """

    source: TopicPartition
    source_id: UUID | None
    target: TopicPartition
    target_id: UUID | None
    copied: int | None
    appended: int = -1
    unknown_to: int = -1

    def is_of(self, other: Mark) -> bool:
        """Whether it names the same topics; an unknown id may be any."""
        ids = (self.source_id, other.source_id), (self.target_id, other.target_id)
        same = all(None in pair or pair[0] == pair[1] for pair in ids)
        return same and (self.source, self.target) == (other.source, other.target)


class Marks(NamedTuple):
    """``is_complete``: every version that worked on the flow's failover has left marks."""

    is_complete: bool
    by_source: Mapping[TopicPartition, Mark]

    def of(self, wanted: Mark) -> Mark:
        """Return what is known of the topics of ``wanted``. A mark of a topic that was recreated since says nothing.
        One from before the flow copied on, or of an earlier version, says what may have been appended."""
        found = self.by_source.get(wanted.source)
        if found is None or not found.is_of(wanted):
            return wanted if self.is_complete else replace(wanted, unknown_to=_ALL)
        return found if found.copied == wanted.copied else replace(wanted, unknown_to=found.appended)


async def read_marks(site: Site) -> Marks:
    """Read the marks of the site's flow. Raises as :func:`connectors.failover.lease.look`."""
    flow = site.flow.flow
    kept = await stored(site.target, site.flow.map_topic, flow)
    record = kept.get(encode_key(flow))
    marks = [_decode(value) for key, value in kept.items() if key.startswith(encode_key(flow) + _APPENDED)]
    return Marks(record is None or decode(record).marks, {one.source: one for one in marks})


async def appended_up_to(site: Site) -> dict[TopicPartition, int]:
    """By partition of the source, the offset up to which stranded records were appended. Raises as the clusters."""
    marks = await read_marks(site)
    if not marks.by_source:
        return {}
    positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    here = await _topic_ids(site.source, {one.source.topic for one in marks.by_source.values()})
    there = await _topic_ids(site.target, {one.target.topic for one in marks.by_source.values()})
    found = {}
    for one in marks.by_source.values():
        if one.source.topic in here and one.target.topic in there:
            ids = here[one.source.topic], there[one.target.topic]
            now = marks.of(Mark(one.source, ids[0], one.target, ids[1], copied_to(positions.get(one.source))))
            found[one.source] = now.appended
    return {source: offset for source, offset in found.items() if offset >= 0}


def copied_to(position: Position | None) -> int:
    """What a mark says of a partition with this position (pure)."""
    return -1 if position is None else position.next_source_offset


async def _topic_ids(cluster: Cluster, topics: set[str]) -> dict[str, UUID | None]:
    known = (await cluster.metadata(topics)).topics
    return {name: topic.topic_id for name, topic in known.items() if topic.partitions}


def encode_mark(flow: str, mark: Mark) -> tuple[bytes, bytes]:
    """Return key and value. ``begin`` and ``last`` are for the previous version, which looks for the records itself."""
    source_id, target_id = (None if one is None else str(one) for one in (mark.source_id, mark.target_id))
    document = {
        "format": 1,
        "source": mark.source,
        "topic_id": source_id,
        "target": mark.target,
        "target_id": target_id,
        "begin": 0,
        "last": mark.appended,
        "copied": mark.copied,
    }
    return encode_key(flow) + _APPENDED + text(str(mark.source)), json.dumps(document).encode()


def _decode(value: bytes) -> Mark:
    found = decode_object(value)
    if found["format"] != 1:
        raise PermanentError("a later version of Heliograph has appended records of this flow: use that one")
    source_id, target_id = (
        None if (one := found.get(name)) is None else UUID(one) for name in ("topic_id", "target_id")
    )
    source, target = TopicPartition(*found["source"]), TopicPartition(*found["target"])
    return Mark(source, source_id, target, target_id, found.get("copied"), found["last"])
