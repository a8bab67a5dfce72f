"""Records that only the old primary holds, written to the new one, each with a header that says where it came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
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
from connect.kafka.offsets import LATEST, list_offset
from connect.kafka.producer import Batch
from connect.kafka.topic_configs import describe
from connect.kafka.transactions import Partition, Superseded, TopicsRefused
from connect.wire.header_keys import is_text
from connectors.dataplane.plan import TopicPartition
from connectors.failover.appended import HEADER, headers_of, where
from connectors.failover.appender import Appender, CommitUnknown
from connectors.failover.draining import FlowControl, Tell, copied_ends, why_running
from connectors.failover.lease import Lease
from connectors.failover.marks import keep
from connectors.failover.objections import before_look, doubt, not_writable
from connectors.failover.site import Site
from connectors.failover.stranded import Stranded, find, records_of

#: Before compression. One is on its way at a time.
_BATCH_BYTES: Final = 512 << 10
#: INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
_SHUT_OUT: Final = frozenset({47, 90})


class Done(NamedTuple):
    """``found`` is all that was; of it ``left`` was not appended, for ``reasons``, by its source."""

    found: list[Stranded]
    left: list[Stranded]
    records: int
    reasons: Mapping[TopicPartition, str]


class _Way(NamedTuple):
    """Who writes, and while they hold what."""

    site: Site
    lease: Lease
    appender: Appender


async def append_all(
    site: Site, lease: Lease, control: FlowControl | None, tell: Tell, looked: Sequence[Stranded]
) -> Done:
    """Under the lease: see that the flow is stopped, shut out its last writer and who appended before, and only then
    look and append. Partitions that may not be appended do not keep others from it.

    Args:
        looked: Found by a look before, which nothing has to have shut out; no others are appended to.

    Raises PermanentError where the flow runs, and as the clusters.
    """
    if why := await why_running(site, control):
        raise PermanentError(f"{site.flow.flow} runs ({why}), and may bring these records itself: stop it first")
    await copied_ends(site, tell)
    kept_out = await before_look(site, looked)
    appender = Appender(site.target, site.flow.flow)
    kept_out |= await _open(site, appender, [one for one in looked if one.source not in kept_out])
    found = await find(site)
    if new := sorted({(one.target, one.source) for one in found} - {(one.target, one.source) for one in looked}):
        raise RetriableError(f"{new[0][0]} has records to be appended that were not there a moment ago: run this again")
    reasons = {one.source: why for one in found if (why := kept_out.get(one.source) or doubt(site, one))}
    for why in dict.fromkeys(reasons.values()):
        tell(f"not appended: {why}")
    taken = [one for one in found if one.source not in reasons]
    left = [one for one in found if one.source in reasons]
    return Done(found, left, await _append_all(_Way(site, lease, appender), taken, tell), reasons)


async def _open(site: Site, appender: Appender, wanted: Collection[Stranded]) -> dict[TopicPartition, str]:
    """Shut out who appended to ``wanted`` before; why, by its source, a partition is not among them."""
    refused: set[Partition] = set()
    while True:
        try:
            await appender.open(sorted({one.target for one in wanted} - refused))
        except TopicsRefused as error:  # nobody is shut out by then, and the others are not kept waiting
            refused |= error.partitions
        else:
            return {one.source: not_writable(site, one) for one in wanted if one.target in refused}


async def _append_all(way: _Way, stranded: Sequence[Stranded], tell: Tell) -> int:
    most = await _batch_bytes(way.site, {one.target.topic for one in stranded})
    appended = 0
    held_up: _NotText | None = None
    for one in stranded:
        if one.is_late:
            tell(f"{one.source}: an earlier run left out what begins at offset {one.own.first}: it comes last now")
        # Headers that say so may be deleted one day, and this stays.
        await keep(way.lease, one.mark(await list_offset(way.site.target, one.target, LATEST)))
        try:
            made = await _append(way, one, most[one.target.topic])
        except _NotText as error:  # of this partition; by the next run too, so that it must not keep others waiting
            tell(str(error))
            held_up = held_up or error
        else:
            tell(f"{one.source}: {made} records appended to {one.target}")
            appended += made
    if held_up is not None:
        raise held_up
    return appended


async def _batch_bytes(site: Site, topics: Collection[str]) -> dict[str, int]:
    """So that no batch of several records is refused for its size."""
    found = {}
    for topic, configs in (await describe(site.target, topics)).items():
        most = None if isinstance(configs, HeliographError) else configs.get("max.message.bytes")
        found[topic] = min(_BATCH_BYTES, int(most.value) if most is not None and most.value else _BATCH_BYTES)
    return found


async def _append(way: _Way, one: Stranded, size: int) -> int:
    """A batch at a time, and none behind one that is not there: that would leave a hole."""
    site, appender, made = way.site, way.appender, 0
    batch = _Batch(appender.batch(one.target, size))
    async with aclosing(records_of(site, one)) as records:
        async for record in records:
            if not all(is_text(name) for name, _ in record.headers):
                await _send(way, one, batch)
                raise _NotText(
                    f"cluster {site.flow.source_alias}: {one.source}: the record at offset {record.offset} cannot be "
                    f"appended, for a header's key in it is no UTF-8; what lies before it is on {one.target}. Export "
                    f"it, write it there by hand with a header {HEADER}: "
                    f"{where(site.flow.source_alias, one.source, record.offset)}, and run this again, which goes on "
                    "behind it"
                )
            if not _take(site, one, batch, record):
                made += await _send(way, one, batch)
                batch = _Batch(appender.batch(one.target, size))
                _take(site, one, batch, record)
    return made + await _send(way, one, batch)


class _NotText(PermanentError):
    """A record of one partition that this program cannot write."""


@dataclass(slots=True)
class _Batch:
    """One that is being filled, with the first and last source offset in it."""

    builder: DefaultRecordBatchBuilder
    records: int = 0
    first: int = -1
    last: int = -1


def _take(site: Site, one: Stranded, batch: _Batch, record: Any) -> bool:
    """Whether it has room; it has for a first record of any size."""
    headers = [*record.headers, *headers_of(site.flow.source_alias, one.source, one.topic_id, record.offset)]
    if batch.builder.append(batch.records, record.timestamp, record.key, record.value, headers) is None:
        return False
    batch.first, batch.last = batch.first if batch.records else record.offset, record.offset
    batch.records += 1
    return True


async def _send(way: _Way, one: Stranded, batch: _Batch) -> int:
    """How many records it has, once they are there."""
    if not batch.records:
        return 0
    await way.lease.check()
    site, offsets = way.site, (batch.first, batch.last)

    def check(code: int, _: str) -> None:
        if code in _SHUT_OUT:
            raise Superseded(refusal(site, one, offsets, "somebody else has begun to append"))
        if code:
            error = for_code(code)
            kind = RetriableError if error.retriable else PermanentError
            raise kind(f"{error.__name__}: {_remedy(one, error)}")

    try:
        await way.appender.append(one.target, Batch(bytes(batch.builder.build()), batch.records), check)
    except Superseded:
        raise
    except CommitUnknown as error:
        raise RetriableError(
            f"cluster {site.flow.target_alias}: {_of(offsets)} of {one.source} of cluster {site.flow.source_alias} may "
            f"have been appended to {one.target}: {error}; run this again: it reads what is there"
        ) from error
    except HeliographError as error:
        kind = RetriableError if isinstance(error, RetriableError) else PermanentError
        raise kind(refusal(site, one, offsets, str(error))) from error
    return batch.records


def refusal(site: Site, one: Stranded, offsets: tuple[int, int], why: str) -> str:
    """What to say of records, from one offset of the source to another, that the target does not take (pure)."""
    return (
        f"cluster {site.flow.target_alias}: {one.target} does not take {_of(offsets)} of {one.source} of cluster "
        f"{site.flow.source_alias}: {why}; then run this again: it goes on there, and nothing behind it was appended"
    )


def _of(offsets: tuple[int, int]) -> str:
    first, last = offsets
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def _remedy(one: Stranded, error: type[Exception]) -> str:
    topic = one.target.topic
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
