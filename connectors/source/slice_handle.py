"""The worker's end of one slice: its Spark job, link and lease, and the settings and defects of its task. A defect
looks like a bug in this project, which retries seldom fix, so a task fails after a few."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.api.source import EngineMeter
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.concurrency import Pauses, Scope
from connect.kafka.error_causes import CAUSE, Cause
from connect.kafka.log.offsets import EARLIEST
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.control_link import protocol
from connectors.control_link.server import LinkServer, ServedLink, SliceSilent, Ticket
from connectors.dataplane.resume import Resumed
from connectors.formats.gap import GapPolicy
from connectors.formats.types import ONE_WAY, FlowName, ProducerIdAndEpoch, TopicPartition, Ways
from connectors.internal_topics import StateRecords
from connectors.source.offset_sync_writer import SyncWriter
from connectors.source.positions.partition_pairs import Clusters, Entry
from connectors.spark.engine import Job, SliceCrashed, SparkEngine

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S: Final = 60.0
#: After this time without a slot the predecessor ends to free its slot; then the interval of warnings about it.
_NO_SLOT_S: Final = 20.0
_CANCEL_AFTER_S: Final = 10.0
_RENEWAL_LOOK_S: Final = 5.0


class SliceLost(RetriableError):
    """A slice ended without reporting that all is acknowledged; its successor must fence it and prove the position."""


class SliceDefect(SliceLost):
    """A slice ended with an error that looks like a bug in this project."""


class TransformsRefused(PermanentError):
    """A flow's transforms, or a message handler, cannot be created in a slice; a retry would fail again."""


class SliceFenced(PermanentError):
    """The slice's producer was fenced by another producer that this task did not start."""


_FAULTS: Final[Mapping[str, type[SliceLost | SliceFenced | TransformsRefused]]] = {
    "Fenced": SliceFenced,
    "Defect": SliceDefect,
    "TransformUnusable": TransformsRefused,
    "HandlerUnusable": TransformsRefused,
}


def _renewed(settings: protocol.SliceSettings) -> protocol.SliceSettings:
    """Return the settings with the newest contents of their TLS files: a slice's machine does not have them."""
    renewed = ConnectionSettings.renewed_wire
    return replace(settings, source=renewed(settings.source), target=renewed(settings.target))


