"""The writing half of a slice: batches to their leaders, many requests in flight, order kept per partition.

What a lost or refused answer means is asked, never guessed: the partition stops, its leader tells the last
sequence it has of us, what is there is found in its log, the rest is sent again unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.kafka.transactions import describe_producers
from connect.wire import batch as wire
from connect.wire import hot
from connectors.dataplane import codes, reading
from connectors.dataplane.copier import Outgoing, PartitionCopier, TargetTruncated
from connectors.dataplane.plan import SliceSettings

log = logging.getLogger(__name__)

PRODUCE: Final = 0
_MAX_VERSION: Final = 13
_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 2.0
_WATCH_S: Final = 0.5
#: How long a batch that its leader has may stay below the high watermark before the question is put again.
_FIND_TIMEOUT_S: Final = 10.0

Sent = Sequence[tuple[PartitionCopier, Outgoing]]


class Fenced(PermanentError):
    """A successor holds the transactional id: this slice may write no more."""


class TargetWriter:
    """Owns the connections to the target's leaders and the recoveries of partitions.

    ``may_write`` is the lease; ``room`` is called after acknowledgements; ``fail`` ends the slice.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: SliceSettings,
        *,
        may_write: Callable[[], bool],
        room: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._may_write = may_write
        self._room = room
        self._fail = fail
        self._placed: dict[PartitionCopier, _LeaderPump] = {}
        self._pumps: dict[int, _LeaderPump] = {}
        self._recovering: dict[PartitionCopier, asyncio.Task[None]] = {}
        self._attempts: dict[PartitionCopier, int] = {}  # recoveries since the last acknowledgement
        self._watch: asyncio.Task[None] | None = None

    async def start(self, copiers: Iterable[PartitionCopier]) -> None:
        """Find the leaders; a partition whose leader is unknown recovers in the background."""
        self._watch = asyncio.create_task(self._watch_forever(), name=f"watch produce {self._settings.flow}")
        self._watch.add_done_callback(self._ended)
        for copier in copiers:
            self._recover(copier)

    async def stop(self) -> None:
        tasks = [*self._recovering.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def offer(self, copiers: Iterable[PartitionCopier]) -> None:
        """These copiers may have batches to send."""
        pumps = set()
        for copier in copiers:
            pump = self._placed.get(copier)
            if pump is None:
                continue
            if pump.closed:
                self._recover(copier)
            else:
                pump.ready[copier] = None
                pumps.add(pump)
        for pump in pumps:
            pump.pump()

    def settled(self, sent: Sent, pump: _LeaderPump, answer: hot.ProduceAnswer | None, error: str) -> None:
        """An answer to one request came, or none will."""
        rows = {(row.topic, row.partition): row for row in answer.partitions} if answer else {}
        for copier, outgoing in sent:
            row = rows.get((pump.topic_key(copier), copier.plan.target.partition))
            if row is None or row.error_code:
                self._refused(copier, row, error)
                continue
            self._attempts.pop(copier, None)
            try:
                copier.acknowledged(outgoing, row.base_offset)
            except TargetTruncated as truncated:
                self._truncated(copier, truncated)
        self._room()

    def broken(self, error: Exception) -> None:
        """An answer could not be taken, so nobody knows what became of its batches."""
        self._fail(error)

    def _refused(self, copier: PartitionCopier, row: hot.ProducedPartition | None, error: str) -> None:
        copier.failed()
        if row is None:
            log.debug("%s: %s: %s", self._settings.flow, copier.plan.target, error)
        elif row.error_code in codes.FENCED:
            self._fail(Fenced(f"target {copier.plan.target}: {codes.name(row.error_code)}: a successor took over"))
            return
        elif row.error_code not in codes.RETRIABLE:
            detail = f": {row.message}" if row.message else ""
            copier.stop(
                f"target {copier.plan.target} refuses the batch behind source offset "
                f"{copier.next_source_offset - 1}: {codes.name(row.error_code)}{detail}",
                codes.name(row.error_code),
            )
            return
        elif copier not in self._recovering:
            log.warning(
                "%s: target %s: %s; trying again", self._settings.flow, copier.plan.target, codes.name(row.error_code)
            )
        self._recover(copier)

    def _truncated(self, copier: PartitionCopier, error: TargetTruncated) -> None:
        copier.stop(
            f"target {copier.plan.target} was truncated or made anew behind offset {copier.target_end - 1}: {error}",
            "target-truncated",
        )

    # -- recovery ---------------------------------------------------------------------------------

    def _recover(self, copier: PartitionCopier) -> None:
        if copier in self._recovering:
            return
        copier.faulted = True
        pump = self._placed.pop(copier, None)
        if pump is not None:
            pump.ready.pop(copier, None)
        task = asyncio.create_task(self._recover_until_settled(copier), name=f"recover {copier.plan.target}")
        self._recovering[copier] = task
        task.add_done_callback(partial(self._recovered, copier))

    def _recovered(self, copier: PartitionCopier, task: asyncio.Task[None]) -> None:
        self._recovering.pop(copier, None)
        self._ended(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _recover_until_settled(self, copier: PartitionCopier) -> None:
        attempts = self._attempts[copier] = self._attempts.get(copier, 0) + 1
        if attempts > 1:
            # A leader that refuses again and again is not asked as fast as it can answer.
            await asyncio.sleep(_backoff_s(attempts - 1))
        delay_s = _RETRY_S
        while not copier.stopped:
            try:
                if copier.unanswered == 0:
                    await self._settle(copier)
                    return
            except TargetTruncated as error:
                self._truncated(copier, error)
            except RetriableError as error:
                log.warning("%s: target %s: %s; trying again", self._settings.flow, copier.plan.target, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _MAX_RETRY_S)

    async def _settle(self, copier: PartitionCopier) -> None:
        """One round: leader, what it has of ours, where that lies; then the partition flows again, or is stopped."""
        plan = copier.plan
        metadata = await self._cluster.metadata({plan.target.topic})
        topic = metadata.topics.get(plan.target.topic)
        known = topic.partitions.get(plan.target.partition) if topic else None
        if topic is None or known is None or known.leader < 0:
            raise RetriableError("it has no leader now")
        if plan.target_topic_id and topic.topic_id and topic.topic_id != plan.target_topic_id:
            copier.stop(
                f"target topic {plan.target.topic} was deleted and made anew (topic id {topic.topic_id}, "
                f"was {plan.target_topic_id})",
                "target-recreated",
            )
            return
        found: dict[int, int] = {}
        if copier.has_unacknowledged:
            found = await self._find_appended(copier, known.leader)
        copier.settle(found)
        pump = await self._pump(known.leader)
        self._placed[copier] = pump
        self.offer((copier,))
        self._room()

    async def _find_appended(self, copier: PartitionCopier, leader: int) -> dict[int, int]:
        target = copier.plan.target
        states = await describe_producers(self._cluster, [target])
        epoch, last = states.get(target, {}).get(copier.producer.producer_id, (-1, -1))
        if epoch > copier.producer.epoch:
            raise Fenced(f"target {target}: its leader knows epoch {epoch} of our producer id: a successor took over")
        unknown = copier.appended_unknown(last if epoch == copier.producer.epoch and last >= 0 else None)
        if not unknown:
            return {}
        return await self._scan(copier, leader, {outgoing.base_sequence for outgoing in unknown})

    async def _scan(self, copier: PartitionCopier, leader: int, missing: set[int]) -> dict[int, int]:
        """Base offsets of our batches with these base sequences, read from the target's headers."""
        plan = copier.plan
        connection = await self._cluster.connection(leader, "control")
        topic = reading.TopicOnWire(plan.target.topic, plan.target_topic_id)
        limits = reading.FetchLimits(200, 1, 4 * 1024 * 1024, 4 * 1024 * 1024, reading.READ_UNCOMMITTED)
        position = copier.target_end
        found: dict[int, int] = {}
        deadline = time.monotonic() + _FIND_TIMEOUT_S
        while missing - found.keys():
            if time.monotonic() > deadline:
                raise RetriableError("appended batches are not yet below the high watermark")
            row = await reading.fetch_one(connection, topic, plan.target.partition, (position, -1, -1), limits)
            if row.error_code:
                raise RetriableError(f"cannot read back what was appended: {codes.name(row.error_code)}")
            for start, size, magic in wire.extents(row.records):
                header = wire.read_header(row.records[start : start + size])
                if magic == 2 and (header.producer_id, header.producer_epoch) == (
                    copier.producer.producer_id,
                    copier.producer.epoch,
                ):
                    found[header.base_sequence] = header.base_offset
                position = max(position, header.last_offset + 1)
        return {sequence: found[sequence] for sequence in missing}

    async def _pump(self, node: int) -> _LeaderPump:
        connection = await self._cluster.connection(node, "copy")
        pump = self._pumps.get(node)
        if pump is None or pump.connection is not connection:
            pump = self._pumps[node] = _LeaderPump(self, connection, self._settings, node, self._may_write)
        return pump

    async def _watch_forever(self) -> None:
        """Close connections whose oldest request is overdue: all their batches recover then."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for pump in list(self._pumps.values()):
                if pump.overdue():
                    log.warning(
                        "%s: target node %d: no answer within %d ms; reconnecting",
                        self._settings.flow,
                        pump.node,
                        pump.connection.request_timeout_ms,
                    )
                    await pump.connection.close()
                pump.pump()
            # What waited in a lost connection's pump got no answer that would tell of the loss.
            self.offer([copier for copier, pump in self._placed.items() if pump.closed and copier.has_unsent])


class _LeaderPump:
    """Requests to one broker over one connection: at most one batch a partition in each, pipelined."""

    def __init__(
        self,
        writer: TargetWriter,
        connection: Connection,
        settings: SliceSettings,
        node: int,
        may_write: Callable[[], bool],
    ) -> None:
        self.node = node
        self._may_write = may_write
        self.connection = connection
        self.ready: dict[PartitionCopier, None] = {}
        self._writer = writer
        self._settings = settings
        self._version = min(_MAX_VERSION, connection.versions[PRODUCE][1])
        self._in_flight_bytes = 0
        self._sent_at: deque[float] = deque()
        self._muted_until = 0.0
        self._keys: dict[PartitionCopier, bytes] = {}

    @property
    def closed(self) -> bool:
        return self.connection.closed

    def overdue(self) -> bool:
        limit_s = self.connection.request_timeout_ms / 1000
        return bool(self._sent_at) and not self.closed and time.monotonic() - self._sent_at[0] > limit_s

    def topic_key(self, copier: PartitionCopier) -> bytes:
        key = self._keys.get(copier)
        if key is None:
            plan = copier.plan
            by_id = self._version >= hot.PRODUCE_TOPIC_IDS_FROM and plan.target_topic_id is not None
            key = (
                plan.target_topic_id.bytes if by_id and plan.target_topic_id else hot.topic_name_key(plan.target.topic)
            )
            self._keys[copier] = key
        return key

    def pump(self) -> None:
        """Send what may be sent now."""
        settings = self._settings
        while (
            self.ready
            and len(self._sent_at) < settings.in_flight_requests
            and self._in_flight_bytes < settings.in_flight_bytes
            and not self.closed
            and not self.connection.write_paused
            and time.monotonic() >= self._muted_until
            and self._may_write()
        ):
            sent = self._gather()
            if not sent:
                return
            self._send(sent)

    def _gather(self) -> list[tuple[PartitionCopier, Outgoing]]:
        sent, size = [], 0
        for copier in list(self.ready):
            outgoing = copier.next_batch()
            if outgoing is None:
                del self.ready[copier]
                continue
            sent.append((copier, outgoing))
            size += len(outgoing.batch)
            if size >= _MAX_REQUEST_BYTES:
                break
        return sent

    def _send(self, sent: Sent) -> None:
        topics: dict[bytes, list[tuple[int, memoryview]]] = {}
        size = 0
        for copier, outgoing in sent:
            topics.setdefault(self.topic_key(copier), []).append((copier.plan.target.partition, outgoing.batch))
            size += len(outgoing.batch)
        timeout_ms = self.connection.request_timeout_ms
        if self._version >= hot.PRODUCE_FLEXIBLE_FROM:
            body = hot.encode_produce(timeout_ms, list(topics.items()))
        else:
            body = [_encode_old(sent, timeout_ms, self._version)]
        self._sent_at.append(time.monotonic())
        self._in_flight_bytes += size
        future = self.connection.send(PRODUCE, self._version, body)
        future.add_done_callback(partial(self._answered, sent, size))

    def _answered(self, sent: Sent, size: int, future: asyncio.Future[memoryview]) -> None:
        try:
            self._take_answer(sent, size, future)
        except Exception as error:
            self._writer.broken(error)

    def _take_answer(self, sent: Sent, size: int, future: asyncio.Future[memoryview]) -> None:
        self._sent_at.popleft()
        self._in_flight_bytes -= size
        answer, error = None, ""
        if future.cancelled():
            error = "the request was cancelled"
        elif (lost := future.exception()) is not None:
            error = str(lost)
        elif self._version >= hot.PRODUCE_FLEXIBLE_FROM:
            answer = hot.decode_produce(future.result(), self._version)
        else:
            answer = _decode_old(future.result(), self._version)
        if answer is not None and answer.throttle_time_ms:
            self._muted_until = time.monotonic() + answer.throttle_time_ms / 1000
        self._writer.settled(sent, self, answer, error)
        self._writer.offer(copier for copier, _ in sent if copier.has_unsent)
        self.pump()


def _backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row: 0.1 s, then twice as long each time, 2 s at most."""
    return min(_RETRY_S * 2.0 ** min(failures - 1, 10), _MAX_RETRY_S)


def _encode_old(sent: Sent, timeout_ms: int, version: int) -> bytes:
    topics: dict[str, ProduceRequest.TopicProduceData] = {}
    for copier, outgoing in sent:
        target = copier.plan.target
        entry = topics.setdefault(target.topic, ProduceRequest.TopicProduceData(name=target.topic, partition_data=[]))
        entry.partition_data.append(
            ProduceRequest.TopicProduceData.PartitionProduceData(index=target.partition, records=bytes(outgoing.batch))
        )
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=list(topics.values()))
    return bytes(request.encode(version=version))


def _decode_old(body: memoryview, version: int) -> hot.ProduceAnswer:
    answer = ProduceResponse.decode(bytes(body), version=version)
    rows = [
        hot.ProducedPartition(
            hot.topic_name_key(topic.name),
            row.index,
            row.error_code,
            row.base_offset,
            row.log_append_time_ms,
            row.log_start_offset,
            getattr(row, "error_message", None),
            None,
        )
        for topic in answer.responses
        for row in topic.partition_responses
    ]
    return hot.ProduceAnswer(answer.throttle_time_ms, rows)
