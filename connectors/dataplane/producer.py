"""Send batches to their target leaders for a slice, with many requests in flight and each partition's order kept.

Failed and unanswered requests are handled by :mod:`connectors.dataplane.produce_recovery`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.connection import Connection, RequestTimedOut
from connect.kafka.error_causes import because
from connect.wire import fetch_produce
from connectors.control_link.protocol import PartitionPlan, SliceSettings, TransactionTerms
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.dataplane.batches.send_queue import TargetTruncated
from connectors.dataplane.batches.transaction import TransactionLost
from connectors.dataplane.leader_connections import Leaders, Pace, Turns
from connectors.dataplane.produce_recovery import Fenced, Recoveries
from connectors.formats.types import TopicPartition

log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES: Final = 1024 * 1024
#: Bytes in flight on a connection before its rate is known.
_FIRST_IN_FLIGHT_BYTES: Final = 256 * 1024
_WATCH_S: Final = 0.5
#: How long compressing for requests may block the event loop.
_TURN_S: Final = 0.01
#: Less than the time brokers remember silent producers (``producer.id.expiration.ms``, a day by default).
_IDLE_S: Final = 60.0
#: How often a batch is sent that its leader refuses without a reason, over about three seconds.
_UNEXPLAINED_TRIES: Final = 6

_PRODUCE: Final = 0
_MAX_VERSION: Final = 13
#: From version 12 on a broker adds partitions to a transaction by itself (KIP-890).
_EXPLICIT_AT_MOST: Final = 11

Sent = Sequence[tuple[PartitionCopier, Outgoing]]
#: One batch: (the target's partition, its bytes).
Addressed = tuple[int, memoryview]


@dataclass(eq=False, repr=False)
class TargetWriter:
    """The owner of the connections to the target's leaders; it hands partitions to recovery. ``may_write`` checks the
    lease; ``room`` is called after acknowledgements; ``fail`` ends the slice. With ``transactions``, batches belong to
    the open transaction."""

    cluster: Cluster
    settings: SliceSettings
    _: KW_ONLY
    may_write: Callable[[], bool]
    room: Callable[[], None]
    fail: Callable[[BaseException], None]
    transactions: TransactionTerms | None = None
    _placed: dict[PartitionCopier, _LeaderPump] = field(default_factory=dict)
    _pumps: dict[tuple[int, bool], _LeaderPump] = field(default_factory=dict)
    _watch: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        flow = self.settings.flow
        self._recoveries = Recoveries(self.cluster, flow, place=self._place, room=self.room, fail=self.fail)
        self._scope = Scope(f"target of {flow}")

    def start(self, copiers: Iterable[PartitionCopier], leaders: Leaders) -> None:
        """Write to leaders that are known and connected; find the others first."""
        if self._watch is None:
            self._watch = self._scope.spawn(self._watch_forever(), f"watch {self.settings.flow}", self.fail)
        for copier in copiers:
            leader = leaders.of(copier.plan.target, copier.plan.target_topic_id)
            connection = self.cluster.opened(leader.node, "copy") if leader is not None else None
            if leader is None or connection is None:
                self._recover(copier)
            else:
                self._placed[copier] = self._pump_of(leader.node, connection)

    @property
    def expected_s(self) -> float:
        """Seconds until everything in flight should be answered, at recent rates."""
        return max((pump.expected_s for pump in self._pumps.values() if not pump.closed), default=0.0)

    @property
    def answer_s(self) -> float:
        """The time in which the fastest leader answers at present; 0 if none has."""
        return min((pump.answer_s for pump in self._pumps.values() if pump.answer_s and not pump.closed), default=0.0)

    async def stop(self) -> None:
        await self._recoveries.stop()
        await self._scope.close()

    def offer(self, copiers: Iterable[PartitionCopier]) -> None:
        """Send from these copiers, which may have batches."""
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

    def settled(self, sent: Sent, pump: _LeaderPump, answer: fetch_produce.ProduceAnswer | None, error: str) -> None:
        """Take the answer to one request; None if none will come."""
        rows = {(row.topic, row.partition): row for row in answer.partitions} if answer else {}
        for copier, outgoing in sent:
            row = rows.get((pump.topic_key(copier), copier.plan.target.partition))
            if row is None or row.error_code:
                self._refused(copier, outgoing, row, error)
                continue
            self._recoveries.attempts.pop(copier, None)
            try:
                copier.acknowledged(outgoing, row.base_offset)
            except TargetTruncated as truncated:
                self._recover(copier, truncated)
                continue
            if pump.is_probing:
                self._recover(copier)  # because its leader has replicas again, and the shared connection takes it
        self.room()

    def _refused(
        self, copier: PartitionCopier, outgoing: Outgoing, row: fetch_produce.ProducedPartition | None, error: str
    ) -> None:
        target = copier.plan.target
        if row is None:
            copier.failed(outgoing, None)
            log.debug("%s: target %s: no answer to a batch: %s", self.settings.flow, target, error)
        elif row.error_code in error_codes.OF_RECORDS:
            at_fault = tuple(index for index, _ in row.record_errors)
            copier.refused(outgoing, Refusal(row.error_code, at_fault, row.text))
        else:
            copier.failed(outgoing, row.error_code)
            if row.error_code in error_codes.FENCED:
                self.fail(Fenced(f"target {target}: {error_codes.code_name(row.error_code)}: a successor took over"))
                return
            if self.transactions and row.error_code in error_codes.TRANSACTION_OVER:
                self.fail(TransactionLost(f"target {target}: {error_codes.code_name(row.error_code)}"))
                return
            if not _is_tried_again(outgoing, row.error_code):
                copier.quarantine(
                    error_codes.explained(row.error_code, target, outgoing.what, row.text),
                    error_codes.code_name(row.error_code),
                )
                return
            if copier not in self._recoveries:
                name = error_codes.code_name(row.error_code)
                cause = because(f"{self.settings.target_alias}: {name}")
                log.warning("%s: target %s: %s; retrying", self.settings.flow, target, name, extra=cause)
        self._recover(copier)

    def _recover(self, copier: PartitionCopier, truncated: TargetTruncated | None = None) -> None:
        if copier not in self._recoveries and (pump := self._placed.pop(copier, None)):
            pump.ready.pop(copier, None)
        self._recoveries.begin(copier, truncated)

    async def _place(self, copier: PartitionCopier, leader: int) -> None:
        """Let a settled partition send again."""
        self._placed[copier] = await self._pump(leader, is_probing=copier.lacks_replicas)
        self.offer((copier,))
        self.room()

    async def _pump(self, node: int, *, is_probing: bool) -> _LeaderPump:
        """Connect to a leader; ``is_probing``: separately, for partitions whose leader lacks replicas, because a broker
        answers a connection's requests in order, each when all its partitions are replicated or have timed out."""
        connection = await self.cluster.connection(node, "probe" if is_probing else "copy")
        return self._pump_of(node, connection, is_probing=is_probing)

    def _pump_of(self, node: int, connection: Connection, *, is_probing: bool = False) -> _LeaderPump:
        key = node, is_probing
        pump = self._pumps.get(key)
        if pump is None or pump.connection is not connection:
            if pump is not None:
                self._leave(pump)
            pump = self._pumps[key] = _LeaderPump(self, connection, node, is_probing=is_probing)
        return pump

    def _leave(self, lost: _LeaderPump) -> None:
        """Recover the copiers that only waited for a lost connection: they get no answer that reports the loss."""
        self.offer([*lost.ready])

    async def _watch_forever(self) -> None:
        """Close connections whose oldest request is overdue, so that all their batches recover."""
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_S)
            if time.monotonic() - looked_s > _IDLE_S:
                looked_s = time.monotonic()
                for copier in self._placed:
                    copier.reset_pipelining_if_idle()
            for pump in list(self._pumps.values()):
                if pump.overdue():
                    ms, address = pump.connection.request_timeout_ms, pump.connection.address
                    error = RequestTimedOut(f"no answer within {ms} ms", (address,))
                    log.warning("%s: target node %d: %s; reconnecting", self.settings.flow, pump.node, error)
                    await pump.connection.close()
                pump.pump()
                if pump.closed:
                    self._leave(pump)


