"""Find records that only the old primary holds after an unplanned failover, export them, and append them to the new.

Each appended record has a header that says where it came from. A batch is committed with the mark that says how far its
partition is appended, under the flow's transactional id. The next run claims that id before it reads the marks, so they
are exact, and nothing is appended twice.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatch

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.core.wording import counted
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.log_ranges import Range, read_ranges, without
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from connect.kafka.log.producer import OutRecord, TransactionalWriter
from connect.kafka.log.topic_admin import max_message_bytes, perhaps_compacted
from connect.kafka.log.transactions import TopicsRefused
from connect.wire.batch import bytes_of, is_text, readable
from connectors.failover.clusters_and_lease import (
    PARTITION_KEY,
    FailoverInProgress,
    Lease,
    Site,
    decode_object,
    encode_key,
    read_positions,
    returns,
    stored,
)
from connectors.failover.drain import CopiedEnd, FlowControl, Report, copied_ends, why_running, written_on
from connectors.failover.log_comparison import (
    CREATE_TIME,
    Fate,
    UnreplicatedRecords,
    count,
    identity,
    is_kept,
    logs_now,
    unreplicated_ranges,
)
from connectors.formats.position import text
from connectors.formats.types import TopicPartition
from connectors.internal_topics import read_copied
from connectors.offset_map.reader import MapReader
from connectors.topic_sync.partition_assignment import selected

_FORMAT: Final = 2
#: Follows the key of the lease.
_APPENDED: Final = text("appended")


class Mark(NamedTuple):
    """How far unreplicated records of a partition were appended: up to offset ``appended``; -1 for none. ``of`` names
    the topics with their ids, and how far the flow had copied then."""

    of: str
    appended: int = -1


def encode_mark(flow: str, source: TopicPartition, mark: Mark) -> tuple[bytes, bytes]:
    content = {"format": _FORMAT, "source": source, **mark._asdict()}
    return encode_key(flow) + _APPENDED + text(str(source)), json.dumps(content).encode()


async def read_marks(site: Site) -> dict[TopicPartition, Mark]:
    """Read the marks, by source partition. Raises PermanentError if another version wrote them."""
    front = encode_key(site.flow.flow) + _APPENDED
    kept = await stored(site.target, site.flow.map_topic, site.flow.flow)
    found = [decode_object(value) for key, value in kept.items() if key.startswith(front)]
    if any(one["format"] != _FORMAT for one in found):
        raise PermanentError("another version of Heliograph has appended records of this flow. Run that version")
    return {TopicPartition(*one["source"]): Mark(one["of"], one["appended"]) for one in found}


@dataclass(frozen=True, slots=True)
class Unreplicated:
    """Records of one source partition that were not appended. ``topic_id`` is the source's; ``mark`` says what was
    appended; ``doubt``: why some of these may be on the target already, empty if none is. ``is_missing``: the target
    does not have the partition."""

    own: UnreplicatedRecords
    ranges: tuple[Range, ...]
    target: TopicPartition
    mark: Mark
    topic_id: UUID | None = None
    doubt: str = ""
    is_missing: bool = False

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.own.topic, self.own.partition)


class _Extent(NamedTuple):
    """The range of a partition that holds decided records that were not copied, as far as is known.
    ``may_have_arrived``: it begins after a stored offset without a position of ours. Java's MirrorMaker 2, which copies
    further than it stores, or an operator stored it."""

    topic_id: UUID | None
    begin: int
    end: int
    may_have_arrived: bool = False


async def find(site: Site, until: Mapping[TopicPartition, int] | None = None) -> list[Unreplicated]:
    """Find unreplicated records of partitions copied from or selected; or ``until`` these offsets of any."""
    known = await read_positions(site)
    # The reverse flow's worker keeps writing heartbeats there, which no reader misses.
    positions = {
        one: each
        for one, each in known.items()
        if not site.flow.policy.is_heartbeats_topic(one.topic) and (until is None or one in until)
    }
    logs = await logs_now(site.source, positions)
    there = [one for one, log in logs.items() if log.fate is not Fate.GONE]
    ends = await list_offsets(site.source, there, LATEST, READ_COMMITTED) if there else {}
    new = await _extents(site, positions, until)
    # In this order, because what the reverse flow stores meanwhile is then in its map too.
    brought = await _brought(site, {*there, *new})
    copies = MapReader(site.source, site.back.map_topic, connector=site.back.name)
    await copies.follow()
    written = await copied_ends(site)
    targets = {one: positions[one].target for one in there}
    targets |= {one: TopicPartition(site.flow.remote_topic(one.topic), one.partition) for one in new}
    names = {one.topic for one in targets.values()}
    topics = (await site.target.metadata(names)).topics if names else {}
    marks = await read_marks(site)

    async def look_at(one: TopicPartition) -> Unreplicated | None:
        target, surplus, since = targets[one], CopiedEnd(0), 0
        topic = topics.get(target.topic)
        if one in new:
            extent = new[one]
        else:
            log = logs[one]
            since = log.same_to if is_kept(positions[one], topic) else 0
            extent, surplus = _Extent(log.topic_id, max(log.begin, since), ends[one]), written[one]
        extent = extent._replace(end=min(extent.end, (until or {}).get(one, extent.end)))
        is_missing = topic is None or target.partition not in topic.partitions
        copied = positions[one].next_source_offset if one in positions else -1
        there_id = topic.topic_id if topic is not None and not is_missing else "missing"
        of = f"{one} {extent.topic_id} {target} {there_id} copied up to {copied}"
        before = marks.get(one, Mark(of))
        mark = before if before.of == of else Mark(of)
        ranges = without(
            await unreplicated_ranges(copies, one, extent.topic_id, max(extent.begin, mark.appended + 1), extent.end),
            brought.get(one, ()),
        )
        doubt = ""
        if surplus.surplus and mark.appended < since:  # otherwise they were distinguished before any was appended
            arrived = await _arrived(site, one, ranges, target, surplus)
            ranges = without(ranges, [(0, arrived)])
            doubt = "" if arrived else f"{surplus.surplus} of them were copied, and it is not known which"
        own = await count(site.source, one, ranges)
        if own is None:
            return None
        if extent.may_have_arrived:
            doubt = "only a stored source offset, as Java's MirrorMaker 2 leaves it, says how far they were copied"
        if before.of != of and own.first <= before.appended:
            doubt = "they may have been appended before, to another topic or when less was copied"
        return Unreplicated(own, tuple(ranges), target, mark, extent.topic_id, doubt, is_missing)

    seen = await gather_limited(look_at, sorted(targets))
    return [one for one in seen if one is not None]


async def _extents(
    site: Site, known: Collection[TopicPartition], among: Collection[TopicPartition] | None
) -> dict[TopicPartition, _Extent]:
    """Return the extents of all partitions that the flow selects, or ``among`` these, except ``known``, which have a
    position."""
    wanted = await _selected(site, known, among)
    if not wanted:
        return {}
    begins = await list_offsets(site.source, wanted, EARLIEST)
    ends = await list_offsets(site.source, wanted, LATEST, READ_COMMITTED)
    copied = await read_copied(site.target, site.flow, wanted)
    found = {}
    for one, topic_id in wanted.items():
        # A log that ends before the stored offset was recreated, and nothing of it was copied.
        may_have_arrived = copied.get(one, ends[one]) < ends[one]
        begin = max(begins[one], copied[one] + 1) if may_have_arrived else begins[one]
        found[one] = _Extent(topic_id, begin, ends[one], may_have_arrived)
    return found


async def _selected(
    site: Site, known: Collection[TopicPartition], among: Collection[TopicPartition] | None
) -> dict[TopicPartition, UUID | None]:
    if not site.flow.enabled and among is None:
        return {}
    topics = (await site.source.metadata(None)).topics
    return {
        one: topic.topic_id
        for topic in (selected(site.flow.should_mirror, topics) if among is None else topics.values())
        # A topic without a name on the target is not mirrored, and the flow reports it.
        if not site.flow.policy.is_heartbeats_topic(topic.name) and site.flow.names.find(topic.name) is not None
        for index in topic.partitions
        if (one := TopicPartition(topic.name, index)) not in known and (among is None or one in among)
    }


async def _brought(site: Site, among: Collection[TopicPartition]) -> dict[TopicPartition, list[Range]]:
    """Return what the reverse flow wrote to these after its stored position; while it runs there always is some."""
    back = site.turned()
    positions = await read_positions(back)
    return written_on(positions, await copied_ends(back, among=among))


async def _arrived(
    site: Site, one: TopicPartition, ranges: Sequence[Range], target: TopicPartition, written: CopiedEnd
) -> int:
    """Return the offset before which all records arrived: count as many as the flow wrote after its stored position,
    and compare the last of them with the last record written. 0 in doubt: then all count as unreplicated."""
    if site.flow.changing_key:
        return 0
    theirs = [each async for each in read_ranges(site.target, target, [(written.offset - 1, written.offset)])]
    count = 0
    async with aclosing(read_ranges(site.source, one, ranges)) as ours:
        async for each in ours:
            count += 1
            if count == written.surplus:
                return int(each.offset) + 1 if len(theirs) == 1 and is_same(each, theirs[0]) else 0
    return 0


def is_same(ours: Any, theirs: Any) -> bool:
    """Whether a record is the copy of another."""
    is_timed = theirs.timestamp_type == CREATE_TIME
    return identity(ours) == identity(theirs) and (not is_timed or ours.timestamp == theirs.timestamp)


async def export(site: Site, found: Sequence[Unreplicated], directory: Path) -> list[Path]:
    """Write a file for each partition, a JSON line for each record, with base64 for bytes, and replace existing files.
    Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    written = []
    for one in found:
        file = directory / f"{one.own.topic}-{one.own.partition}.jsonl"
        beside = file.with_name(file.name + ".new")
        with beside.open("w") as out:
            async for record in read_ranges(site.source, one.source, one.ranges):
                out.write(json.dumps(as_json(record)) + "\n")
        beside.replace(file)
        written.append(file)
    return written


