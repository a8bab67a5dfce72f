"""Hold the worker's end of one slice: its Spark job, its link, its lease, and the settings and defects of its task.

A task fails for a defect when the error looks like a mistake in code: retrying seldom helps, so it is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.concurrency import Scope
from connect.kafka.error_causes import CAUSE, Cause
from connect.kafka.log.offsets import EARLIEST
from connect.kafka.log.topic_admin import Admin
from connectors.control_link.protocol import (
    LinkClosed,
    Message,
    PartitionPlan,
    PartitionProgress,
    SliceSettings,
    TransactionTerms,
    pieces,
)
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
#: After so long without a slot a predecessor makes room; then, so often, the log says that there is none.
_NO_SLOT_S: Final = 20.0
_CANCEL_AFTER_S: Final = 10.0


class SliceLost(RetriableError):
    """A slice ended without saying that all is acknowledged; its successor must fence and prove."""


class SliceDefect(SliceLost):
    """A slice ended of a mistake in this project's code, as far as anybody can tell."""


class TransformsRefused(PermanentError):
    """A flow's transforms, or a message handler, cannot be made where records are copied; another try would meet the
    same."""


class SliceFenced(PermanentError):
    """The target's brokers know a successor of ours that we did not start."""


_FAULTS: Final[Mapping[str, type[SliceLost | SliceFenced | TransformsRefused]]] = {
    "Fenced": SliceFenced,
    "Defect": SliceDefect,
    "TransformUnusable": TransformsRefused,
    "HandlerUnusable": TransformsRefused,
}


