"""What a Spark task runs: one slice, from its hello on the control link to its closing balance.

``copy_slices`` is the function that ``mapInArrow`` ships. It travels by name, so executors need this package; all
it carries is where the worker listens, its certificate, a token, names and numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import traceback
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.settings import ConnectionSettings
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.link import Link, LinkAddress, LinkClosed, LinkUnreachable, Message
from connectors.dataplane.plan import PartitionPlan, PartitionProgress, ProducerIdentity, SliceSettings
from connectors.dataplane.resuming import Resumed, Resumer
from connectors.dataplane.shipping import running_code, running_from
from connectors.dataplane.source import SourceReader
from connectors.dataplane.target import TargetWriter
from connectors.dataplane.telling import telling

log = logging.getLogger(__name__)

#: The closing balance: one row a partition.
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("next_source_offset", pa.int64()),
        ("target_end", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("batches", pa.int64()),
    ]
)
SCHEMA_DDL: Final = (
    "topic string, partition int, next_source_offset bigint, target_end bigint, "
    "records bigint, bytes bigint, batches bigint"
)
_DRAIN_TIMEOUT_S: Final = 5.0


def copy_slices(payload: Message, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the slice of this task; yields its balance.

    ``payload``: host, port and certificate of the worker's listener, token, slice (its flow and task) and epoch.
    """
    for batch in batches:
        for _ in range(batch.num_rows):
            yield asyncio.run(_run(payload))