def as_json(record: Any) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [_header(name, value) for name, value in record.headers],
    }


def _header(name: str, value: bytes | None) -> list[str | None]:
    """Return a header. A key that is not UTF-8 is repeated after the value, as bytes."""
    return [readable(name), _text(value), *([] if is_text(name) else [_text(bytes_of(name))])]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


#: Says where an appended record came from, such as ``us/orders-0@41``.
HEADER: Final = "heliograph.appended"
#: The id of that topic, if the source has one, because a recreated topic has the same offsets again.
TOPIC_HEADER: Final = "heliograph.appended.topic"
#: Before compression, for one transaction.
_BATCH_BYTES: Final = 512 << 10
#: Longer than a write may take. After a killed process others wait this long for its open transaction.
_TRANSACTION_TIMEOUT_MS: Final = 40_000


class AppendResult(NamedTuple):
    """``found`` was unreplicated; ``left`` of it was not appended in full, for ``reasons``, by source partition."""

    found: list[Unreplicated]
    left: list[Unreplicated]
    records: int
    reasons: Mapping[TopicPartition, str]


async def append_all(site: Site, lease: Lease, control: FlowControl | None, report: Report) -> AppendResult:
    """Append unreplicated records under the lease: check that the flow is stopped, fence its last writer and the last
    appender, and only then read and append. A partition that cannot be appended does not block others. Raises
    PermanentError if the flow runs."""
    if why := await why_running(site, control):
        raise PermanentError(f"{site.flow.flow} runs ({why}), and may copy these records itself. Stop it first")
    await copied_ends(site, report)
    writer = _writer(site, _BATCH_BYTES)
    await writer.open()
    found = await find(site)
    topics = {one.target.topic for one in found if not one.is_missing}
    cleaned = await perhaps_compacted(site.target, topics)
    records, reasons = 0, dict[TopicPartition, str]()
    for one in found:
        made, why = 0, objection(site, one, cleaned)
        if not why:
            # So that no batch of several records is rejected for its size.
            most = await max_message_bytes(site.target, one.target.topic) or _BATCH_BYTES
            made, why = await _Append(site, lease, one, min(most, _BATCH_BYTES)).run()
        records += made
        if why:
            reasons[one.source] = why
        report(f"not appended: {why}" if why else f"{one.source}: {counted(made, 'record')} appended to {one.target}")
    return AppendResult(found, [one for one in found if one.source in reasons], records, reasons)


