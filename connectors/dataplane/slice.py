"""Run one slice in a Spark task, from its hello on the control link to its end.

Spark ships :func:`run` by name, so executors need this package. Its arguments are only where the worker listens, its
certificate, a token, names and numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import traceback
from collections.abc import Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, is_set_within
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.control_link import protocol
from connectors.control_link.code_version import running_code, running_from
from connectors.control_link.protocol import Message, PartitionPlan, SliceSettings, TransactionTerms
from connectors.dataplane.batches.copier import PartitionCopier, Transform
from connectors.dataplane.batches.send_queue import SendQueue
from connectors.dataplane.batches.transaction import SliceTransaction
from connectors.dataplane.by_key_copier import ByKey, KeyedPartition
from connectors.dataplane.leader_connections import Leaders
from connectors.dataplane.producer import TargetWriter
from connectors.dataplane.resume import Resumed, Resumer
from connectors.dataplane.smt_stage import ChainStage, TransformStage
from connectors.dataplane.source_reader import SourceReader
from connectors.dataplane.sql_stage import RecordStage
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from connectors.transforms.smt_chain import Chain, ChainPlan

log = logging.getLogger(__name__)

#: A drain ends uncleanly if no answer comes for this time plus twice the expected time of what is in flight.
_DRAIN_STILL_S: Final = 5.0
_DRAIN_LOOK_S: Final = 0.5
#: Pause for each reported partition, which costs the worker about 13 us; and the longest pause.
_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 3.0
_LAST_SEND_S: Final = 1.0


async def run(payload: Message, stage: RecordStage | None) -> None:
    """Run the slice of this task. Spark gets no rows of it: positions and counts go over the link. ``payload``: host,
    port and certificate of the worker's listener, token, slice (its flow and task), epoch."""
    hello = {
        **{name: payload[name] for name in ("token", "slice", "epoch")},
        "attempt": _attempt(),
        "code": running_code(),
        "from": running_from(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    try:
        link = await protocol.Link.connect(
            protocol.LinkAddress(payload["host"], payload["port"], payload["certificate"]), hello
        )
    except protocol.LinkUnreachable as error:
        # A worker that still runs learns this from a job that ended without a slice.
        log.warning("%s", error)
        return
    slice_ = Slice(link, stage)
    with protocol.forwarding_logs(link.send):
        try:
            await slice_.run()
        finally:
            await slice_.close()
    if slice_.is_stale:
        # Because this process would keep running old code: a failed task ends it, and Spark starts another.
        raise StaleCode(f"{running_code()} from {running_from()} is not the code that the worker runs")


def _attempt() -> str:
    from pyspark import TaskContext  # here, because only a Spark task has pyspark

    context = TaskContext.get()
    return f"{context.attemptNumber()} ({context.taskAttemptId()})" if context else "none"


class StaleCode(RetriableError):
    """This process runs other code than its worker."""


class Defect(RetriableError):
    """An error that only a defect in this project explains; a retry seldom helps, so retries are limited."""


class LeaseOver(RetriableError):
    """The slice's lease ran out: it may not write any more."""

    def __init__(self) -> None:
        super().__init__("the lease ran out: the worker did not renew it in time")


class OutOfMemory(RetriableError):
    """A slice got no more memory; the next one may."""


class Slice:
    """One slice of a flow: several partitions in one event loop, controlled over its link."""

    def __init__(self, link: protocol.Link, stage: RecordStage | None = None) -> None:
        #: The stage that transforms records, if any.
        self._stage: TransformStage | None = stage
        self._link = link
        self._settings: SliceSettings | None = None
        self._source: Cluster | None = None
        self._target: Cluster | None = None
        self._leaders: tuple[Leaders, Leaders] | None = None
        self._reader: SourceReader | None = None
        self._writer: TargetWriter | None = None
        self._copiers: list[PartitionCopier] = []
        #: Copiers that have something to report.
        self._moved: dict[SendQueue, None] = {}
        self._producer: ProducerIdAndEpoch | None = None
        self._lease_until: float | None = None
        self._ended: asyncio.Future[None] | None = None
        self._scope = Scope("slice")
        self._answered = asyncio.Event()
        self._started = False
        self._transaction: SliceTransaction | None = None
        self._transaction_task: asyncio.Task[None] | None = None
        self._by_key: ByKey | None = None
        self._keyed: list[KeyedPartition] = []
        #: Whether the worker refused this slice because of its code.
        self.is_stale = False

    async def run(self) -> None:
        """Run until the worker stops the slice, it is fenced, or its lease runs out; a lost link ends it quietly."""
        self._ended = asyncio.get_running_loop().create_future()
        self._scope.spawn(self._control_loop(), "control link")
        self._scope.spawn(self._report_forever(), "progress", self._end)
        try:
            await self._ended
        except protocol.LinkClosed:
            return
        except HeliographError as error:
            self._link.send({"type": "failed", "error": str(error), "fault": type(error).__name__})
        finally:
            await self._scope.close()

    async def close(self) -> None:
        for part in (self._reader, self._writer, self._stage, self._by_key):
            if part is not None:
                await part.stop()
        for cluster in (self._source, self._target):
            if cluster is not None:
                await cluster.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._link.close()

    async def _control_loop(self) -> None:
        try:
            while True:
                await self._handle(await self._link.receive())
        except Exception as error:
            self._end(error)

    async def _handle(self, message: Message) -> None:
        """Long work runs in tasks, so that the link answers the lease meanwhile."""
        kind = message["type"]
        if kind == "lease":
            self._renew()
            clusters = self._source, self._target
            throttled_ms = [0 if one is None else one.take_throttled_ms("copy") for one in clusters]
            answered_ago_s = [_ago_s(one) for one in clusters]
            self._link.send({"type": "alive", "answered_ago_s": answered_ago_s, "throttled_ms": throttled_ms})
        elif kind == "config":
            self._settings = SliceSettings.from_wire(message["settings"])
            if self._settings.chain is not None:
                self._stage = ChainStage(Chain(ChainPlan.from_wire(self._settings.chain)), self._stage)
            self._renew()  # after transforms are imported, which may take longer than a lease
            topics = message["source_topics"], message["target_topics"]
            self._scope.spawn(self._open_clusters(self._settings, *topics), "open clusters", self._end)
        elif kind == "resume":
            plans = [PartitionPlan.from_wire(plan) for plan in message["plans"]]
            self._scope.spawn(self._resume(plans), "resume", self._end)
        elif kind == "go":
            await self._go(message)
        elif kind == "add":
            self._add(message)
        elif kind == "hold":
            assert self._reader, "«hold» before «go»"
            self._reader.hold(is_held=message["is_held"])
        elif kind == "stop":
            self._scope.spawn(self._drain(), "drain", self._end)
        elif kind == "begin":
            assert self._transaction, "«begin» without transactions"
            self._transaction.begin(ProducerIdAndEpoch(**message["producer"]), restarts=message["restarts"])
        elif kind == "enlisted":
            assert self._transaction, "«enlisted» without transactions"
            added, unwritable = ({TopicPartition(*one) for one in message[name]} for name in ("partitions", "refused"))
            self._transaction.enlisted(added, unwritable)
        elif kind == "refused":
            self.is_stale = message["stale"]
            raise protocol.LinkClosed(f"the worker refused this slice: {message['reason']}")

    def _renew(self) -> None:
        """Renew the lease. Raises LeaseOver if it has run out: what a frozen slice reads was sent long ago, by a worker
        that may have replaced it since."""
        if self._settings is None:
            return
        if self._lease_until is not None:
            self._check_lease()
        self._lease_until = time.monotonic() + self._settings.lease_ms / 1000

    def _check_lease(self) -> None:
        if not self._has_lease():
            raise LeaseOver

    def _has_lease(self) -> bool:
        return self._lease_until is not None and time.monotonic() < self._lease_until

    async def _open_clusters(
        self, settings: SliceSettings, source_topics: Collection[str], target_topics: Collection[str]
    ) -> None:
        """Connect to the leaders of these topics, so that the first requests follow «go» at once."""
        self._source = Cluster(ConnectionSettings.from_wire(settings.source), settings.source_alias)
        self._target = Cluster(ConnectionSettings.from_wire(settings.target), settings.target_alias)
        if self._stage is not None:
            await self._stage.start(self._end)
        if settings.by_key:
            self._by_key = ByKey((self._source, self._target), settings, self._made_room, self._check_lease, self._end)
            await self._by_key.open()
        self._leaders = await asyncio.gather(
            Leaders.connected(self._source, source_topics), Leaders.connected(self._target, target_topics)
        )
        self._link.send({"type": "ready"})

    async def _resume(self, plans: list[PartitionPlan]) -> None:
        assert self._source and self._target and self._settings, "«resume» before «config»"
        resumer = Resumer(self._source, self._target, self._settings, self._stage)
        await asyncio.gather(*(self._resume_one(resumer.resume(plan)) for plan in plans))

    async def _resume_one(self, resuming: Coroutine[None, None, Resumed]) -> None:
        # A message for each partition, because it may have many runs.
        self._link.send({"type": "resumed", "partition": (await resuming).to_wire()})

    async def _go(self, message: Message) -> None:
        assert self._source and self._target and self._settings, "«go» before «config»"
        if self._by_key is not None:
            self._keyed = self._by_key.start([PartitionPlan.from_wire(plan) for plan in message["plans"]])
            self._started = True
            return
        self._producer = ProducerIdAndEpoch(**message["producer"])
        transactions = TransactionTerms.from_wire(message["transactions"]) if message["transactions"] else None
        if transactions is not None:
            self._transaction = SliceTransaction(
                transactions, send=self._link.send, collect=self._collect, offer=self._offer
            )
        self._renew()
        self._writer = writer = TargetWriter(
            self._target,
            self._settings,
            may_write=self._has_lease,
            room=self._made_room,
            fail=self._end,
            transactions=transactions,
        )
        self._reader = SourceReader(
            self._source, self._settings, self._offer, self._end, answer_s=lambda: writer.answer_s
        )
        self._add(message)
        if self._transaction is not None:
            self._transaction_task = self._scope.spawn(self._transaction.run(), "transactions", self._end)
        self._started = True

    def _add(self, message: Message) -> None:
        """Copy the partitions of one message; a long list comes in several."""
        assert self._producer and self._settings and self._reader and self._writer and self._leaders, (
            "«add» before «go»"
        )
        added = self._made(message["plans"], self._producer, self._settings)
        self._copiers += added
        of_source, of_target = self._leaders
        self._writer.start(added, of_target)
        self._reader.start(added, of_source)
        if self._transaction is not None:
            self._transaction.add(added)

    def _made(
        self, plans: Iterable[dict[str, Any]], producer: ProducerIdAndEpoch, settings: SliceSettings
    ) -> list[PartitionCopier]:
        stage = self._stage
        return [
            PartitionCopier(
                plan,
                producer,
                read_committed=settings.read_committed,
                skip_refused=settings.skip_refused,
                compression=settings.compression,
                batch_bytes=settings.batch_bytes,
                transaction=self._transaction,
                moved=self._moved,
                transform=None if stage is None else Transform(stage.submit, self._came_back),
            )
            for plan in map(PartitionPlan.from_wire, plans)
        ]

    def _came_back(self, copier: PartitionCopier) -> None:
        """Send transformed batches, and wake the reader: if none came of the records, no answer of the target would."""
        self._offer((copier,))
        if self._reader is not None:
            self._reader.wake()

    def _offer(self, copiers: Iterable[PartitionCopier]) -> None:
        if self._writer is not None:
            self._writer.offer(copiers)

    async def _drain(self) -> None:
        """Stop reading, wait for answers to what is in flight, report every position, and end."""
        if self._reader is not None:
            if await self._reader.finish():
                await self._sent()
            await self._reader.stop()
        if self._transaction_task is not None:
            self._transaction_task.cancel()
        unclean = await self._settled([*self._copiers, *self._keyed])
        if self._transaction is None:
            self._report()
        elif not unclean:
            self._transaction.finish()
        self._link.send({"type": "done", "unclean": unclean})
        self._end(None)

    async def _sent(self) -> None:
        """Allow a moment to send what came last, so that a slow source does not have to send it again."""
        until_s = time.monotonic() + _LAST_SEND_S
        while any(copier.has_unsent for copier in self._copiers) and time.monotonic() < until_s:
            self._answered.clear()
            await is_set_within(self._answered, _LAST_SEND_S)

    async def _settled(self, leaving: Sequence[PartitionCopier | KeyedPartition]) -> list[list[Any]]:
        """Stop these from sending anything new, and wait while answers come; refusals do not count, because they may
        repeat endlessly. Return the partitions whose last batches have no answer."""
        for copier in leaving:
            copier.discard_unsent()
        reached, since_s = -1, time.monotonic()
        while _unanswered(leaving):
            reached, before = sum(map(_acknowledged, leaving)), reached
            now_s = time.monotonic()
            if reached != before:
                since_s = now_s
            elif now_s - since_s > _DRAIN_STILL_S + 2 * (self._writer.expected_s if self._writer else 0.0):
                break
            self._answered.clear()
            await is_set_within(self._answered, _DRAIN_LOOK_S)
        return [list(copier.plan.source) for copier in _unanswered(leaving)]

    def _made_room(self) -> None:
        """Let the reader fetch again and a drain check its end, after answers."""
        self._answered.set()
        if self._transaction is not None:
            self._transaction.answered()
        if self._reader is not None:
            self._reader.wake()

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        elif isinstance(error, HeliographError):
            self._ended.set_exception(error)
        elif isinstance(error, MemoryError):
            advice = "give it more (spark.executor.pyspark.memory, if that is set)"
            self._ended.set_exception(OutOfMemory(f"a slice had no memory left{_place(error)}; {advice}"))
        else:
            log.error("a slice failed", exc_info=error)
            self._ended.set_exception(Defect(f"{type(error).__name__}: {error}{_place(error)}"))

    async def _report_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        due_s = clock()
        while True:
            interval_ms = self._settings.progress_interval_ms if self._settings else 100
            await asyncio.sleep(interval_ms / 1000)
            if self._started:
                if clock() >= due_s and (self._transaction is None or self._transaction.is_idle):
                    due_s = clock() + pause_s(self._report())
                if not self._has_lease():
                    self._end(LeaseOver())

    def _report(self) -> int:
        """Send what changed; return the number of partitions reported."""
        count = 0
        for piece in protocol.pieces(self._collect()):
            count += len(piece)
            self._link.send({"type": "progress", "partitions": piece})
        return count

    def _collect(self) -> list[Any]:
        copiers: list[SendQueue | KeyedPartition] = [*self._moved, *self._keyed]
        self._moved.clear()
        return [report.to_wire() for copier in copiers if (report := copier.report()) is not None]


def pause_s(reported: int) -> float:
    """Return the pause after a slice ``reported`` this number of partitions: 2 ms for each, 3 s at most."""
    return min(reported * _PAUSE_S, _LONGEST_PAUSE_S)


def _ago_s(cluster: Cluster | None) -> float | None:
    """Return the seconds since a leader answered a request of the copy; None if none has."""
    at_s = None if cluster is None else cluster.answered_s("copy")
    return None if at_s is None else round(asyncio.get_running_loop().time() - at_s, 3)


def _unanswered(copiers: Iterable[PartitionCopier | KeyedPartition]) -> list[PartitionCopier | KeyedPartition]:
    """Return the copiers whose batches may still arrive."""
    return [copier for copier in copiers if copier.holds_up_end]


def _acknowledged(copier: PartitionCopier | KeyedPartition) -> int:
    """Return a number that grows with what the target has acknowledged."""
    batches = copier.acknowledged_batches if isinstance(copier, KeyedPartition) else 0
    return copier.next_source_offset + batches


def _place(error: BaseException) -> str:
    """Return where an error was raised, for its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
