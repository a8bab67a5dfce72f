"""What a verification has reached and what its last run found, stored next to the positions of the flow.

A killed run continues there, and the next one reads only what is new. The record of a partition is JSON behind a
version, by source partition, in the topic of the offset map. Another one is of the last run: workers, ``heliograph
status`` and ``failover`` read it without those of all partitions.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, Final, NamedTuple

import orjson

from connect.api.policy import ReplicationPolicy
from connect.core.errors import HeliographError, UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.connector_base import rows_asked
from connectors.flow_facts import VerifiedFacts
from connectors.flow_progress import PartitionLag
from connectors.formats.position import KeyKind, text
from connectors.formats.types import TopicPartition, Wired
from connectors.internal_topics import PARTITION_STATES, RecordKind, decompressed, read_records, record_settings
from connectors.verification.ranges import RangeResult
from connectors.verification.report import (
    NAMED_DIFFERENCES,
    ExplainedRange,
    PartitionResult,
    RangeReason,
    VerificationResult,
)

#: Explained ranges of a partition that are kept; the last one then stands for all behind it.
_KEPT_RANGES: Final = 200
#: Differences, undecided records and explained ranges of a partition in a report with ``top``.
_NAMED_OF_EACH: Final = 5
#: Until Spark compares.
_START_S: Final = 10.0
#: A run that compared for less time says nothing on the speed.
_LEAST_S: Final = 1.0


class TopicPair(NamedTuple):
    """A source topic and its copy with their ids; an id is empty if the brokers have none."""

    source: str
    source_id: str
    target: str
    target_id: str


async def recreated_topics(
    pairs: Collection[TopicPair], source: Cluster | None, target: Cluster | None
) -> tuple[str, ...] | None:
    """Return the source topics of :func:`recreated_pairs`."""
    found = await recreated_pairs(pairs, source, target)
    return None if found is None else tuple(sorted({one.source for one in found}))


async def recreated_pairs(
    pairs: Collection[TopicPair], source: Cluster | None, target: Cluster | None
) -> frozenset[TopicPair] | None:
    """Return the pairs of which either topic has another id now. A topic that is not there says nothing. None: none is
    known, and a cluster is None or does not answer."""
    here, there = await asyncio.gather(
        _ids_now(source, {one.source for one in pairs}), _ids_now(target, {one.target for one in pairs})
    )
    found = frozenset(
        one
        for one in pairs
        if _is_another(here, one.source, one.source_id) or _is_another(there, one.target, one.target_id)
    )
    return None if not found and (here is None or there is None) else found


async def _ids_now(cluster: Cluster | None, topics: Collection[str]) -> dict[str, str] | None:
    if cluster is None or not topics:
        return {} if cluster is not None else None
    try:
        known = (await cluster.metadata(topics)).topics
    except HeliographError:  # callers say it of what they need from there
        return None
    return {one.name: str(one.topic_id) for one in known.values() if one.topic_id is not None and not one.error_code}


def _is_another(ids: Mapping[str, str] | None, topic: str, before: str) -> bool:
    now = ids.get(topic, "") if ids is not None else ""
    return bool(now and before) and now != before


@dataclass(frozen=True, slots=True)
class Verified(Wired):
    """How far a partition is verified: ``result`` so far, and where the next range begins in the target. ``ids``: of
    source and target topic; another id means another log."""

    result: PartitionResult
    target_to: int
    source_id: str
    target_id: str

    @property
    def pair(self) -> TopicPair:
        return TopicPair(self.result.topic, self.source_id, self.result.target_topic, self.target_id)

    def is_of(self, source_id: str, target_id: str) -> bool:
        return (self.source_id, self.target_id) == (source_id, target_id)

    def with_range(self, found: RangeResult, now_ms: int) -> Verified:
        """Add the next range of the partition."""
        before = self.result
        # What was not copied yet is in a range by now.
        explained = (one for one in before.explained if one.reason is not RangeReason.NOT_COPIED)
        result = replace(
            before,
            records=before.records + found.records,
            bytes=before.bytes + found.bytes,
            same_bytes=before.same_bytes + found.same_bytes,
            verified_to=found.verified_to,
            verified_ms=now_ms,
            differences=(*before.differences, *found.differences)[:NAMED_DIFFERENCES],
            differences_total=before.differences_total + found.differences_total,
            explained=joined((*explained, *found.explained)),
            undecided=(*before.undecided, *found.undecided)[:NAMED_DIFFERENCES],
            undecided_total=before.undecided_total + found.undecided_total,
        )
        return Verified(result, found.target_to, self.source_id, self.target_id)


def joined(ranges: tuple[ExplainedRange, ...]) -> tuple[ExplainedRange, ...]:
    """Join ranges of one side and reason that follow each other, and those behind :data:`_KEPT_RANGES`."""
    found: dict[tuple[str, str], list[ExplainedRange]] = {}
    for one in ranges:
        some = found.setdefault((one.side, one.reason), [])
        if some and (some[-1].last + 1 >= one.first or len(some) >= _KEPT_RANGES):
            last = some[-1]
            records = -1 if min(last.records, one.records) < 0 else last.records + one.records
            some[-1] = replace(last, last=max(last.last, one.last), records=records)
        else:
            some.append(one)
    return tuple(sorted((one for some in found.values() for one in some), key=lambda one: (one.first, one.side)))


VERIFIED: Final[RecordKind[TopicPartition, Verified]] = RecordKind(
    KeyKind.VERIFIED,
    b"verified",
    PARTITION_STATES.pack_key,
    PARTITION_STATES.take_key,
    lambda value: orjson.dumps(value.to_wire()),
    lambda reader: Verified.from_wire(orjson.loads(reader.rest())),
)


async def verification_report(
    settings: MirrorSourceSettings, source: Cluster | None, store: Cluster, query: Mapping[str, str]
) -> dict[str, Any]:
    """Return what ``heliograph verify`` has found so far, as :func:`verification_as_json`, and the topics that were
    ``recreated`` since; ``source`` is None if it does not answer. Errors are those of :func:`read_records`, and
    ConfigError for a ``top`` that is not a number."""
    stored = await read_records(store, record_settings(settings), VERIFIED)
    recreated = await recreated_topics({one.pair for one in stored.values()}, source, store)
    # In a thread, because thousands of partitions take longer than one turn of the event loop may.
    found = await asyncio.to_thread(verification_as_json, [stored[one].result for one in sorted(stored)], query)
    return {"connector": settings.name, "flow": settings.flow, "recreated": recreated, **found}


def verification_as_json(results: Sequence[PartitionResult], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the results as JSON; ``verified_ms``: of the partition whose last range was compared the longest ago, -1
    if none was. With ``top``, only that number of partitions whose source or target name contains ``search``, each with
    its first differences, undecided records and explained ranges: most differences first, then most undecided ones,
    then those compared the longest ago."""
    shown = _found(results, query) if "top" in query else results
    return {
        "verified_ms": min((one.verified_ms for one in results if one.verified_ms), default=-1),
        "newest_ms": max((one.verified_ms for one in results), default=-1),
        "records": sum(one.records for one in results),
        "differences": sum(one.differences_total for one in results),
        "undecided": sum(one.undecided_total for one in results),
        "all": len(results),
        "partitions": [one.to_wire() for one in shown],
    }


