"""Records that only the old primary holds, written to the new one, each with a header that says where it came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    for_code,
)

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.producer import Batch
from connect.kafka.topic_configs import describe
from connect.kafka.transactions import Superseded, TopicsRefused
from connect.wire.header_keys import is_text
from connectors.dataplane.plan import TopicPartition
from connectors.failover.appender import Appender, CommitUnknown, encode_mark
from connectors.failover.draining import FlowControl, Tell, copied_ends, why_running
from connectors.failover.lease import Lease, log_of
from connectors.failover.proving import compacted
from connectors.failover.site import Site
from connectors.failover.starting import returns
from connectors.failover.unreplicated import Unreplicated, find, records_of

#: On an appended record: where it came from, such as ``us/orders-0@41``.
HEADER: Final = "heliograph.appended"
#: Beside it, if the source has one: the id of the topic, because one that is recreated has the same offsets again.
TOPIC_HEADER: Final = "heliograph.appended.topic"
#: Before compression. One is on its way at a time.
_BATCH_BYTES: Final = 512 << 10
#: INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
_SHUT_OUT: Final = frozenset({47, 90})


class Done(NamedTuple):
    """``found`` is all that was; of it ``left`` was not appended in full, for ``reasons``, by its source."""

    found: list[Unreplicated]
    left: list[Unreplicated]
    records: int
    reasons: Mapping[TopicPartition, str]


class _Way(NamedTuple):
    """Who writes, and while they hold what."""

    site: Site
    lease: Lease
    appender: Appender


async def append_all(site: Site, lease: Lease, control: FlowControl | None, tell: Tell) -> Done:
    """Append what is stranded, under the lease: see that the flow is stopped, shut out its last writer and the appender
    before, and only then look and append. A partition that may not be appended does not keep others from it.

    Raises PermanentError if the flow runs, and as the clusters.
    """
    if why := await why_running(site, control):
        raise PermanentError(f"{site.flow.flow} runs ({why}), and may bring these records itself: stop it first")
    await copied_ends(site, tell)
    appender = Appender(site.target, site.flow.flow, await log_of(site.target, site.flow.map_topic))
    await appender.open()
    found = await find(site)
    topics = {one.target.topic for one in found if not one.is_missing}
    cleaned, most = await compacted(site.target, topics), await _batch_bytes(site, topics)
    way, records, reasons = _Way(site, lease, appender), 0, {}
    for one in found:
        made, why = 0, objection(site, one, cleaned)
        if not why:
            try:
                made, why = await _append(way, one, most[one.target.topic])
            except TopicsRefused as error:
                why = str(error)
        records += made
        if why:
            reasons[one.source] = why
        tell(f"not appended: {why}" if why else f"{one.source}: {made} records appended to {one.target}")
    return Done(found, [one for one in found if one.source in reasons], records, reasons)


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


async def _batch_bytes(site: Site, topics: Collection[str]) -> dict[str, int]:
    """So that no batch of several records is refused for its size."""
    found = {}
    for topic, configs in (await describe(site.target, topics)).items():
        most = None if isinstance(configs, HeliographError) else configs.get("max.message.bytes")
        found[topic] = min(_BATCH_BYTES, int(most.value) if most is not None and most.value else _BATCH_BYTES)
    return found


async def _append(way: _Way, one: Unreplicated, size: int) -> tuple[int, str]:
    """A batch at a time, and none behind one that is not there. Returns how many records were appended, and why no
    more."""
    site, appender, made = way.site, way.appender, 0
    batch = _Batch(appender.batch(one.target, size))
    async with aclosing(records_of(site, one)) as records:
        async for record in records:
            if not all(is_text(name) for name, _ in record.headers):
                return made + await _send(way, one, batch), (
                    f"cluster {site.flow.source_alias}: {one.source}: the record at offset {record.offset} cannot be "
                    "appended, because a header's key in it is not UTF-8; the records before it were. Export the rest, "
                    "and write it by hand"
                )
            if not _take(site, one, batch, record):
                made += await _send(way, one, batch)
                batch = _Batch(appender.batch(one.target, size))
                _take(site, one, batch, record)
    return made + await _send(way, one, batch), ""


@dataclass(slots=True)
class _Batch:
    """One that is being filled, with the first and last source offset in it."""

    builder: DefaultRecordBatchBuilder
    records: int = 0
    first: int = -1
    last: int = -1


def _take(site: Site, one: Unreplicated, batch: _Batch, record: Any) -> bool:
    """Whether it has room; it has for a first record of any size."""
    headers = [*record.headers, (HEADER, f"{site.flow.source_alias}/{one.source}@{record.offset}".encode())]
    if one.mark.source_id is not None:
        headers.append((TOPIC_HEADER, str(one.mark.source_id).encode()))
    if batch.builder.append(batch.records, record.timestamp, record.key, record.value, headers) is None:
        return False
    batch.first, batch.last = batch.first if batch.records else record.offset, record.offset
    batch.records += 1
    return True


async def _send(way: _Way, one: Unreplicated, batch: _Batch) -> int:
    """How many records it has, once they are there."""
    if not batch.records:
        return 0
    await way.lease.check()
    site = way.site
    mark = encode_mark(site.flow.flow, replace(one.mark, appended=batch.last))
    offsets = f"offset {batch.first}" if batch.first == batch.last else f"offsets {batch.first} to {batch.last}"
    what = f"{offsets} of {one.source} of cluster {site.flow.source_alias}"
    try:
        await way.appender.append(one.target, Batch(bytes(batch.builder.build()), batch.records), mark, _check)
    except TopicsRefused:
        raise
    except CommitUnknown as error:
        raise RetriableError(
            f"cluster {site.flow.target_alias}: {what} may have been appended to {one.target}: {error}; run this "
            "again, which finds out"
        ) from error
    except HeliographError as error:
        kind = RetriableError if isinstance(error, RetriableError) else PermanentError
        why = "another process has begun to append" if isinstance(error, Superseded) else str(error)
        raise kind(
            f"cluster {site.flow.target_alias}: {one.target} does not take {what}: {why}; then run this again: it goes "
            "on there, and nothing behind it was appended"
        ) from error
    return batch.records


def _check(code: int, partition: str) -> None:
    if code in _SHUT_OUT:
        raise Superseded(partition)
    if code:
        error = for_code(code)
        kind = RetriableError if error.retriable else PermanentError
        raise kind(f"{error.__name__}: {_remedy(partition.rpartition('-')[0], error)}")


def _remedy(topic: str, error: type[Exception]) -> str:
    if error in (MessageSizeTooLargeError, RecordListTooLargeError):
        return f"raise max.message.bytes of {topic}, to that of its source or more"
    if error is InvalidTimestampError:
        return f"raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of {topic}"
    if error in (TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
        return f"grant WRITE on topic {topic}"
    if error in (NotEnoughReplicasError, NotEnoughReplicasAfterAppendError):
        return f"fewer replicas of it are in sync than min.insync.replicas of {topic}: see to its brokers"
    if getattr(error, "retriable", False):
        return "see whether its brokers answer"
    return "the log of its broker says why"
