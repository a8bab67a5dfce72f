"""Records that only the old primary holds, written to the new one, each with a header that says where it came from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from connect.core.errors import PermanentError, RetriableError
from connect.wire.header_keys import is_text
from connectors.dataplane.plan import TopicPartition
from connectors.failover.draining import FlowControl, Tell, copied_ends, why_running
from connectors.failover.proving import compacted
from connectors.failover.site import Site
from connectors.failover.starting import returns
from connectors.failover.stranded import HEADER, Stranded, find, last_appended, records_of
from connectors.failover.uncopied import not_there
from connectors.stored_offsets import read_positions

_FLUSH: Final = 1000
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
        if one.may_have_arrived:
            return (
                f"only a stored offset tells how far {one.source} was copied, as Java's MirrorMaker 2 leaves it, and "
                f"some of these records may have arrived on cluster {site.flow.target_alias}: export them, and compare"
            )
    return ""


async def _append_all(site: Site, stranded: Sequence[Stranded], tell: Tell) -> int:
    positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    appended = 0
    for one in stranded:
        known = positions.get(one.source)
        last = await last_appended(site, one.source, one.target, 0 if known is None else known.target_end)
        producer = AIOKafkaProducer(
            **site.target.settings.aiokafka_arguments(),
            acks="all",
            enable_idempotence=True,
            max_request_size=_MAX_REQUEST_BYTES,
        )
        try:
            await producer.start()
            made = await _append(site, one, last, producer)
        except KafkaError as error:
            kind = RetriableError if error.retriable else PermanentError
            raise kind(
                f"cluster {site.flow.target_alias}: {one.target} takes no more: {error!r}; run this again"
            ) from error
        finally:
            await producer.stop()
        tell(f"{one.source}: {made} records appended to {one.target}")
        appended += made
    return appended


async def _append(site: Site, one: Stranded, last: int, producer: Any) -> int:
    made, sent = 0, list[Any]()

    async def settle() -> None:
        await producer.flush()
        for each in sent:
            each.result()
        sent.clear()

    async for record in records_of(site, one):
        if record.offset <= last:
            continue
        if not all(is_text(name) for name, _ in record.headers):
            await settle()
            raise PermanentError(
                f"cluster {site.flow.source_alias}: {one.source}: the record at offset {record.offset} cannot be "
                f"appended, for a header's key in it is no UTF-8; what lies before it is on {one.target}. Export it, "
                "and append it and what lies behind it by hand"
            )
        where = f"{site.flow.source_alias}/{record.topic}-{record.partition}@{record.offset}"
        sent.append(
            await producer.send(
                one.target.topic,
                record.value,
                key=record.key,
                partition=one.target.partition,
                timestamp_ms=record.timestamp,
                headers=[*record.headers, (HEADER, where.encode())],
            )
        )
        made += 1
        if len(sent) >= _FLUSH:
            await settle()
    await settle()
    return made
