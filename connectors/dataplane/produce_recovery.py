"""Recover from a failed or unanswered produce: ask the leader what it has, find that in its log, resend the rest.

A partition in recovery sends nothing. Once all its requests have ended, its leader reports the last sequence that it
has of us. Those batches are found in its log, the others are sent again unchanged, and permanently refused ones are
replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.log.active_producers import ProducersRefused, describe_producers
from connect.kafka.log.offsets import EARLIEST, list_offset
from connect.kafka.log.topic_admin import max_message_bytes
from connect.wire import batch as wire
from connectors.dataplane import fetch_api, log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.error_codes import unread
from connectors.dataplane.batches.send_queue import AnotherWrites, TargetTruncated
from connectors.dataplane.batches.sequencer import CopiesUnderWay

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 2.0
#: Longest delay if the leader lacks replicas, because each try sends a batch.
_MAX_PROBE_S: Final = 10.0
#: How long a target's log is scanned before the leader is looked up again.
_SCAN_S: Final = 10.0
_SCAN_BYTES: Final = 4 * 1024 * 1024


class Fenced(PermanentError):
    """A successor holds the transactional id: this slice may write no more."""


@dataclass(slots=True)
class _Scan:
    """How far a target's log was searched: the leader and its epoch, the next position, what was found."""

    leader: tuple[int, int]
    position: int
    found: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Recoveries:
    """The running recoveries. ``place`` lets a settled partition write to its leader; ``fail`` ends the slice. ``room``
    is called when one ends, because a partition that stopped in it holds no more memory."""

    cluster: Cluster
    flow: str
    place: Callable[[PartitionCopier, int], Awaitable[None]]
    room: Callable[[], None]
    fail: Callable[[BaseException], None]
    #: Since the last acknowledgement.
    attempts: dict[PartitionCopier, int] = field(default_factory=dict)
    _recovering: dict[PartitionCopier, asyncio.Task[None]] = field(default_factory=dict)
    _lost: dict[PartitionCopier, TargetTruncated] = field(default_factory=dict)
    _scans: dict[PartitionCopier, _Scan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scope = Scope(f"recoveries of {self.flow}")

    def __contains__(self, copier: PartitionCopier) -> bool:
        return copier in self._recovering

    def begin(self, copier: PartitionCopier, truncated: TargetTruncated | None = None) -> None:
        """Recover a partition that is no longer placed; ``truncated`` if its target has lost records."""
        if truncated is not None:
            self._lost[copier] = truncated
        if copier in self._recovering or self._scope.is_closed:
            return
        copier.faulted = True
        task = self._scope.spawn(self._recover_until_settled(copier), f"recover {copier.plan.target}")
        self._recovering[copier] = task
        task.add_done_callback(partial(self._recovered, copier))

    async def stop(self) -> None:
        await self._scope.close()

    def _recovered(self, copier: PartitionCopier, task: asyncio.Task[None]) -> None:
        self._recovering.pop(copier, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self.fail(error)
        elif copier.faulted and not copier.stopped:
            # Because another batch was refused before this task had ended.
            self.begin(copier)
        self.room()

    async def _recover_until_settled(self, copier: PartitionCopier) -> None:
        attempts = self.attempts[copier] = self.attempts.get(copier, 0) + 1
        if attempts > 1:
            # A leader that keeps refusing is not asked as fast as it answers.
            await asyncio.sleep(_backoff_s(attempts - 1, _most_s(copier)))
        delay_s = _RETRY_S
        while not copier.stopped:
            try:
                if (truncated := self._lost.get(copier)) is not None:
                    copier.stop(*await log_divergence.explain_target(self.cluster, copier, truncated))
                    return
                if copier.unanswered == 0:
                    await self._settle(copier)
                    return
            except CopiesUnderWay:
                raise
            except TargetTruncated as error:
                self._lost[copier] = error
                continue
            except ProducersRefused as error:
                # The fate of batches without an answer stays unknown: the position asks for a proof.
                copier.quarantine(
                    f"target {copier.plan.target}: {error}, then start the flow again", "target-unreadable"
                )
                return
            except RetriableError as error:
                log.warning("%s: target %s: %s; retrying", self.flow, copier.plan.target, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _most_s(copier))

    async def _settle(self, copier: PartitionCopier) -> None:
        """Run one round: find the leader and what it has of ours; then place the partition again, or stop it."""
        plan, name = copier.plan, copier.plan.target.topic
        topic = (await log_divergence.known_topics(self.cluster, {name}, log_divergence.DELETED_AFTER_S)).get(name)
        expected = (name, plan.target_topic_id)
        if verdict := log_divergence.of_topic("target", topic, expected, plan.source, copier.next_source_offset):
            copier.stop(*verdict)
            return
        assert topic is not None, "a topic that is missing has a verdict"
        known = topic.partitions.get(plan.target.partition)
        if known is None or known.leader < 0:
            raise RetriableError("it has no leader now")
        found: dict[int, int] = {}
        if copier.has_unacknowledged:
            found = await self._find_appended(copier, (known.leader, known.leader_epoch))
        # Which may have been lowered; without the right to read it, batches are halved to fit.
        if copier.is_refused_for_size and (most := await max_message_bytes(self.cluster, name)) is not None:
            copier.max_message_bytes = most
        copier.settle(found)
        self._split_or_skip(copier)
        if not copier.stopped:
            await self.place(copier, known.leader)

    def _split_or_skip(self, copier: PartitionCopier) -> None:
        """Replace permanently refused batches. A batch that cannot be decoded stops its partition."""
        if not copier.has_refused:
            return
        # No backoff, because each refusal leaves less to refuse.
        self.attempts.pop(copier, None)
        try:
            copier.split_or_skip()
        except (CopiesUnderWay, MemoryError):
            raise
        except Exception as error:
            where = f"a refused batch after source offset {copier.next_source_offset - 1} of {copier.plan.source}"
            log.error("%s: %s cannot be decoded", self.flow, where, exc_info=error)
            copier.quarantine(f"{where} cannot be decoded: {type(error).__name__}: {error}", "source-unreadable")

    async def _find_appended(self, copier: PartitionCopier, leader: tuple[int, int]) -> dict[int, int]:
        target = copier.plan.target
        states = await describe_producers(self.cluster, [target])
        epoch, last = states.get(target, {}).get(copier.producer.producer_id, (-1, -1))
        if epoch > copier.producer.epoch:
            raise Fenced(f"target {target}: its leader knows epoch {epoch} of our producer id: a successor took over")
        unknown = copier.appended_unknown(last if epoch == copier.producer.epoch and last >= 0 else None)
        if not unknown:
            return {}
        return await self._scan(copier, leader, {one.base_sequence: one.last_sequence for one in unknown})

    async def _scan(self, copier: PartitionCopier, leader: tuple[int, int], missing: dict[int, int]) -> dict[int, int]:
        """Return the base offsets of our batches with these base (and last) sequences, from the target's headers. A
        retry continues where the last one ended, because others may write more than one try can read."""
        plan = copier.plan
        scan = self._scans.get(copier)
        if scan is None or scan.leader != leader:
            scan = self._scans[copier] = _Scan(leader, copier.target_end)
        connection = await self.cluster.connection(leader[0], "recover")
        topic = fetch_api.TopicOnWire(plan.target.topic, plan.target_topic_id)
        limits = fetch_api.FetchLimits(0, 1, _SCAN_BYTES, _SCAN_BYTES, fetch_api.READ_UNCOMMITTED)
        ours, found = (copier.producer.producer_id, copier.producer.epoch), scan.found
        deadline = time.monotonic() + _SCAN_S
        while missing.keys() - found.keys():
            before = scan.position
            row = await fetch_api.fetch_one(
                connection, topic, plan.target.partition, (scan.position, leader[1], -1), limits
            )
            if row.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                # The log starts later, so none of ours is before; or it ends before, and the next round asks again.
                del self._scans[copier]
                start = await list_offset(self.cluster, plan.target, EARLIEST)
                if start <= scan.position:
                    raise RetriableError(f"its log {unread(plan.target.topic, row.error_code)}")
                self._scans[copier] = scan
                scan.position = start
                continue
            if row.error_code:
                raise RetriableError(f"its log {unread(plan.target.topic, row.error_code)}")
            for start, size, magic in wire.extents(row.records):
                header = wire.read_header(row.records[start : start + size])
                if magic == 2 and (header.producer_id, header.producer_epoch) == ours:
                    if missing.get(header.base_sequence, header.last_sequence) != header.last_sequence:
                        raise AnotherWrites(f"{plan.target} has a batch of our producer id that we did not send")
                    found[header.base_sequence] = header.base_offset
                scan.position = max(scan.position, header.last_offset + 1)
            if missing.keys() - found.keys() and (scan.position == before or time.monotonic() > deadline):
                raise RetriableError("appended batches are not yet below the high watermark")
        del self._scans[copier]
        return {sequence: found[sequence] for sequence in missing}


def _most_s(copier: PartitionCopier) -> float:
    return _MAX_PROBE_S if copier.lacks_replicas else _MAX_RETRY_S


def _backoff_s(failures: int, most_s: float) -> float:
    """Return the delay after ``failures`` in a row: 0.1 s, doubled each time, ``most_s`` at most."""
    return min(_RETRY_S * 2.0 ** min(failures - 1, 10), most_s)