@dataclass(eq=False, repr=False)
class _LeaderPump:
    """Pipelined requests to one broker over one connection, each with at most one batch of a partition."""

    writer: TargetWriter
    connection: Connection
    node: int
    _: KW_ONLY
    is_probing: bool
    ready: dict[PartitionCopier, None] = field(default_factory=dict)
    _in_flight_bytes: int = 0
    _in_flight_requests: int = 0
    _gives_way: bool = False
    #: Whether the last request left batches for another one.
    _has_backlog: bool = False
    _keys: dict[PartitionCopier, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = self.writer.settings
        self._may_write = self.writer.may_write
        self._transactions = self.writer.transactions
        self._version = produce_version(self.connection, self._transactions)
        self._pace = Pace(_FIRST_IN_FLIGHT_BYTES, settings.in_flight_bytes)
        self._turns = Turns(settings.in_flight_requests)

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def expected_s(self) -> float:
        # The rate of a connection with little to do says nothing about a dead one, so the time is capped.
        most_s = self.connection.request_timeout_ms / 1000
        return min(self._pace.seconds_for(self._in_flight_bytes), most_s) if self._in_flight_bytes else 0.0

    @property
    def answer_s(self) -> float:
        return self._turns.answer_s

    def overdue(self) -> bool:
        """Return whether no byte has moved for ``request.timeout.ms`` although an answer is due."""
        return not self.closed and self.connection.stalled_s > self.connection.request_timeout_ms / 1000

    def topic_key(self, copier: PartitionCopier) -> bytes:
        key = self._keys.get(copier)
        if key is None:
            key = self._keys[copier] = topic_key(copier.plan, self._version)
        return key

    def pump(self) -> None:
        """Send what may be sent now, and yield to the event loop in between."""
        ends_s = time.monotonic() + _TURN_S
        while (
            self.ready
            and not self._gives_way
            and self._in_flight_requests < (self._turns.limit if self._has_backlog else self._turns.unqueued)
            and self._in_flight_bytes < self._pace.limit_bytes
            and not self.closed
            and not self.connection.write_paused
            and not self.connection.is_muted
            and self._may_write()
        ):
            sent = self._gather(ends_s)
            if not sent:
                return
            self._send(sent)
            if time.monotonic() >= ends_s:
                self._gives_way = True
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._gives_way = False
        try:
            self.pump()
        except Exception as error:  # because the event loop would only log it
            self.writer.fail(error)

    def _gather(self, ends_s: float) -> list[tuple[PartitionCopier, Outgoing]]:
        """Take the next batches, at most one for each target partition, because of two in a request a broker keeps only
        the last and acknowledges both. A copier whose partition is taken waits for the next request."""
        sent, size = [], 0
        limit_bytes = min(_MAX_REQUEST_BYTES, self._pace.limit_bytes)
        saved_s = self._turns.request_s / len(self.ready)
        taken: set[TopicPartition] = set()
        for copier in list(self.ready):
            if copier.plan.target in taken:
                continue
            outgoing = copier.next_batch(saved_s)
            del self.ready[copier]
            if outgoing is None:
                continue
            self.ready[copier] = None  # behind copiers that had no turn yet
            taken.add(copier.plan.target)
            sent.append((copier, outgoing))
            size += len(outgoing.batch)
            if size >= limit_bytes or time.monotonic() >= ends_s:
                break
        self._has_backlog = any(copier.has_unsent for copier in self.ready)
        return sent

    def _send(self, sent: Sent) -> None:
        topics: dict[bytes, list[Addressed]] = {}
        size = 0
        for copier, outgoing in sent:
            topics.setdefault(self.topic_key(copier), []).append((copier.plan.target.partition, outgoing.batch))
            size += len(outgoing.batch)
        # Half, so that a broker that waits for replicas answers before its connection counts as stalled.
        timeout_ms = self.connection.request_timeout_ms // 2
        body = encode_produce(timeout_ms, topics, self._transactions)
        if not self._in_flight_requests:
            self._pace.begin(time.monotonic())
        self._in_flight_requests += 1
        self._in_flight_bytes += size
        sent_s = time.monotonic()
        future = self.connection.send(_PRODUCE, self._version, body)
        future.add_done_callback(partial(self._answered, sent, size, sent_s))

    def _answered(self, sent: Sent, size: int, sent_s: float, future: asyncio.Future[memoryview]) -> None:
        try:
            self._take_answer(sent, size, sent_s, future)
        except Exception as error:  # the fate of the batches is unknown
            self.writer.fail(error)

    def _take_answer(self, sent: Sent, size: int, sent_s: float, future: asyncio.Future[memoryview]) -> None:
        self._in_flight_requests -= 1
        self._in_flight_bytes -= size
        answer, error = None, ""
        if future.cancelled():
            error = "the request was cancelled"
        elif (lost := future.exception()) is not None:
            error = str(lost)
        else:
            answer = fetch_produce.decode_produce(future.result(), self._version)
            now_s = time.monotonic()
            self._pace.moved(size, now_s, is_idle=not self._in_flight_requests)
            self._turns.answered(sent_s, now_s, self._in_flight_requests + 1, size)
        if answer is not None and answer.throttle_time_ms:
            self.connection.mute(answer.throttle_time_ms)
            asyncio.get_running_loop().call_later(answer.throttle_time_ms / 1000, self._go_on)
        self.writer.settled(sent, self, answer, error)
        self.writer.offer(copier for copier, _ in sent if copier.has_unsent)
        self.pump()


def _is_tried_again(outgoing: Outgoing, code: int) -> bool:
    """Return whether to send a refused batch again unchanged. A broker error without a code may pass, or stay."""
    if code == error_codes.UNKNOWN_SERVER_ERROR:
        outgoing.unexplained += 1
        return outgoing.unexplained < _UNEXPLAINED_TRIES
    return code in error_codes.RETRIABLE


def produce_version(connection: Connection, transactions: TransactionTerms | None = None) -> int:
    """Return the highest version that the broker and we know and the transactions allow."""
    explicit = transactions is not None and not transactions.adds_implicitly
    return min(_EXPLICIT_AT_MOST if explicit else _MAX_VERSION, connection.versions[_PRODUCE][1])


def topic_key(plan: PartitionPlan, version: int) -> bytes:
    """Return the key of the plan's target topic in requests and answers of ``version``: its id from Produce 13 on."""
    if version >= fetch_produce.PRODUCE_TOPIC_IDS_FROM and plan.target_topic_id is not None:
        return plan.target_topic_id.bytes
    return fetch_produce.topic_name_key(plan.target.topic)


def encode_produce(
    timeout_ms: int, topics: Mapping[bytes, Sequence[Addressed]], transactions: TransactionTerms | None = None
) -> list[bytes | memoryview]:
    """Encode the body of an acks=all ProduceRequest as buffers; ``topics`` by :func:`topic_key`. No partition may
    appear twice: the broker would keep the last batch only and acknowledge both."""
    for batches in topics.values():
        if len({partition for partition, _ in batches}) != len(batches):
            raise AssertionError("a partition has two batches in one Produce request")
    name = fetch_produce.NO_TRANSACTIONAL_ID
    if transactions:
        name = fetch_produce.compact_string(transactions.transactional_id)
    return fetch_produce.encode_produce(timeout_ms, list(topics.items()), name)
