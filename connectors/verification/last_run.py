"""What the last verification of a flow found, in one record next to its states: workers, ``heliograph status`` and
``failover`` read it without the record of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from connect.api.policy import ReplicationPolicy
from connect.kafka.cluster import Cluster
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_facts import VerifiedFacts
from connectors.flow_progress import PartitionLag
from connectors.formats.position import KeyKind, text
from connectors.formats.types import Wired
from connectors.internal_topics import PARTITION_STATES, RecordKind, read_records, record_settings
from connectors.verification.report import PartitionResult, VerificationResult

#: Until Spark compares.
_START_S: Final = 10.0
#: A run that compared for less time says nothing on the speed.
_LEAST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LastVerification(Wired):
    """The last run that reached its end, or has found a difference.

    Args:
        ended_ms: When the last one over all topics ended, in milliseconds since 1970; -1 if none did.
        records: Source records compared since the last full run; ``differences``: found in them.
        unread: How many partitions it could not compare.
        offsets_s: Source offsets compared in a second, as last measured; 0 if unknown.
        verified_to: By topic and partition, below which source offset it is verified; -1 if it is not.
    """

    ended_ms: int = -1
    records: int = 0
    differences: int = 0
    unread: int = 0
    offsets_s: float = 0.0
    verified_to: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def facts(self, lags: Iterable[PartitionLag] | None, policy: ReplicationPolicy) -> VerifiedFacts:
        """Return what is known with the positions of ``lags``, None if they are unknown."""
        found = VerifiedFacts(self.ended_ms, self.records, self.differences, self.unread)
        if lags is None:
            return found
        new = [self.new(one) for one in lags if not policy.is_heartbeats_topic(one.topic)]
        offsets, partitions = sum(one or 0 for one in new), sum(one is None for one in new)
        is_known = self.offsets_s > 0 and not partitions
        rest_s = _START_S + offsets / self.offsets_s if is_known else -1.0
        return VerifiedFacts(
            self.ended_ms, self.records, self.differences, self.unread, offsets, partitions, round(rest_s, 1)
        )

    def new(self, one: PartitionLag) -> int | None:
        """Return how many offsets of a partition were copied since; None if it has copies and none was compared."""
        of_topic = self.verified_to.get(one.topic, ())
        to = of_topic[one.partition] if one.partition < len(of_topic) else -1
        if to >= 0:
            return max(one.position - to, 0)
        return None if one.position > 0 else 0


def after_run(
    before: LastVerification,
    result: VerificationResult,
    offsets: int,
    left_out: Sequence[PartitionResult] | None = None,
) -> LastVerification:
    """Return the record after a run that compared ``offsets`` source offsets. ``left_out``: of a run that is not one of
    the whole flow, what is known of topics that it left out; partitions that were unread stay so."""
    known = (*result.partitions, *(left_out or ()))
    verified_to: dict[str, list[int]] = {}
    for one in sorted(known, key=lambda one: (one.topic, one.partition)):
        of_topic = verified_to.setdefault(one.topic, [])
        of_topic.extend([-1] * (one.partition - len(of_topic)))
        of_topic.append(one.verified_to)
    measures = result.read_s >= _LEAST_S or not before.offsets_s
    return LastVerification(
        ended_ms=result.ended_ms if left_out is None else before.ended_ms,
        records=sum(one.records for one in known),
        differences=sum(one.differences_total for one in known),
        unread=max(len(result.unread), 0 if left_out is None else before.unread),
        offsets_s=offsets / result.read_s if measures and offsets and result.read_s > 0 else before.offsets_s,
        verified_to=verified_to,
    )


#: In the partition of states, because that of :data:`connectors.verification.state.VERIFIED` may be long.
LAST_RUN: Final[RecordKind[str, LastVerification]] = RecordKind(
    KeyKind.LAST_VERIFICATION,
    PARTITION_STATES.partition_key,
    lambda connector, _: text(connector),
    lambda reader: (reader.text(), ""),
    lambda value: orjson.dumps(value.to_wire()),
    lambda reader: LastVerification.from_wire(orjson.loads(reader.rest())),
)


async def read_last_run(store: Cluster, settings: MirrorSourceSettings) -> LastVerification | None:
    """Return the record of a flow; None if no run has ended. Errors are those of :func:`read_records`."""
    return (await read_records(store, record_settings(settings), LAST_RUN)).get("")


async def read_verified(
    store: Cluster, settings: MirrorSourceSettings, lags: Iterable[PartitionLag] | None
) -> VerifiedFacts | None:
    """Return what is known of the last run; None if none has ended. Errors are those of :func:`read_records`."""
    last = await read_last_run(store, settings)
    return None if last is None else last.facts(lags, settings.policy)