def _writer(site: Site, batch_bytes: int) -> TransactionalWriter:
    """Compress: records compressed at the source may otherwise be too large for the same topic."""
    return TransactionalWriter(
        site.target,
        f"heliograph-failover-{site.flow.flow}:append",  # aliases have no colon, so it is not the id of a lease
        transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        batch_bytes=batch_bytes,
        codec=DefaultRecordBatch.CODEC_ZSTD,
    )


def objection(site: Site, one: Unreplicated, compacted_topics: Collection[str]) -> str:
    """Why these are not appended; empty if they may be."""
    target = site.flow.target_alias
    if not returns(site.back, one.source.topic, one.target.topic):
        return (
            f"{site.flow.flow} copies {one.source.topic} into {one.target.topic}, where nothing else is written. Start "
            "it, and it copies these records"
        )
    if key := site.flow.changing_key:
        return (
            f"{site.flow.flow} changes records ({key}), and these would be appended unchanged. Export them, and write "
            "what it would have made of them"
        )
    if one.is_missing:
        return (
            f"cluster {target} has no {one.target}. Create the topic there with as many partitions as "
            f"{one.source.topic} has on cluster {site.flow.source_alias}, and run this again"
        )
    if one.target.topic in compacted_topics:
        return (
            f"{one.target.topic} of cluster {target} is compacted, or its cleanup.policy cannot be read: appended "
            "records would override what was written there since. Export the records, and write those whose keys are "
            "still the newest"
        )
    if one.doubt:
        return f"some records of {one.source} may be on cluster {target} already: {one.doubt}. Export and compare them"
    return ""


