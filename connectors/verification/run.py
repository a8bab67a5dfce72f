"""Verify a flow: hand its ranges to Spark tasks, add what they find, and store how far each partition is.

A task takes one range after the other over its control link, so a slow one holds nothing up. If Spark loses a task, the
range goes to the next one. Results are added in the order of a partition's ranges, so a run that was killed and is
continued ends with the same report.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.core.errors import ConfigError, HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, wall_ms
from connect.kafka.log.topic_admin import Admin
from connect.kafka.threads import LeaseThread
from connectors.config.mm2_properties import Flow
from connectors.control_link.protocol import PartitionPlan
from connectors.control_link.server import LinkServer, LinkSettings, ServedLink
from connectors.dataplane.slice_job import FUNCTION
from connectors.formats.types import TopicPartition
from connectors.internal_topics import Records, record_settings
from connectors.offset_map.reader import MapReader
from connectors.spark.engine import SparkEngine
from connectors.transforms.target_names import FindPlugin, chain_plan
from connectors.verification import state
from connectors.verification.planning import FlowClusters, PartitionScope, VerifyOptions, plan_partitions
from connectors.verification.ranges import RangePlan, RangeResult
from connectors.verification.report import ReadSample, VerificationResult

log = logging.getLogger(__name__)

_CLIENT_ID: Final = "heliograph-verify"
_PROGRESS_TIMEOUT_S: Final = 30.0
_LEASE_S: Final = 60.0
_START_S: Final = 120.0
_STORE_S: Final = 1.0
_SHOW_S: Final = 0.5
_MOST_SAMPLES: Final = 300
#: Tasks that Spark may lose before the run ends.
_MOST_LOST: Final = 5
_LARGEST_FETCH_BYTES: Final = 8 * 1024 * 1024
_LEAST_FETCH_BYTES: Final = 64 * 1024
#: Two fetches of each side, twice for what is decoded.
_FETCHES_HELD: Final = 8
#: The part of a task's memory for records without a partner, and for those that are aligned.
_HELD_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: source offsets, source bytes read by it, and differences so far. ``left_s``: -1 if unknown.
    ``is_spark_up``: whether Spark has run a task, in this run or one before."""

    flow: str
    offsets: int
    offsets_total: int
    bytes: int
    bytes_s: float
    left_s: float
    differences: int
    is_spark_up: bool


@dataclass(slots=True)
class _Ranges:
    """The results of one partition that are waiting for an earlier range's."""

    scope: PartitionScope
    next_given: int = 0
    next_added: int = 0
    waiting: dict[int, RangeResult] = field(default_factory=dict)


