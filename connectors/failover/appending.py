"""Records that only the old primary holds, written to the new one, each with a header that says where it came from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.topic_configs import describe
from connectors.dataplane.plan import TopicPartition
from connectors.failover.appended import HEADER, where
from connectors.failover.draining import FlowControl, Tell, copied_ends, why_running
from connectors.failover.proving import compacted
from connectors.failover.site import Site
from connectors.failover.starting import returns
from connectors.failover.stranded import Stranded, find, records_of
from connectors.failover.uncopied import not_there

#: Before compression. One is on its way at a time.
_BATCH_BYTES: Final = 512 << 10
#: As much as a broker takes in a request: whether a record is too large is for the topic to say.
_MAX_REQUEST_BYTES: Final = 100 << 20


async def append_all(site: Site, control: FlowControl | None, tell: Tell) -> tuple[list[Stranded], int]:
    """Under the lease: see that the flow is stopped, shut its last writer out, and only then look and append. What was
    found, and how many records were appended.

    Raises PermanentError where nothing may be appended, and as the clusters.
    """
    if why := await why_running(site, control):
        raise PermanentError(f"{site.flow.flow} runs ({why}), and may bring these records itself: stop it first")
    await copied_ends(site, tell)
    found = await find(site)
    missing = await not_there(site, {one.target for one in found})
    cleaned = await compacted(site.target, {one.target.topic for one in found} - {one.topic for one in missing})
    if why := objection(site, found, cleaned, missing):
        raise PermanentError(why)
    return found, await _append_all(site, found, tell)


def objection(
    site: Site,
    stranded: Sequence[Stranded],
    compacted_topics: Collection[str],
    missing: Collection[TopicPartition] = (),
) -> str:
    """Why nothing is appended by hand (pure); empty: it may be."""
    for one in stranded:
        if not returns(site.flow, site.back, one.source.topic, one.target.topic):
            return (
                f"{site.flow.flow} copies {one.source.topic} into {one.target.topic}, where nobody else writes: start "
                "it, and it appends them"
            )
        if key := site.flow.changing_key:
            return (
                f"{site.flow.flow} changes records on their way ({key}), and these would be appended as they are: "
                "export them, and write by hand what it would have made of them"
            )
        if one.target in missing:
            return (
                f"cluster {site.flow.target_alias} has no {one.target}: make the topic there with as many partitions "
                f"as {one.source.topic} has on cluster {site.flow.source_alias}, and run this again"
            )
        if one.target.topic in compacted_topics:
            return (
                f"{one.target.topic} of cluster {site.flow.target_alias} is compacted, or does not tell: what is "
                "appended would be newer than what was written there since, and win over it; export the records, and "
                "write by hand those whose keys are still the newest"
            )
        if one.doubtful:
            return (
                f"{one.doubtful} of the records of {one.source} arrived on cluster {site.flow.target_alias}, and "
                "nobody can tell which: export them, and compare"
            )
        if one.may_be_appended:
            return (
                f"some of the records of {one.source}, from offset {one.own.first} on, may have been appended before: "
                f"cluster {site.flow.target_alias} has deleted the beginning of {one.target}, where headers would say "
                "so; export them, and compare"
            )
        if one.may_have_arrived:
            return (
                f"only a stored offset tells how far {one.source} was copied, as Java's MirrorMaker 2 leaves it, and "
                f"some of these records may have arrived on cluster {site.flow.target_alias}: export them, and compare"
            )
    return ""


async def _append_all(site: Site, stranded: Sequence[Stranded], tell: Tell) -> int:
    most = await _batch_bytes(site, {one.target.topic for one in stranded})
    appended = 0
    for one in stranded:
        if one.is_late:
            tell(f"{one.source}: an earlier run left out what begins at offset {one.own.first}: it comes last now")
        producer = AIOKafkaProducer(
            **site.target.settings.aiokafka_arguments(),
            acks="all",
            enable_idempotence=True,
            # What was compressed at the source may be too large for the same topic without.
            compression_type="zstd",
            max_batch_size=most[one.target.topic],
            max_request_size=_MAX_REQUEST_BYTES,
        )
        try:
            await producer.start()
            made = await _append(site, one, producer)
        except KafkaError as error:
            kind = RetriableError if error.retriable else PermanentError
            raise kind(
                f"cluster {site.flow.target_alias}: {one.target} cannot be written: {error!r}; run this again"
            ) from error
        finally:
            await producer.stop()
        tell(f"{one.source}: {made} records appended to {one.target}")
        appended += made
    return appended


async def _batch_bytes(site: Site, topics: Collection[str]) -> dict[str, int]:
    """So that no batch of several records is refused for its size."""
    found = {}
    for topic, configs in (await describe(site.target, topics)).items():
        most = None if isinstance(configs, HeliographError) else configs.get("max.message.bytes")
        found[topic] = min(_BATCH_BYTES, int(most.value) if most is not None and most.value else _BATCH_BYTES)
    return found


async def _append(site: Site, one: Stranded, producer: AIOKafkaProducer) -> int:
    """A batch at a time, and none behind one that is not there: of a producer that it does not know a broker takes any
    first sequence, so what follows a refused batch would land, and leave a hole."""
    made, batch, first, last = 0, producer.create_batch(), -1, -1
    async with aclosing(records_of(site, one)) as records:
        async for record in records:
            if not _take(site, one, batch, record):
                made += await _send(site, one, producer, batch, (first, last))
                batch, first = producer.create_batch(), -1
                _take(site, one, batch, record)
            first, last = record.offset if first < 0 else first, record.offset
    return made + await _send(site, one, producer, batch, (first, last))


def _take(site: Site, one: Stranded, batch: BatchBuilder, record: Any) -> bool:
    """Whether it has room; it has for a first record of any size."""
    header = (HEADER, where(site.flow.source_alias, one.source, record.offset).encode())
    headers = [*record.headers, header]
    taken = batch.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=headers)
    return taken is not None


async def _send(
    site: Site, one: Stranded, producer: AIOKafkaProducer, batch: BatchBuilder, offsets: tuple[int, int]
) -> int:
    """How many records it has, once they are there."""
    records: int = batch.record_count()
    if not records:
        return 0
    try:
        await (await producer.send_batch(batch, one.target.topic, partition=one.target.partition))
    except KafkaError as error:
        kind = RetriableError if error.retriable else PermanentError
        raise kind(refusal(site, one, offsets, error)) from error
    return records


def refusal(site: Site, one: Stranded, offsets: tuple[int, int], error: KafkaError) -> str:
    """What to say of records, from one offset of the source to another, that the target does not take (pure)."""
    first, last = offsets
    of = f"offset {first}" if first == last else f"offsets {first} to {last}"
    return (
        f"cluster {site.flow.target_alias}: {one.target} does not take {of} of {one.source} of cluster "
        f"{site.flow.source_alias}: {type(error).__name__}: {_remedy(one, error)}; then run this again: it goes on "
        "there, and nothing behind it was appended"
    )


def _remedy(one: Stranded, error: KafkaError) -> str:
    topic = one.target.topic
    match error:
        case MessageSizeTooLargeError() | RecordListTooLargeError():
            return f"raise max.message.bytes of {topic}, to that of its source or more"
        case InvalidTimestampError():
            return f"raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of {topic}"
        case TopicAuthorizationFailedError() | ClusterAuthorizationFailedError():
            return f"grant WRITE on topic {topic}"
    if error.retriable:
        return "see whether its replicas are in sync, and its brokers answer"
    return "the log of its broker says why"