class _Append:
    """Appends one partition, a batch at a time; after a batch that failed none is appended."""

    def __init__(self, site: Site, lease: Lease, one: Unreplicated, batch_bytes: int) -> None:
        self._site, self._lease, self._one, self._batch_bytes = site, lease, one, batch_bytes
        self._writer = _writer(site, batch_bytes)

    async def run(self) -> tuple[int, str]:
        """Return how many records were appended, and why no more. Raises HeliographError if no more may be appended."""
        site, source, why = self._site, self._one.source, ""
        made, batch, size = 0, list[Any](), 0
        await self._writer.open()
        try:
            async with aclosing(read_ranges(site.source, source, self._one.ranges)) as records:
                async for record in records:
                    if not all(is_text(name) for name, _ in record.headers):
                        why = (
                            f"cluster {site.flow.source_alias}: {source}: the record at offset {record.offset} cannot "
                            "be appended, because a header's key in it is not UTF-8; the records before it were. "
                            "Export and write the rest"
                        )
                        break
                    length = len(record.key or b"") + len(record.value or b"")
                    if batch and size + length > self._batch_bytes:
                        made += await self._send(batch)
                        batch, size = [], 0
                    batch.append(record)
                    size += length
            return made + await self._send(batch), why
        except TopicsRefused as error:
            return made, str(error)

    async def _send(self, batch: Sequence[Any]) -> int:
        """Append a batch and return how many records it has."""
        if not batch:
            return 0
        site, one, asked = self._site, self._one, list[bool]()

        async def may_commit(_: object) -> bool:
            """Refuse a second time: an earlier attempt may have been committed, though its answer was lost."""
            if asked:
                raise PermanentError("its commit was not answered")
            asked.append(True)
            await self._lease.check()
            return True

        key, value = encode_mark(site.flow.flow, one.source, one.mark._replace(appended=batch[-1].offset))
        mark = OutRecord(site.flow.map_topic, key, value, PARTITION_KEY)
        try:
            await self._writer.write([*map(self._out, batch), mark], may_commit)
        except (TopicsRefused, FailoverInProgress):
            raise
        except HeliographError as error:
            with contextlib.suppress(HeliographError):
                await self._writer.open()  # aborts the open transaction, so that readers do not wait for it
            kind = RetriableError if isinstance(error, RetriableError) else PermanentError
            raise kind(
                f"cluster {site.flow.target_alias}: offsets {batch[0].offset} to {batch[-1].offset} of {one.source} of "
                f"cluster {site.flow.source_alias} may be missing on {one.target}: {error}. If it rejects their size "
                f"or age, raise max.message.bytes or message.timestamp.before.max.ms of {one.target.topic}. Then run "
                "this again: it checks what is there, and continues"
            ) from error
        return len(batch)

    def _out(self, record: Any) -> OutRecord:
        one = self._one
        origin = f"{self._site.flow.source_alias}/{one.source}@{record.offset}".encode()
        topic = () if one.topic_id is None else ((TOPIC_HEADER, str(one.topic_id).encode()),)
        headers = (*record.headers, (HEADER, origin), *topic)
        return OutRecord(
            one.target.topic,
            record.key,
            record.value,
            headers=headers,
            partition=one.target.partition,
            timestamp_ms=record.timestamp,
        )