def _found(results: Sequence[PartitionResult], query: Mapping[str, str]) -> list[PartitionResult]:
    search = query.get("search", "").strip().lower()
    names = ((one, f"{one.topic}-{one.partition} {one.target_topic}-{one.target_partition}") for one in results)
    matching = [one for one, name in names if search in name.lower()]
    first = nsmallest(
        rows_asked(query["top"]),
        matching,
        key=lambda one: (-one.differences_total, -one.undecided_total, one.verified_ms),
    )
    return [
        replace(
            one,
            differences=one.differences[:_NAMED_OF_EACH],
            undecided=one.undecided[:_NAMED_OF_EACH],
            explained=one.explained[:_NAMED_OF_EACH],
        )
        for one in first
    ]


@dataclass(frozen=True, slots=True)
class LastVerification(Wired):
    """The last run that reached its end, or has found a difference.

    Args:
        ended_ms: When the last one over all topics ended, in milliseconds since 1970; -1 if none did.
        records: Source records compared since the last full run; ``differences``: found in them.
        unread: How many partitions it could not compare.
        offsets_s: Source offsets compared in a second, as last measured; 0 if unknown.
        verified_to: By topic and partition, below which source offset it is verified; -1 if it is not.
        ids: By source topic its id, its target topic, and the id of that, as in :class:`TopicPair`.
        recreated: The source topics of which either log has another id now, None if that is unknown. It is found
            at each read.
        undecided: How many records look like differences and no log decides any more.
    """

    ended_ms: int = -1
    records: int = 0
    differences: int = 0
    unread: int = 0
    offsets_s: float = 0.0
    verified_to: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    recreated: tuple[str, ...] | None = ()
    undecided: int = 0

    async def facts(self, lags: Iterable[PartitionLag] | None, policy: ReplicationPolicy) -> VerifiedFacts:
        """Return what is known with the positions of ``lags``, None if they are unknown."""
        known = VerifiedFacts(
            self.ended_ms,
            self.records,
            self.differences,
            self.unread,
            recreated=self.recreated,
            undecided=self.undecided,
        )
        if lags is None:
            return known
        offsets, partitions, recreated = 0, 0, frozenset(self.recreated or ())
        async for one in in_turns(lags):
            if not policy.is_heartbeats_topic(one.topic):
                new = None if one.topic in recreated and one.position > 0 else self._new(one)
                offsets, partitions = offsets + (new or 0), partitions + (new is None)
        is_known = self.offsets_s > 0 and not partitions
        rest_s = round(_START_S + offsets / self.offsets_s, 1) if is_known else -1.0
        return replace(known, new_offsets=offsets, new_partitions=partitions, rest_s=rest_s)

    def _new(self, one: PartitionLag) -> int | None:
        """Return how many offsets of a partition were copied since; None if it has copies and none was compared."""
        of_topic = self.verified_to.get(one.topic, ())
        to = of_topic[one.partition] if one.partition < len(of_topic) else -1
        if to >= 0:
            return max(one.position - to, 0)
        return None if one.position > 0 else 0