async def _run(payload: Message) -> pa.RecordBatch:
    hello = {
        **{name: payload[name] for name in ("token", "slice", "epoch")},
        "attempt": _attempt(),
        "code": running_code(),
        "from": running_from(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    try:
        link = await Link.connect(LinkAddress(payload["host"], payload["port"], payload["certificate"]), hello)
    except LinkUnreachable as error:
        # The worker may be gone, then nobody cares; if it is not, it learns from a job that ended without a slice.
        log.warning("%s", error)
        return _balance({})
    slice_ = Slice(link)
    with telling(link.send):
        try:
            await slice_.run()
        finally:
            await slice_.close()
    if slice_.is_stale:
        # This process would go on serving old code: a failed task ends it, and Spark starts another.
        raise StaleCode(f"{running_code()} from {running_from()} is not what the worker runs")
    return _balance(slice_.totals)


def _attempt() -> str:
    from pyspark import TaskContext  # only a Spark task has one

    context = TaskContext.get()
    return f"{context.attemptNumber()} ({context.taskAttemptId()})" if context else "none"


class StaleCode(RetriableError):
    """This process runs other code than the worker that it was to work for."""


class Defect(RetriableError):
    """What only a mistake in this project's code explains; trying again seldom helps, and not for ever."""


class Slice:
    """One slice of a flow: several partitions in one loop, steered over its link."""

    def __init__(self, link: Link) -> None:
        self.totals: dict[tuple[str, int], PartitionProgress] = {}
        self._link = link
        self._settings: SliceSettings | None = None
        self._source: Cluster | None = None
        self._target: Cluster | None = None
        self._reader: SourceReader | None = None
        self._writer: TargetWriter | None = None
        self._copiers: list[PartitionCopier] = []
        self._lease_until = 0.0
        self._ended: asyncio.Future[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._started = False
        #: Whether the worker refused this slice before it was told anything.
        self.is_stale = False

    async def run(self) -> None:
        """Until told to stop, fenced, or left without a lease; a lost link ends it quietly."""
        self._ended = asyncio.get_running_loop().create_future()
        steering = asyncio.create_task(self._steer(), name="control link")
        reporting = asyncio.create_task(self._report_forever(), name="progress")
        reporting.add_done_callback(self._ended_early)
        try:
            await self._ended
        except LinkClosed:
            return
        except HeliographError as error:
            self._link.send({"type": "failed", "error": str(error), "fault": type(error).__name__})
        finally:
            tasks = [task for task in (steering, reporting, self._preparing) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        for part in (self._reader, self._writer):
            if part is not None:
                await part.stop()
        for cluster in (self._source, self._target):
            if cluster is not None:
                await cluster.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._link.close(), 1.0)

    # -- control ----------------------------------------------------------------------------------

    async def _steer(self) -> None:
        try:
            while True:
                message = await self._link.receive()
                if message["type"] == "stop":
                    await self._drain()
                    self._end(None)
                    return
                await self._obey(message)
        except Exception as error:
            self._end(error)

    async def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "lease":
            self._renew()
            self._link.send({"type": "alive"})
        elif kind == "config":
            self._settings = SliceSettings.from_wire(message["settings"])
            self._renew()
            self._prepare(self._open_clusters(self._settings), "open clusters")
        elif kind == "resume":
            self._prepare(self._resume([PartitionPlan.from_wire(plan) for plan in message["plans"]]), "resume")
        elif kind == "go":
            await self._go(message)
        elif kind == "refused":
            self.is_stale = message["stale"]
            raise LinkClosed(f"the worker refused this slice: {message['reason']}")

    def _prepare(self, work: Coroutine[None, None, None], name: str) -> None:
        """Do what takes its time beside the link, where the lease has to be answered meanwhile."""
        self._preparing = asyncio.create_task(work, name=name)
        self._preparing.add_done_callback(self._ended_early)

    def _ended_early(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _renew(self) -> None:
        if self._settings is not None:
            self._lease_until = time.monotonic() + self._settings.lease_ms / 1000

    def _has_lease(self) -> bool:
        return time.monotonic() < self._lease_until

    async def _open_clusters(self, settings: SliceSettings) -> None:
        """So that «go» finds them warm."""
        self._source = Cluster(ConnectionSettings.from_wire(settings.source), "source")
        self._target = Cluster(ConnectionSettings.from_wire(settings.target), "target")
        await asyncio.gather(self._source.metadata(()), self._target.metadata(()))
        self._link.send({"type": "ready"})

    async def _resume(self, plans: list[PartitionPlan]) -> None:
        assert self._source and self._target and self._settings, "«resume» before «config»"
        resumer = Resumer(self._source, self._target, self._settings)
        found: list[Resumed] = await asyncio.gather(*(resumer.resume(plan) for plan in plans))
        self._link.send({"type": "resumed", "partitions": [one.to_wire() for one in found]})

    async def _go(self, message: Message) -> None:
        assert self._source and self._target and self._settings, "«go» before «config»"
        producer = ProducerIdentity(**message["producer"])
        self._copiers = [
            PartitionCopier(
                PartitionPlan.from_wire(plan),
                producer,
                read_committed=self._settings.read_committed,
                skip_refused=self._settings.skip_refused,
                compression=self._settings.compression,
            )
            for plan in message["plans"]
        ]
        self._renew()
        self._reader = SourceReader(self._source, self._settings, self._offer, self._end)
        self._writer = TargetWriter(
            self._target,
            self._settings,
            may_write=self._has_lease,
            room=self._made_room,
            fail=self._end,
        )
        await self._writer.start(self._copiers)
        self._reader.start(self._copiers)
        self._started = True

    def _offer(self, copiers: Iterable[PartitionCopier]) -> None:
        if self._writer is not None:
            self._writer.offer(copiers)

    async def _drain(self) -> None:
        """Read no more, wait for what is in flight, and tell where everything stands."""
        if self._reader is not None:
            await self._reader.stop()
        for copier in self._copiers:
            copier.discard_unsent()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_acknowledged(), _DRAIN_TIMEOUT_S)
        unclean = [list(copier.plan.source) for copier in self._unanswered()]
        self._report()
        self._link.send({"type": "done", "unclean": unclean})

    async def _all_acknowledged(self) -> None:
        while self._unanswered():
            self._answered.clear()
            await self._answered.wait()

    def _unanswered(self) -> list[PartitionCopier]:
        """Copiers whose batches may still arrive. A stopped one waits for no answer, and is never handed over."""
        return [copier for copier in self._copiers if copier.has_unacknowledged and not copier.stopped]

    def _made_room(self) -> None:
        """Answers came: the reader may fetch again, and a drain may be over."""
        self._answered.set()
        if self._reader is not None:
            self._reader.wake()

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        elif isinstance(error, HeliographError):
            self._ended.set_exception(error)
        else:
            log.error("a slice failed", exc_info=error)
            self._ended.set_exception(Defect(f"{type(error).__name__}: {error}{_place(error)}"))

    # -- progress ---------------------------------------------------------------------------------

    async def _report_forever(self) -> None:
        while True:
            interval_ms = self._settings.progress_interval_ms if self._settings else 100
            await asyncio.sleep(interval_ms / 1000)
            if self._started:
                self._report()
                if not self._has_lease():
                    self._end(RetriableError("the lease ran out: nobody renewed it in time"))

    def _report(self) -> None:
        reports = [report for copier in self._copiers if (report := copier.report()) is not None]
        for report in reports:
            self._add(report)
        self._link.send({"type": "progress", "partitions": [report.to_wire() for report in reports]})

    def _add(self, report: PartitionProgress) -> None:
        total = self.totals.get(report.source)
        if total is None:
            self.totals[report.source] = PartitionProgress(**{**_plain(report), "runs": []})
            return
        total.next_source_offset, total.target_end = report.next_source_offset, report.target_end
        total.records += report.records
        total.bytes += report.bytes
        for reason, count in report.batches.items():
            total.batches[reason] = total.batches.get(reason, 0) + count


def _place(error: BaseException) -> str:
    """Where it was raised, for who has to mend it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _plain(report: PartitionProgress) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


def _balance(totals: dict[tuple[str, int], PartitionProgress]) -> pa.RecordBatch:
    rows = [
        (topic, index, row.next_source_offset, row.target_end, row.records, row.bytes, sum(row.batches.values()))
        for (topic, index), row in totals.items()
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
