"""What the last verification of a flow found, in one record next to its states: workers, ``heliograph status`` and
``failover`` read it without the record of each partition."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from connect.api.policy import ReplicationPolicy
from connect.core.errors import UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_facts import VerifiedFacts
from connectors.flow_progress import PartitionLag
from connectors.formats.position import KeyKind, text
from connectors.formats.types import Wired
from connectors.internal_topics import PARTITION_STATES, RecordKind, read_records, record_settings
from connectors.verification.report import VerificationResult
from connectors.verification.state import TopicPair, Verified, recreated_topics

#: Until Spark compares.
_START_S: Final = 10.0
#: A run that compared for less time says nothing on the speed.
_LEAST_S: Final = 1.0
#: Of a record that is decompressed.
_MOST_BYTES: Final = 64 * 1024 * 1024


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
    """Compress a record: with ten thousand topics it stays below ``max.message.bytes``. All of a topic is together,
    because that compresses best."""
    topics = [(one, value.ids.get(one, ()), to) for one, to in value.verified_to.items()]
    return zlib.compress(orjson.dumps((replace(value, verified_to={}, ids={}).to_wire(), topics)))


def _unpacked(packed: bytes) -> LastVerification:
    """Read a record. Raises UnreadableRecord."""
    unpacker = zlib.decompressobj()
    try:
        value = unpacker.decompress(packed, _MOST_BYTES)
        if not unpacker.eof:
            raise UnreadableRecord(f"the record of the last verification is cut, or exceeds {_MOST_BYTES} bytes")
        last, topics = orjson.loads(value)
    except (ValueError, zlib.error) as error:
        raise UnreadableRecord(f"the record of the last verification cannot be read: {error}") from error
    verified_to, ids = {one: to for one, _, to in topics}, {one: known for one, known, _ in topics if known}
    return replace(LastVerification.from_wire(last), verified_to=verified_to, ids=ids)


#: In the partition of states, because that of :data:`connectors.verification.state.VERIFIED` may be long.
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