def after_run(
    before: LastVerification, result: VerificationResult, offsets: int, known: Sequence[Verified], *, is_whole: bool
) -> LastVerification:
    """Return the record after a run that compared ``offsets`` source offsets. ``known``: all partitions, those of
    topics that the run left out too. Unless it was one of the whole flow, partitions that were unread stay so."""
    results = [one.result for one in known]
    verified_to: dict[str, list[int]] = {}
    for one in sorted(results, key=lambda one: (one.topic, one.partition)):
        of_topic = verified_to.setdefault(one.topic, [])
        of_topic.extend([-1] * (one.partition - len(of_topic)))
        of_topic.append(one.verified_to)
    measures = result.read_s >= _LEAST_S or not before.offsets_s
    return LastVerification(
        ended_ms=result.ended_ms if is_whole else before.ended_ms,
        records=sum(one.records for one in results),
        differences=sum(one.differences_total for one in results),
        undecided=sum(one.undecided_total for one in results),
        unread=max(len(result.unread), 0 if is_whole else before.unread),
        offsets_s=offsets / result.read_s if measures and offsets and result.read_s > 0 else before.offsets_s,
        verified_to=verified_to,
        ids={one.result.topic: list(one.pair[1:]) for one in known},
    )


def _packed(value: LastVerification) -> bytes:
    """Compress a record, to stay below ``max.message.bytes``; sorted by topic, which compresses best."""
    topics = [(one, value.ids.get(one, ()), to) for one, to in value.verified_to.items()]
    return zlib.compress(orjson.dumps((replace(value, verified_to={}, ids={}).to_wire(), topics)))


def _unpacked(packed: bytes) -> LastVerification:
    """Read a record. Raises UnreadableRecord."""
    try:
        last, topics = orjson.loads(decompressed(packed, "the record of the last verification is cut, or"))
    except (ValueError, zlib.error) as error:
        raise UnreadableRecord(f"the record of the last verification cannot be read: {error}") from error
    verified_to, ids = {one: to for one, _, to in topics}, {one: known for one, known, _ in topics if known}
    return replace(LastVerification.from_wire(last), verified_to=verified_to, ids=ids)


#: In the partition of states, because that of :data:`VERIFIED` may be long.
LAST_RUN: Final[RecordKind[str, LastVerification]] = RecordKind(
    KeyKind.LAST_VERIFICATION,
    PARTITION_STATES.partition_key,
    lambda connector, _: text(connector),
    lambda reader: (reader.text(), ""),
    _packed,
    lambda reader: _unpacked(reader.rest()),
)


async def read_last_run(
    source: Cluster | None, store: Cluster, settings: MirrorSourceSettings
) -> LastVerification | None:
    """Return the record of a flow; None if no run has ended. ``source`` is None if it does not answer. Errors are those
    of :func:`read_records`."""
    last = (await read_records(store, record_settings(settings), LAST_RUN)).get("")
    if last is None:
        return None
    pairs = [TopicPair(topic, *ids) for topic, ids in last.ids.items()]
    return replace(last, recreated=await recreated_topics(pairs, source, store))


async def read_verified(
    source: Cluster | None, store: Cluster, settings: MirrorSourceSettings, lags: Iterable[PartitionLag] | None
) -> VerifiedFacts | None:
    """Return what is known of the last run, as :func:`read_last_run`."""
    last = await read_last_run(source, store, settings)
    return None if last is None else await last.facts(lags, settings.policy)