class SliceHandle:
    """Opens one slice and controls it. ``on_progress``: gets each partition's report, in order. ``open_timeout_s``: how
    long Spark may take to run the slice before it is checked for being frozen; multiplied by the engine's
    ``timeout_factor``."""

    def __init__(
        self,
        engine: SparkEngine,
        links: LinkServer,
        settings: protocol.SliceSettings,
        epoch: int,
        on_progress: Callable[[protocol.PartitionProgress], None],
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        self.epoch = epoch
        self.pid = 0
        #: Set when the slice ends: None after a clean «done», else the error.
        self.ended: asyncio.Future[HeliographError | None] = asyncio.get_running_loop().create_future()
        self._engine, self._links = engine, links
        self._settings = _renewed(settings)
        self._on_progress, self._open_timeout_s = on_progress, open_timeout_s
        self._name = f"{settings.flow} task {settings.task}"
        self._ticket: Ticket | None = None
        self._job: Job | None = None
        self._link: ServedLink | None = None
        self._is_gone = False
        self._ready = asyncio.Event()
        self._resuming: set[TopicPartition] = set()
        self._resumed: list[Resumed] = []
        self._all_resumed = asyncio.Event()
        self._unclean: list[TopicPartition] = []
        self._scope = Scope(f"slice {self._name}")
        #: Under exactly-once: gets the slice's messages about its transaction, ``enlist`` and ``drained``.
        self.on_transaction: Callable[[protocol.Message], None] | None = None
        #: Gets how many seconds ago the source answered a fetch and the target a produce request, None for never; then
        #: how many milliseconds a quota of each has delayed requests since the last call.
        self.on_answered: Callable[[float | None, float | None, int, int], None] | None = None
        #: Whether this worker owns the task: only then the slice's lease is renewed. Called in the lease thread.
        self.holds: Callable[[], bool] = lambda: True
        #: Called once if Spark seems to have no free slot for the slice.
        self.on_no_slot: Callable[[], None] | None = None

    async def renewed(self) -> None:
        """Wait until the files of the slice's TLS settings have other contents than it got."""
        while True:
            if _renewed(self._settings) != self._settings:
                return
            await asyncio.sleep(_RENEWAL_LOOK_S)

    async def open(self, pairs: Collection[tuple[TopicPartition, TopicPartition]] = ()) -> None:
        """Start the job and wait until its slice has its configuration and connections to the leaders of ``pairs``.
        ``pairs``: the source and target partitions to copy, as far as they are known. Raises :class:`SliceLost` if the
        slice does not start, and the engine's errors."""
        ticket = self._ticket = self._links.expect(self._name, self.epoch)
        try:
            self._job = await self._engine.start_job(self._links.payload(ticket), self._settings.transform_sql)
            self._link, hello = await self._linked(ticket, self._job)
        except BaseException:
            if ticket.linked.done() and not ticket.linked.cancelled() and not ticket.linked.exception():
                ticket.linked.result()[0].abort()  # it connected just before a cancel, so nothing else would close it
            self._links.forget(ticket)
            raise
        self.pid = int(hello["pid"])
        self._scope.spawn(self._listen(self._link), f"slice {self._name}")
        self._link.renew(self._settings.lease_ms / 1000, self.holds)
        ticket.misused.add_done_callback(self._misused)
        self._link.send(
            {
                "type": "config",
                "settings": self._settings.to_wire(),
                "source_topics": sorted({source.topic for source, _ in pairs}),
                "target_topics": sorted({target.topic for _, target in pairs}),
            }
        )
        await self._until(self._ready.wait())

    async def _linked(self, ticket: Ticket, job: Job) -> tuple[ServedLink, protocol.Message]:
        """Wait until Spark runs the slice; return its link and hello. There is no timeout while all of Spark's slots
        may be in use, because another job would start no sooner."""
        either: list[asyncio.Future[Any]] = [ticket.linked, job.finished]
        began_s = time.monotonic()
        timeout_s = self._open_timeout_s * self._engine.timeout_factor
        until_s = began_s + timeout_s
        while True:
            left_s = max(until_s - time.monotonic(), 0)
            await asyncio.wait(either, timeout=min(left_s, _NO_SLOT_S), return_when="FIRST_COMPLETED")
            if ticket.linked.done():
                self._engine.has_run()
                return ticket.linked.result()
            if job.finished.done():
                raise self._no_slice(job)
            now_s = time.monotonic()
            if now_s >= until_s:
                if self._engine.abandon_if_frozen():
                    raise SliceLost(f"no slice connected within {now_s - began_s:.0f} s")
                until_s = now_s + timeout_s
            if self._engine.may_be_full:
                self._say_that_it_waits(now_s - began_s)

    def _say_that_it_waits(self, waited_s: float) -> None:
        if (make_room := self.on_no_slot) is not None:
            self.on_no_slot = None
            make_room()
            return
        settings = self._engine.settings
        log.warning(
            "%s: Spark (%s) has not run its next slice for %.0f s: its executors may be starting, or there is no free "
            "slot: %s",
            self._name,
            settings.place,
            waited_s,
            settings.slots_advice(),
        )

    def _no_slice(self, job: Job) -> Exception:
        """Return the error of a job that ended before its slice connected."""
        error = job.finished.exception()
        if isinstance(error, SliceCrashed):
            return SliceDefect(str(error))
        if error is not None:
            return error if isinstance(error, (RetriableError, PermanentError)) else SliceLost(str(error))
        return SliceLost(
            f"a Spark task of {self._name} ran but did not reach this worker at {self._links.address}; "
            "set link.listener and link.advertised.address to an address that executors can reach"
        )

    def _misused(self, ticket: asyncio.Future[str]) -> None:
        if not ticket.cancelled():
            self.give_up(SliceLost(ticket.result()))

    async def resume(self, plans: Sequence[protocol.PartitionPlan]) -> list[Resumed]:
        """Let the slice find where these plans resume. Raises :class:`SliceLost` if it ends meanwhile."""
        self._resuming, self._resumed = {plan.source for plan in plans}, []
        self._all_resumed.clear()
        for wired in await _wired(plans):
            self._send({"type": "resume", "plans": wired})
        if plans:
            await self._until(self._all_resumed.wait())
        return self._resumed

    async def go(
        self,
        producer: ProducerIdAndEpoch,
        plans: Iterable[protocol.PartitionPlan],
        transactions: protocol.TransactionTerms | None = None,
    ) -> None:
        """Start the copy, in ``transactions`` if any. The positions of ``plans`` must be stored before. All messages
        are prepared before the first is sent, because the slice accepts no other message between them."""
        # Because a consumer, as copying by key uses, is assigned all of its partitions at once.
        first, *more = [[plan.to_wire() for plan in plans]] if self._settings.by_key else await _wired(plans) or [[]]
        self._send(
            {
                "type": "go",
                "producer": producer.to_wire(),
                "plans": first,
                "transactions": transactions.to_wire() if transactions else None,
            }
        )
        for wired in more:
            self._send({"type": "add", "plans": wired})

    def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
        """Let the slice fill the next transaction, as ``producer``, with sequences from 0 if it ``restarts``."""
        self._send({"type": "begin", "producer": producer.to_wire(), "restarts": restarts})

    def enlisted(self, targets: Collection[TopicPartition], refused: Collection[TopicPartition]) -> None:
        """Report target partitions that were added to the transaction, and those ``refused`` for missing rights."""
        added, unwritable = [list(one) for one in targets], [list(one) for one in refused]
        self._send({"type": "enlisted", "partitions": added, "refused": unwritable})

    def hold(self, *, is_held: bool) -> None:
        """Let the slice stop reading, or continue. Records that it has read are still written."""
        self._send({"type": "hold", "is_held": is_held})

    async def stop(self) -> list[TopicPartition]:
        """Let the slice drain and end; return the partitions whose last batches were not acknowledged. A drain takes as
        long as the target needs. Raises :class:`SliceLost` if the slice does not answer its lease."""
        self._send({"type": "stop"})
        await asyncio.wait({self.ended})
        if (error := self.ended.result()) is not None:
            raise error
        return self._unclean

    async def close(self) -> None:
        """Close the link and its tasks; cancel a job that does not end by itself. Cancel at once if the slice never
        connected or has surely ended, because Spark would run it again, in the slot that its successor needs. Cancel
        later if it may be about to end, or has yet to notice that its lease ended."""
        await self._scope.close()
        if self._ticket is not None:
            self._links.forget(self._ticket)
        if self._link is not None:
            self._link.abort()
        if self._job is not None and not self._job.finished.done():
            if self._link is None or (self._is_gone and self.ended.done() and self.ended.result() is not None):
                self._engine.cancel(self._job)
            else:
                asyncio.get_running_loop().call_later(_CANCEL_AFTER_S, self._engine.cancel, self._job)

    def _send(self, message: protocol.Message) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _until(self, waited: Coroutine[Any, Any, Any]) -> None:
        """Wait for ``waited``, which a message of the slice ends. Raises the slice's error if it ends first."""
        async with Scope(f"slice {self._name}") as scope:
            waiting = scope.spawn(waited, f"wait for slice {self._name}")
            await asyncio.wait({waiting, self.ended}, return_when="FIRST_COMPLETED")
            if not waiting.done():
                raise self.ended.result() or SliceLost("the slice ended early")

    async def _listen(self, link: ServedLink) -> None:
        try:
            while True:
                message = await link.receive()
                self._heard(message)
                await asyncio.sleep(0)  # because reports of thousands of partitions may be queued
        except SliceSilent as silent:
            self.give_up(SliceLost(f"{silent} (pid {self.pid})"))
        except protocol.LinkClosed:
            self._is_gone = True
            self.give_up(SliceLost(f"the slice (pid {self.pid}) was lost"))
        except Exception as error:
            log.error("a message of the slice (pid %d) could not be handled", self.pid, exc_info=error)
            self.give_up(SliceLost(f"a message of the slice (pid {self.pid}) could not be handled: {error!r}"))

    def _heard(self, message: protocol.Message) -> None:
        kind = message["type"]
        if kind == "progress":
            for partition in message["partitions"]:
                self._on_progress(protocol.PartitionProgress.from_wire(partition))
        elif kind == "alive":
            if self.on_answered is not None:
                self.on_answered(*message["answered_ago_s"], *message["throttled_ms"])
        elif kind in ("drained", "enlist"):
            if self.on_transaction is not None:
                self.on_transaction(message)
        elif kind == "log":
            cause = message["cause"] and Cause(message["cause"][0], frozenset(message["cause"][1]))
            log.log(message["level"], "%s", message["text"], extra={CAUSE: cause})
        elif kind == "ready":
            self._ready.set()
        elif kind == "resumed":
            one = Resumed.from_wire(message["partition"])
            if one.plan.source in self._resuming:
                self._resuming.discard(one.plan.source)
                self._resumed.append(one)
            if not self._resuming:
                self._all_resumed.set()
        elif kind == "done":
            self._unclean = [TopicPartition(*one) for one in message["unclean"]]
            self.give_up(None)
        elif kind == "failed":
            self.give_up(_FAULTS.get(message["fault"], SliceLost)(message["error"]))

    def give_up(self, error: HeliographError | None) -> None:
        """End the slice, with ``error`` unless it is done; whatever it still does is ignored."""
        if not self.ended.done():
            self.ended.set_result(error)
            if self._link is not None:
                self._link.let_lapse()  # because closing the link may take a while


async def _wired(plans: Iterable[protocol.PartitionPlan]) -> list[list[dict[str, Any]]]:
    """Return ``plans`` in wire format, split into messages; other coroutines run in between."""
    wired: list[list[dict[str, Any]]] = []
    for piece in protocol.pieces(plans):
        wired.append([plan.to_wire() for plan in piece])
        await asyncio.sleep(0)
    return wired


async def close_quietly(handle: SliceHandle | None) -> None:
    """Close a handle, if any, that may be half open; ignore retriable errors."""
    if handle is not None:
        with contextlib.suppress(RetriableError):
            await handle.close()


#: After this many defects in a row the task fails, because each retry leaves a marker in all partitions.
_MOST: Final = 3
#: A slice that has copied for this time resets the count.
_HEALTHY_S: Final = 60.0
#: The first and the longest delay between two attempts.
_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 5.0


class TaskDefective(PermanentError):
    """Several slices in a row ended with an error that looks like a bug in this project."""


class Defects:
    """Counts the defects of one task in a row."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._pauses = Pauses(_RETRY_S, _MAX_RETRY_S)

    def count(self, error: RetriableError, lasted_s: float) -> None:
        """Count a defect; raise :class:`TaskDefective` if retries have not helped. ``lasted_s``: how long it copied."""
        if not isinstance(error, SliceDefect):
            return
        self._count = 1 if lasted_s > _HEALTHY_S else self._count + 1
        if self._count >= _MOST:
            raise TaskDefective(
                f"{self._name}: {self._count} slices in a row ended with what looks like a bug in Heliograph, the "
                f"last with {error}. Positions are unchanged. Please report it with this log"
            ) from error

    def delay_s(self, error: RetriableError, lasted_s: float) -> float:
        """Return how long to wait before the next attempt; raise as :meth:`count`, which this includes."""
        self.count(error, lasted_s)
        if lasted_s > _MAX_RETRY_S:
            self._pauses.over()
        return self._pauses.next_s()

    def forget(self) -> None:
        """Reset the count, after an epoch without a defect."""
        self._count = 0


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Settings of one task. ``epoch_ms``: the length of a Spark job; ``flush_interval_ms``: how often Java's offsets
    are stored; ``ways``: how records of a source topic are distinguished."""

    flow: FlowName
    transactional_id: str
    partitions: tuple[TopicPartition, ...]
    remote_topic: Callable[[str], str]
    slice: protocol.SliceSettings
    epoch_ms: int = 3_600_000
    flush_interval_ms: int = 60_000
    reset_to: int = EARLIEST
    logs_skipped: bool = False
    connector: str = ""
    #: why an entry stopped and what to do; None: the advice for users of REST
    reported: Callable[[Entry], str] | None = None
    gap_policy: GapPolicy = field(default_factory=GapPolicy)
    initial_group: str = ""
    ways: Callable[[str], Ways] = lambda _: ONE_WAY
    transaction_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What a worker shares with its tasks."""

    engine: SparkEngine
    links: LinkServer
    clusters: Clusters
    admin: Admin
    #: Only for this task, if offset syncs are written; the task's creator closes it.
    syncs: SyncWriter | None = None
    #: Stores the states of partitions.
    states: StateRecords | None = None
    #: Whether this worker owns the task, called in the lease thread. The default relies on the fence alone.
    holds: Callable[[], bool] = lambda: True
    #: Of the worker's task, if there is one; see :class:`connect.api.source.EngineTask`.
    meter: EngineMeter | None = None
    topic_used: Callable[[str], None] = lambda _: None