class SliceHandle:
    """Opens one slice and steers it.

    Args:
        on_progress: Gets each partition's report, in order.
        open_timeout_s: How long Spark may take to run the slice before it is suspected of being frozen; longer behind
            one that was.
    """

    def __init__(
        self,
        engine: SparkEngine,
        links: LinkServer,
        settings: SliceSettings,
        epoch: int,
        on_progress: Callable[[PartitionProgress], None],
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        self.epoch = epoch
        self.pid = 0
        #: Set when the slice has ended: None after a clean «done», else the error.
        self.ended: asyncio.Future[HeliographError | None] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._links = links
        self._settings = settings
        self._on_progress = on_progress
        self._open_timeout_s = open_timeout_s
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
        #: Under exactly-once: gets what the slice says of its transaction, ``enlist`` and ``drained``.
        self.on_transaction: Callable[[Message], None] | None = None
        #: Gets how many seconds ago the source answered a fetch and the target a produce request; None for never.
        self.on_answered: Callable[[float | None, float | None], None] | None = None
        #: Whether the work is ours: the slice's lease is renewed only then. Asked in the lease thread.
        self.holds: Callable[[], bool] = lambda: True
        #: Called once if Spark seems to have no free slot for the slice.
        self.on_no_slot: Callable[[], None] | None = None

    async def open(self, pairs: Collection[tuple[TopicPartition, TopicPartition]] = ()) -> None:
        """Start the job and wait until its slice has its configuration and connections to the leaders of ``pairs``.

        ``pairs``: source and target partitions that it is to copy, as far as they are known.
        Raises :class:`SliceLost` when the slice does not come up, or Spark's own errors.
        """
        ticket = self._ticket = self._links.expect(self._name, self.epoch)
        address = self._links.address
        payload = {
            "host": address.host,
            "port": address.port,
            "certificate": address.certificate,
            "token": ticket.token,
            "slice": ticket.slice,
            "epoch": ticket.epoch,
        }
        try:
            self._job = await self._engine.start_job(payload, self._settings.transform_sql)
            self._link, hello = await self._linked(ticket, self._job)
        except BaseException:
            if ticket.linked.done() and not ticket.linked.cancelled() and not ticket.linked.exception():
                ticket.linked.result()[0].abort()  # cancelled just when it came: nobody else would let go of it
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

    async def _linked(self, ticket: Ticket, job: Job) -> tuple[ServedLink, Message]:
        """The link of the slice, once Spark runs it.

        While its slots may all be taken Spark is waited for: another job would start no sooner.
        """
        either: list[asyncio.Future[Any]] = [ticket.linked, job.finished]
        began_s = time.monotonic()
        timeout_s = self._open_timeout_s * self._engine.patience
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
            "%s: Spark (%s) has not run its next slice for %.0f s; its executors may be starting, or there is no free "
            "slot: %s",
            self._name,
            settings.place,
            waited_s,
            settings.slots_advice(),
        )

    def _no_slice(self, job: Job) -> Exception:
        """Why a job ended and no slice of it came."""
        error = job.finished.exception()
        if isinstance(error, SliceCrashed):
            return SliceDefect(str(error))
        if error is not None:
            return error if isinstance(error, (RetriableError, PermanentError)) else SliceLost(str(error))
        return SliceLost(
            f"a Spark task ran for {self._name} and did not reach this worker at {self._links.address}; "
            "link.listener and link.advertised.address say where executors find it"
        )

    def _misused(self, ticket: asyncio.Future[str]) -> None:
        if not ticket.cancelled():
            self._end(SliceLost(ticket.result()))

    async def resume(self, plans: Sequence[PartitionPlan]) -> list[Resumed]:
        """Let the slice find the exact places of these plans; :class:`SliceLost` if it ends meanwhile."""
        self._resuming, self._resumed = {plan.source for plan in plans}, []
        self._all_resumed.clear()
        for wired in await _wired(plans):
            self._send({"type": "resume", "plans": wired})
        if plans:
            await self._until(self._all_resumed.wait())
        return self._resumed

    async def go(
        self, producer: ProducerIdAndEpoch, plans: Iterable[PartitionPlan], transactions: TransactionTerms | None = None
    ) -> None:
        """Copy, in ``transactions`` if any. What the plans say must be stored before.

        The slice is sent nothing before all of it is ready: it takes no other message between two of these.
        """
        # By key a consumer is assigned all of its partitions at once.
        first, *more = [[plan.to_wire() for plan in plans]] if self._settings.by_key else await _wired(plans) or [[]]
        self._send(
            {
                "type": "go",
                "producer": {"producer_id": producer.producer_id, "epoch": producer.epoch},
                "plans": first,
                "transactions": transactions.to_wire() if transactions else None,
            }
        )
        for wired in more:
            self._send({"type": "add", "plans": wired})

    def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
        """The transaction is ended: fill the next one, as ``producer``, with sequences from 0 if it ``restarts``."""
        identity = {"producer_id": producer.producer_id, "epoch": producer.epoch}
        self._send({"type": "begin", "producer": identity, "restarts": restarts})

    def enlisted(self, targets: Collection[TopicPartition], refused: Collection[TopicPartition]) -> None:
        """These target partitions belong to the transaction now; to those ``refused`` we may not write."""
        added, unwritable = [list(one) for one in targets], [list(one) for one in refused]
        self._send({"type": "enlisted", "partitions": added, "refused": unwritable})

    def give_up(self, error: HeliographError) -> None:
        """Nothing that the slice does counts any more, because of ``error``."""
        self._end(error)

    def hold(self, *, is_held: bool) -> None:
        """Read nothing more, or continue. What was read is still written."""
        self._send({"type": "hold", "is_held": is_held})

    async def stop(self) -> list[TopicPartition]:
        """End cleanly; return the partitions whose last batches have no answer.

        A drain takes as long as the target answers. Raises :class:`SliceLost` if the slice does not answer its lease.
        """
        self._send({"type": "stop"})
        await asyncio.wait({self.ended})
        if (error := self.ended.result()) is not None:
            raise error
        return self._unclean

    async def close(self) -> None:
        """Let go of the link and its tasks; a job that does not end by itself is cancelled.

        At once where its slice is known to be gone or never came, for Spark would run it a second time, in a slot that
        the successor needs. Later if it may be about to end, or may still hear that its lease is over.
        """
        await self._scope.close()
        if self._ticket is not None:
            self._links.forget(self._ticket)
        if self._link is not None:
            self._link.abort()
        if self._job is not None and not self._job.finished.done():
            is_over = self._link is None or (self._is_gone and self.ended.done() and self.ended.result() is not None)
            if is_over:
                self._engine.cancel(self._job)
            else:
                asyncio.get_running_loop().call_later(_CANCEL_AFTER_S, self._engine.cancel, self._job)

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _until(self, waited: Coroutine[Any, Any, Any]) -> None:
        """Wait for something the slice will say, or for its end, which is raised."""
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
                await asyncio.sleep(0)  # what waits may be the reports of thousands of partitions
        except SliceSilent as silent:
            self._end(SliceLost(f"{silent} (pid {self.pid})"))
        except LinkClosed:
            self._is_gone = True
            self._end(SliceLost(f"the slice (pid {self.pid}) is gone"))
        except Exception as error:
            log.error("a message of the slice (pid %d) could not be taken", self.pid, exc_info=error)
            self._end(SliceLost(f"a message of the slice (pid {self.pid}) could not be taken: {error!r}"))

    def _heard(self, message: Message) -> None:
        kind = message["type"]
        if kind == "progress":
            for partition in message["partitions"]:
                self._on_progress(PartitionProgress.from_wire(partition))
        elif kind == "alive":
            if self.on_answered is not None:
                self.on_answered(*message["answered_ago_s"])
        elif kind in ("drained", "enlist"):
            if self.on_transaction is not None:
                self.on_transaction(message)
        elif kind == "log":
            log.log(message["level"], "%s", message["text"], extra={CAUSE: _cause_of(message["cause"])})
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
            self._end(None)
        elif kind == "failed":
            self._end(_error_of(message))

    def _end(self, error: HeliographError | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
            if self._link is not None:
                self._link.let_lapse()  # until it is closed, which may take a while


async def _wired(plans: Iterable[PartitionPlan]) -> list[list[dict[str, Any]]]:
    """Return ``plans`` for one message each; others of the loop have their turn in between."""
    wired: list[list[dict[str, Any]]] = []
    for piece in pieces(plans):
        wired.append([plan.to_wire() for plan in piece])
        await asyncio.sleep(0)
    return wired


def _cause_of(told: Sequence[Any] | None) -> Cause | None:
    return None if told is None else Cause(told[0], frozenset(told[1]))


def _error_of(failed: Message) -> SliceLost | SliceFenced | TransformsRefused:
    return _FAULTS.get(failed["fault"], SliceLost)(failed["error"])


async def close_quietly(handle: SliceHandle | None) -> None:
    """Close a handle that may be half open."""
    if handle is not None:
        with contextlib.suppress(RetriableError):
            await handle.close()


#: So many slices in a row may end of a mistake in code before the task fails; what comes of it is not worth a marker
#: in every partition every few seconds.
_MOST: Final = 3
#: A slice that has copied for so long starts the count anew.
_HEALTHY_S: Final = 60.0


class TaskDefective(PermanentError):
    """Slice after slice ended of a mistake in this project's code."""


class Defects:
    """Those of one task in a row."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def count(self, error: RetriableError, lasted_s: float) -> None:
        """Raise :class:`TaskDefective` where trying again has not helped; ``lasted_s``: how long it went well."""
        if not isinstance(error, SliceDefect):
            return
        self._count = 1 if lasted_s > _HEALTHY_S else self._count + 1
        if self._count >= _MOST:
            raise TaskDefective(
                f"{self._name}: {self._count} slices in a row ended of what looks like a defect of Heliograph, the "
                f"last with {error}; positions stand where they were; please report it with this log"
            ) from error

    def forget(self) -> None:
        """An epoch went well."""
        self._count = 0


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Of one task: ``epoch_ms`` is the length of a Spark job, ``flush_interval_ms`` that of Java's offsets.
    ``ways``: how records of a topic of the source are told apart."""

    flow: FlowName
    transactional_id: str
    partitions: tuple[TopicPartition, ...]
    remote_topic: Callable[[str], str]
    slice: SliceSettings
    epoch_ms: int = 3_600_000
    flush_interval_ms: int = 60_000
    reset_to: int = EARLIEST
    logs_skipped: bool = False
    connector: str = ""
    #: why an entry stopped and what to do about it; None: as a connector's user does, over REST
    told: Callable[[Entry], str] | None = None
    gap_policy: GapPolicy = field(default_factory=GapPolicy)
    initial_group: str = ""
    ways: Callable[[str], Ways] = lambda _: ONE_WAY
    transaction_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What the worker lends its tasks."""

    engine: SparkEngine
    links: LinkServer
    clusters: Clusters
    admin: Admin
    #: The task's own, where offset syncs are written; whoever starts the task ends it.
    syncs: SyncWriter | None = None
    #: Where states of partitions are noted.
    states: StateRecords | None = None
    #: Whether the work is ours, asked in the lease thread. By default a predecessor is left to the fence.
    holds: Callable[[], bool] = lambda: True