class Verification:
    """Verifies one flow with tasks of a Spark; :meth:`run` may be called again."""

    def __init__(
        self,
        flow: Flow,
        clusters: FlowClusters,
        engine: SparkEngine,
        links: LinkServer,
        options: VerifyOptions,
        find_plugin: FindPlugin,
        show: Callable[[Progress], None],
    ) -> None:
        settings = flow.settings()
        self._flow, self._settings, self._clusters, self._engine = flow, settings, clusters, engine
        self._links, self._options, self._show = links, options, show
        self._chain = chain_plan(settings.transforms, settings.source_alias, find_plugin, settings.names)
        clients = flow.clients()
        self._clients = (clients.replication_consumer(0), clients.target_admin())
        self._reader = MapReader(clusters.store, settings.map_topic, connector=settings.name)
        where = clusters.store, clusters.admin, record_settings(settings)
        self._records = Records(state.VERIFIED, *where)
        self._last = Records(state.LAST_RUN, *where)
        self._running: deque[_Ranges] = deque()
        self._again: deque[tuple[_Ranges, int, RangePlan]] = deque()
        #: None deletes what is stored.
        self._unstored: dict[TopicPartition, state.Verified | None] = {}
        self._planning = asyncio.Lock()
        self._lost = 0
        self._numbers = 0
        self._read_bytes = 0
        self._in_work: dict[int, int] = {}
        #: When the first task began to read; Spark's start comes before.
        self._began_s: float | None = None
        self._is_spark_up = False
        self._total = 0
        self._samples: list[ReadSample] = []

    async def run(self) -> VerificationResult:
        """Verify what is not verified yet. Raises ConfigError, and what the clusters, Spark and the tasks raise."""
        began_ms, self._began_s, options = wall_ms(), None, self._options
        deadline_s = None if options.within_s is None else asyncio.get_running_loop().time() + options.within_s
        stored, recreated = None, frozenset[state.TopicPair]()
        here, there = self._clusters.source, self._clusters.target
        try:
            async with asyncio.timeout_at(deadline_s):
                stored = {} if options.is_part else await self._records.load()
                if deadline_s is not None or options.topics:  # else the plan says what is there
                    pairs = {one.pair for one in stored.values()}
                    recreated = await state.recreated_pairs(pairs, here, there) or recreated
                scopes, unread = await plan_partitions(self._settings, self._clusters, self._reader, stored, options)
        except TimeoutError:
            if deadline_s is None:
                raise
            return self._unplanned(
                stored and {one: each for one, each in stored.items() if each.pair not in recreated}, began_ms
            )
        self._unstored |= _outdated(stored, scopes)
        if not unread:  # what was not found is gone
            found = {one.source for one in scopes}
            self._unstored |= dict.fromkeys(one for one in stored if options.wants(one.topic) and one not in found)
        if self._options.is_full:  # a run that continues this one, if it is killed, finds nothing older
            self._unstored |= {one.source: one.verified for one in scopes}
            await self._store()
            self._options = replace(self._options, is_full=False)
        self._running = deque(_Ranges(one) for one in scopes)
        self._read_bytes, self._total, self._samples = 0, sum(one.offsets for one in scopes), []
        everyone, count = list(self._running), max(self._options.tasks, 1)
        async with Scope(f"verify {self._flow}") as scope:
            tasks = [scope.spawn(self._task(), f"verification task {index}") for index in range(count)]
            scope.spawn(self._store_forever(), "store")
            scope.spawn(self._show_forever(everyone), "show")
            is_late = not await _all_of(tasks, deadline_s)
        await self._store()  # also what a store has put back that the end of the scope has cancelled
        read_s = self._spent_s()
        self._show(self._progress(everyone))
        unread += [f"{one.source}: {one.failure}" for one in scopes if one.failure]
        result = VerificationResult(
            flow=str(self._flow),
            began_ms=began_ms,
            ended_ms=wall_ms(),
            settings=_shown(options),
            partitions=tuple(one.verified.result for one in scopes),
            is_complete=not unread and not is_late,
            read_bytes=self._read_bytes,
            read_s=read_s,
            unread=tuple(unread),
            samples=tuple(self._samples),
        )
        if not options.is_part and not (is_late and result.is_equal):
            known = [one.verified for one in scopes]
            left = [each for one, each in stored.items() if not options.wants(one.topic)]
            known += [one for one in left if one.pair not in recreated]
            offsets, is_whole = self._progress(everyone).offsets, not options.topics and not is_late
            try:
                before = (await self._last.load()).get("", state.LastVerification())
                await self._last.store({"": state.after_run(before, result, offsets, known, is_whole=is_whole)})
            except HeliographError as error:  # the result is more than its record
                log.warning("%s: status and metrics do not show this verification: %s", self._flow, error)
        return result

    def _unplanned(self, stored: dict[TopicPartition, state.Verified] | None, began_ms: int) -> VerificationResult:
        """Return what earlier runs found. Raises RetriableError if that was not read in time either."""
        why = f"offsets could not be read within {self._options.within_s:g} s, so nothing more was compared"
        if stored is None:
            raise RetriableError(f"{self._flow}: {why}, and what earlier runs found is not known. Give it more time")
        return VerificationResult(
            flow=str(self._flow),
            began_ms=began_ms,
            ended_ms=wall_ms(),
            settings=_shown(self._options),
            partitions=tuple(stored[one].result for one in sorted(stored)),
            is_complete=False,
            unread=(why,),
        )

    async def _next(self) -> tuple[_Ranges, int, RangePlan] | None:
        async with self._planning:
            if self._again:
                return self._again.popleft()
            while self._running:
                one = self._running.popleft()
                plan = await one.scope.next_range(self._reader)
                if plan is not None or (one.scope.is_open and not one.scope.failure):
                    self._running.append(one)
                if plan is not None:
                    number, one.next_given = one.next_given, one.next_given + 1
                    return one, number, plan
            return None

    def _add(self, one: _Ranges, number: int, found: RangeResult) -> None:
        one.waiting[number] = found
        while one.next_added in one.waiting:
            result = one.waiting.pop(one.next_added)
            one.next_added += 1
            one.scope.verified = one.scope.verified.with_range(result, wall_ms())
            self._unstored[one.scope.source] = one.scope.verified

    async def _task(self) -> None:
        """Let a task of Spark verify ranges until none is left; start another if it is lost."""
        while (given := await self._next()) is not None:
            waiting: list[tuple[_Ranges, int, RangePlan]] = [given]
            try:
                async with self._opened() as link:
                    while waiting:
                        await self._verify(link, *waiting[0])
                        waiting.clear()
                        if (given := await self._next()) is not None:
                            waiting.append(given)
                    link.send({"type": "stop"})
                    return
            except RetriableError as error:
                self._again.extend(waiting)
                self._lost += 1
                if self._lost >= _MOST_LOST:
                    raise
                log.warning("%s: a task of the verification was lost: %s; starting another", self._flow, error)

    async def _verify(self, link: ServedLink, one: _Ranges, number: int, plan: RangePlan) -> None:
        plan = replace(plan, held_bytes=self._options.memory_bytes // _HELD_SHARE)
        ways = self._settings.names.ways(plan.topic)
        places = plan.source, None, plan.target, None, plan.begin, -1, plan.target_begin
        partition = PartitionPlan(*places, next_sequence=0, pipelined=False, ways=ways)  # for the transforms
        link.send({"type": "range", "plan": plan.to_wire(), "partition": partition.to_wire()})
        while (message := await link.receive())["type"] not in ("result", "failed"):
            if message["type"] == "progress":
                self._in_work[id(link)] = message["bytes"]
        self._in_work.pop(id(link), None)
        if message["type"] == "failed":
            one.scope.failure = message["error"]
        else:
            found = RangeResult.from_wire(message["result"])
            self._read_bytes += found.bytes
            self._add(one, number, found)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[ServedLink]:
        self._numbers += 1
        ticket = self._links.expect(f"verification of {self._flow}", self._numbers)
        payload = {**self._links.payload(ticket), FUNCTION: "connectors.verification.task:run_task"}
        link = None
        try:
            job = await self._engine.start_job(payload, self._settings.transform_sql)
            either: list[asyncio.Future[Any]] = [ticket.linked, job.finished]
            await asyncio.wait(either, timeout=_START_S, return_when="FIRST_COMPLETED")
            if not ticket.linked.done():
                if not job.finished.done() and self._engine.may_be_full:
                    settings = self._engine.settings
                    raise RetriableError(
                        f"Spark ({settings.place}) has run no task of the verification for {_START_S:.0f} s: its "
                        f"executors may be starting, or there is no free slot: {settings.slots_advice()}"
                    )
                reason = "it did not connect" if not job.finished.done() else str(job.finished.exception() or "")
                raise RetriableError(
                    f"Spark ran no task of the verification: {reason or 'it ended at once'}; see link.listener and "
                    "link.advertised.address"
                )
            link, _ = ticket.linked.result()
            link.renew(_LEASE_S, lambda: True)
            link.send(self._configured())
            self._began_s, self._is_spark_up = self._began_s or time.monotonic(), True
            yield link
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await asyncio.shield(job.finished)
        finally:
            if link is not None:
                self._in_work.pop(id(link), None)
                link.let_lapse()
                link.hang_up()
            self._links.forget(ticket)

    def _configured(self) -> dict[str, Any]:
        source, target = self._clients
        options = self._options
        fetch_bytes = options.memory_bytes // _FETCHES_HELD
        return {
            "type": "config",
            "source": source.with_client_id(_CLIENT_ID).to_wire(),
            "target": target.with_client_id(_CLIENT_ID).to_wire(),
            "aliases": {"source": self._flow.source, "target": self._flow.target},
            "is_committed": self._settings.read_committed,
            "fetch_bytes": min(max(fetch_bytes, _LEAST_FETCH_BYTES), _LARGEST_FETCH_BYTES),
            "bytes_s": options.bytes_s / max(options.tasks, 1),
            "chain": self._chain.to_wire() if self._chain is not None else None,
        }

    def _spent_s(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    async def _store_forever(self) -> None:
        while True:
            await asyncio.sleep(_STORE_S)
            try:
                await self._store()
            except RetriableError as error:
                log.warning("%s: what is verified could not be stored: %s; trying again", self._flow, error)

    async def _store(self) -> None:
        if self._unstored and not self._options.is_part:
            storing, self._unstored = self._unstored, {}
            try:
                await self._records.store(storing)
            except BaseException:  # a cancelled one too, because the last store follows
                self._unstored = {**storing, **self._unstored}
                raise

    async def _show_forever(self, everyone: list[_Ranges]) -> None:
        while True:
            await asyncio.sleep(_SHOW_S)
            progress = self._progress(everyone)
            self._samples.append(ReadSample(wall_ms(), progress.bytes))
            if len(self._samples) > _MOST_SAMPLES:  # a long run has them further apart
                del self._samples[1:-1:2]
            self._show(progress)

    def _progress(self, everyone: list[_Ranges]) -> Progress:
        offsets = sum(
            max(min(one.scope.verified.result.verified_to, one.scope.first + one.scope.offsets) - one.scope.first, 0)
            for one in everyone
        )
        read = self._read_bytes + sum(self._in_work.values())
        spent_s = self._spent_s()
        left = self._total - offsets
        return Progress(
            flow=str(self._flow),
            offsets=offsets,
            offsets_total=self._total,
            bytes=read,
            bytes_s=read / max(spent_s, 0.001),
            left_s=left * spent_s / offsets if offsets else -1.0,
            differences=sum(one.scope.verified.result.differences_total for one in everyone),
            is_spark_up=self._is_spark_up,
        )


def _outdated(
    stored: Mapping[TopicPartition, state.Verified], scopes: Sequence[PartitionScope]
) -> dict[TopicPartition, state.Verified]:
    """Return what begins again although more is stored: the results of a log that was recreated or truncated."""
    return {
        one.source: one.verified
        for one in scopes
        if not one.verified.result.verified_ms and stored.get(one.source) not in (None, one.verified)
    }


async def _all_of(tasks: list[asyncio.Task[None]], deadline_s: float | None) -> bool:
    """Wait for all, and raise what one of them raises; at the deadline cancel the others and return False."""
    left_s = None if deadline_s is None else max(deadline_s - asyncio.get_running_loop().time(), 0.0)
    done, pending = await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_EXCEPTION)
    for one in pending:
        one.cancel()
    for one in done:
        one.result()
    if pending:
        await asyncio.wait(pending)
    return not pending


def _shown(options: VerifyOptions) -> dict[str, Any]:
    return {
        "topics": list(options.topics),
        "from_ms": options.from_ms,
        "to_ms": options.to_ms,
        "full": options.is_full,
        "rate_bytes_s": options.bytes_s,
        "memory_bytes": options.memory_bytes,
        "tasks": options.tasks,
    }


@asynccontextmanager
async def verifying(
    flow: Flow, engine: SparkEngine, options: VerifyOptions, find_plugin: FindPlugin, show: Callable[[Progress], None]
) -> AsyncIterator[Verification]:
    """Open what a verification of ``flow`` needs; the caller stops ``engine``. Raises ConfigError, SecurityError or
    PermanentError."""
    settings, clients, leases = flow.settings(), flow.clients(), LeaseThread(_PROGRESS_TIMEOUT_S)
    link = LinkSettings.parse(settings.link_listener, settings.link_advertised_address)
    async with AsyncExitStack() as closing:
        leases.start()
        closing.push_async_callback(leases.stop)
        links = LinkServer(link, leases, engine.code)
        try:
            await links.start()
        except ConfigError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
                raise
            links = LinkServer(link.with_free_port(), leases, engine.code)
            await links.start()
            log.info("port %d is taken, so Spark tasks reach this verification at %s", link.port, links.address)
        closing.push_async_callback(links.stop)
        clusters = FlowClusters(
            Cluster(clients.source_admin(), flow.source),
            Cluster(clients.target_admin(), flow.target),
            Cluster(clients.offsets(), flow.target),
            Admin(clients.target_admin(), flow.target),
        )
        for one in (clusters.source, clusters.target, clusters.store, clusters.admin):
            closing.push_async_callback(one.close)
        yield Verification(flow, clusters, engine, links, options, find_plugin, show)
