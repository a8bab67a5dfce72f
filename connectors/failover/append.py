"""Records that only the old primary holds, written to the new one, each with a header that says where it came from.

A batch is committed with the mark that says how far its partition is appended, under the transactional id of the flow.
The next run claims that id before it reads the marks: so what they say is what is there, and nothing is appended twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.log_ranges import read_ranges
from connect.kafka.producer import OutRecord, TransactionalWriter
from connect.kafka.topic_configs import max_message_bytes, perhaps_compacted
from connect.kafka.transactions import TopicsRefused
from connect.wire.header_keys import is_text
from connectors.dataplane.plan import TopicPartition
from connectors.failover.draining import FlowControl, Tell, copied_ends, why_running
from connectors.failover.lease import PARTITION_KEY, InHand, Lease
from connectors.failover.site import Site
from connectors.failover.starting import returns
from connectors.failover.unreplicated import Unreplicated, encode_mark, find

#: On an appended record: where it came from, such as ``us/orders-0@41``.
HEADER: Final = "heliograph.appended"
#: Beside it, if the source has one: the id of the topic, because one that is recreated has the same offsets again.
TOPIC_HEADER: Final = "heliograph.appended.topic"
#: Before compression, and of one transaction.
_BATCH_BYTES: Final = 512 << 10
#: Longer than a write may take. If the process is killed, others wait so long for what it left open.
_TRANSACTION_TIMEOUT_MS: Final = 40_000


class Done(NamedTuple):
    """``found`` is all that was; of it ``left`` was not appended in full, for ``reasons``, by its source."""

    found: list[Unreplicated]
    left: list[Unreplicated]
    records: int
    reasons: Mapping[TopicPartition, str]


async def append_all(site: Site, lease: Lease, control: FlowControl | None, tell: Tell) -> Done:
    """Append what is unreplicated, under the lease: see that the flow is stopped, shut out its last writer and the
    appender before, and only then look and append. A partition that may not be appended does not keep others from it.

    Raises PermanentError if the flow runs, and as the clusters.
    """
    if why := await why_running(site, control):
        raise PermanentError(f"{site.flow.flow} runs ({why}), and may bring these records itself: stop it first")
    await copied_ends(site, tell)
    writer = _writer(site, _BATCH_BYTES)
    await writer.open()
    found = await find(site)
    topics = {one.target.topic for one in found if not one.is_missing}
    cleaned = await perhaps_compacted(site.target, topics)
    records, reasons = 0, dict[TopicPartition, str]()
    for one in found:
        made, why = 0, objection(site, one, cleaned)
        if not why:
            # So that no batch of several records is refused for its size.
            most = await max_message_bytes(site.target, one.target.topic) or _BATCH_BYTES
            made, why = await _Append(site, lease, one, min(most, _BATCH_BYTES)).run()
        records += made
        if why:
            reasons[one.source] = why
        tell(f"not appended: {why}" if why else f"{one.source}: {made} records appended to {one.target}")
    return Done(found, [one for one in found if one.source in reasons], records, reasons)


def _writer(site: Site, batch_bytes: int) -> TransactionalWriter:
    """Compressed: what was so at the source may be too large for the same topic without."""
    return TransactionalWriter(
        site.target,
        f"heliograph-failover-{site.flow.flow}:append",  # no alias has a colon: it is the id of no lease
        transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        batch_bytes=batch_bytes,
        codec=DefaultRecordBatch.CODEC_ZSTD,
    )


def objection(site: Site, one: Unreplicated, compacted_topics: Collection[str]) -> str:
    """Why these are not appended (pure); empty if they may be."""
    target = site.flow.target_alias
    if not returns(site.flow, site.back, one.source.topic, one.target.topic):
        return (
            f"{site.flow.flow} copies {one.source.topic} into {one.target.topic}, where nothing else is written: start "
            "it, and it appends them"
        )
    if key := site.flow.changing_key:
        return (
            f"{site.flow.flow} changes records ({key}), and these would be appended as they are: export them, and "
            "write by hand what it would have made of them"
        )
    if one.is_missing:
        return (
            f"cluster {target} has no {one.target}: make the topic there with as many partitions as "
            f"{one.source.topic} has on cluster {site.flow.source_alias}, and run this again"
        )
    if one.target.topic in compacted_topics:
        return (
            f"{one.target.topic} of cluster {target} is compacted, or its cleanup.policy cannot be read: what is "
            "appended would win over what was written there since; export the records, and write by hand those whose "
            "keys are still the newest"
        )
    if one.doubt:
        return f"some records of {one.source} may be on cluster {target} already: {one.doubt}; export and compare them"
    return ""


class _Append:
    """One partition, a batch at a time, and none behind one that is not there."""

    def __init__(self, site: Site, lease: Lease, one: Unreplicated, batch_bytes: int) -> None:
        self._site = site
        self._lease = lease
        self._one = one
        self._batch_bytes = batch_bytes
        self._writer = _writer(site, batch_bytes)

    async def run(self) -> tuple[int, str]:
        """How many records were appended, and why no more. Raises HeliographError if nothing more may be appended."""
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
                            "Export the rest, and write it by hand"
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
        """How many records it has, once they are there."""
        if not batch:
            return 0
        site, one, asked = self._site, self._one, list[bool]()

        async def may_commit(_: object) -> bool:
            """A second time: an earlier attempt may have been committed, though its answer was lost."""
            if asked:
                raise PermanentError("its commit was not answered")
            asked.append(True)
            await self._lease.check()
            return True

        key, value = encode_mark(site.flow.flow, one.source, one.mark._replace(appended=batch[-1].offset))
        mark = OutRecord(site.flow.map_topic, key, value, PARTITION_KEY)
        try:
            await self._writer.write([*map(self._out, batch), mark], may_commit)
        except (TopicsRefused, InHand):
            raise
        except HeliographError as error:
            with contextlib.suppress(HeliographError):
                await self._writer.open()  # readers do not wait for what is open
            kind = RetriableError if isinstance(error, RetriableError) else PermanentError
            raise kind(
                f"cluster {site.flow.target_alias}: offsets {batch[0].offset} to {batch[-1].offset} of {one.source} of "
                f"cluster {site.flow.source_alias} are perhaps not on {one.target}: {error}. If it refuses their size "
                f"or age, raise max.message.bytes or message.timestamp.before.max.ms of {one.target.topic}; then run "
                "this again: it finds out, and goes on there"
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
