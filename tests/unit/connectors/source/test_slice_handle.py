"""The worker's end of a slice, with Spark and the control link in memory."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest
from pyspark import cloudpickle

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.error_causes import Cause, cause_of
from connectors.control_link.protocol import (
    MAX_ENTRIES,
    LinkAddress,
    LinkClosed,
    PartitionPlan,
    PartitionProgress,
    SliceSettings,
)
from connectors.control_link.server import LinkServer, LinkSettings, ServedLink, SliceRefused, SliceSilent, Ticket
from connectors.dataplane import slice_job
from connectors.dataplane.resume import Resumed
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from connectors.source import slice_handle as slice_module
from connectors.source.slice_handle import SliceDefect, SliceFenced, SliceHandle, SliceLost, TransformsRefused
from connectors.spark.config import SparkSettings
from connectors.spark.engine import ExecutorsIncompatible, Job, SliceCrashed, SparkEngine
from tests.kit.logs import plan
from tests.kit.one_loop import OneLoop

SECRET = "planted-secret"
CLIENT, CHAIN = {"sasl_password": SECRET}, {"steps": [{"props": {"key": SECRET}}]}
SETTINGS = SliceSettings("us->eu", 0, CLIENT, CLIENT, lease_ms=60_000, chain=CHAIN)
HELLO = {"pid": 7}


class Wire:
    """The worker's side of a link; ``say`` is what the slice says."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_aborted = self.lapses = False
        self.renewed: list[tuple[float, Callable[[], bool]]] = []
        self._said: asyncio.Queue[dict[str, Any] | LinkClosed] = asyncio.Queue()

    def renew(self, lease_s: float, holds: Callable[[], bool]) -> None:
        self.renewed.append((lease_s, holds))

    def let_lapse(self) -> None:
        self.lapses = True

    def say(self, kind: str, **values: Any) -> None:
        self._said.put_nowait({"type": kind, **values})

    def end(self, end: LinkClosed) -> None:
        self._said.put_nowait(end)

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def receive(self) -> dict[str, Any]:
        said = await self._said.get()
        if isinstance(said, LinkClosed):
            raise said
        return said

    def abort(self) -> None:
        self.is_aborted = True


class Engine:
    """A Spark that does what a test tells it to."""

    def __init__(self, conf: dict[str, str] | None = None) -> None:
        self.settings = SparkSettings(None, conf or {})
        self.payloads: list[dict[str, Any]] = []
        self.jobs: list[Job] = []
        self.cancelled: list[Job] = []
        self.asked_whether_frozen = 0
        self.may_be_full = False
        self.timeout_factor = 1
        self.started = asyncio.Event()
        self.was_asked_thrice = asyncio.Event()

    async def start_job(self, payload: dict[str, Any], query: str) -> Job:
        self.payloads.append(payload)
        self.jobs.append(Job(str(len(self.jobs)), asyncio.get_running_loop().create_future()))
        self.started.set()
        return self.jobs[-1]

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)

    def abandon_if_frozen(self) -> bool:
        self.asked_whether_frozen += 1
        if self.asked_whether_frozen == 3:
            self.was_asked_thrice.set()
        return not self.may_be_full

    def has_run(self) -> None:
        self.timeout_factor = 1


class World:
    def __init__(self, links: LinkServer, engine: Engine) -> None:
        self.links, self.engine, self.wire = links, engine, Wire()
        self.handles: list[SliceHandle] = []
        self.tickets: list[Ticket] = []

    def handle(self, open_timeout_s: float = 60.0) -> SliceHandle:
        engine = cast(SparkEngine, self.engine)
        self.handles.append(SliceHandle(engine, self.links, SETTINGS, 3, lambda _: None, open_timeout_s))
        return self.handles[-1]

    async def until_started(self) -> Ticket:
        await asyncio.wait_for(self.engine.started.wait(), 60)
        return self.tickets[-1]

    def connect(self, ticket: Ticket) -> None:
        ticket.linked.set_result((cast(ServedLink, self.wire), HELLO))


class Links(LinkServer):
    """Without a socket."""

    def __init__(self, world_tickets: list[Ticket]) -> None:
        super().__init__(LinkSettings(), OneLoop())
        self._made = world_tickets

    @property
    def address(self) -> LinkAddress:
        return LinkAddress("127.0.0.1", 4711)

    def expect(self, slice_: str, epoch: int) -> Ticket:
        self._made.append(super().expect(slice_, epoch))
        return self._made[-1]


def world_with(conf: dict[str, str] | None = None) -> World:
    made: list[Ticket] = []
    world = World(Links(made), Engine(conf))
    world.tickets = made
    return world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = world_with()
    yield made
    for handle in made.handles:
        await handle.close()


async def opened(world: World, handle: SliceHandle | None = None) -> SliceHandle:
    handle = handle or world.handle()
    await comes_up(world, asyncio.create_task(handle.open()))
    return handle


async def comes_up(world: World, opening: asyncio.Task[None]) -> None:
    world.connect(await world.until_started())
    world.wire.say("ready")
    await asyncio.wait_for(opening, 60)


async def test_what_spark_is_given_holds_no_secret_but_the_token(world: World) -> None:
    await opened(world)
    (payload,) = world.engine.payloads
    assert set(payload) == {"host", "port", "certificate", "token", "slice", "epoch"}
    jobs = [partial(slice_job.run, payload), partial(slice_job.run_in_arrow, payload)]
    for shipped in (json.dumps(payload).encode(), *map(cloudpickle.dumps, jobs)):
        assert world.tickets[0].token.encode() in shipped
        assert SECRET.encode() not in shipped
    assert SECRET in json.dumps(world.wire.sent), "it goes over the link"
    assert SECRET not in repr(world.tickets) + repr(SETTINGS)


async def test_a_token_used_twice_ends_the_epoch(world: World) -> None:
    handle = await opened(world)
    world.tickets[0].misused.set_result("came a second time")
    error = await asyncio.wait_for(handle.ended, 60)
    assert isinstance(error, SliceLost)
    assert "second time" in str(error)
    assert world.wire.lapses, "its lease ends without the close"


async def test_a_closed_slice_leaves_no_ticket(world: World) -> None:
    handle = await opened(world)
    await handle.close()
    assert world.links._tickets == {}
    assert world.wire.is_aborted


async def test_a_refused_slice_is_told_of_at_once_and_leaves_no_ticket(world: World) -> None:
    handle = world.handle()
    opening = asyncio.create_task(handle.open())
    (await world.until_started()).linked.set_exception(SliceRefused("it runs other code"))
    with pytest.raises(SliceRefused, match="other code"):
        await asyncio.wait_for(opening, 60)
    assert world.links._tickets == {}


@pytest.mark.parametrize(
    ("failed", "raised"),
    [
        (SliceCrashed("TypeError: spoilt"), SliceDefect),
        (ExecutorsIncompatible("cannot import crc32c"), ExecutorsIncompatible),
        (RetriableError("cancelled"), RetriableError),
    ],
)
async def test_why_a_job_ended_without_a_slice(world: World, failed: Exception, raised: type[Exception]) -> None:
    opening = asyncio.create_task(world.handle().open())
    await world.until_started()
    world.engine.jobs[0].finished.set_exception(failed)
    with pytest.raises(raised, match=str(failed)):
        await asyncio.wait_for(opening, 60)


async def test_a_task_that_could_not_reach_the_worker_names_the_keys(world: World) -> None:
    opening = asyncio.create_task(world.handle().open())
    await world.until_started()
    world.engine.jobs[0].finished.set_result("")
    with pytest.raises(SliceLost, match=r"127\.0\.0\.1:4711.*link\.advertised\.address"):
        await asyncio.wait_for(opening, 60)


async def test_a_spark_of_this_machine_that_runs_nothing_is_abandoned(world: World) -> None:
    with pytest.raises(SliceLost, match="no slice connected"):
        await asyncio.wait_for(world.handle(open_timeout_s=0.01).open(), 60)
    assert world.engine.asked_whether_frozen == 1


async def test_how_long_a_spark_has_is_the_engines_to_say(world: World) -> None:
    world.engine.timeout_factor = 0
    with pytest.raises(SliceLost, match="no slice connected"):
        await asyncio.wait_for(world.handle(open_timeout_s=3_600).open(), 60)


@pytest.mark.parametrize(
    ("conf", "advice"),
    [
        ({"spark.master": "spark://m:7077"}, "spark.cores.max"),
        ({"spark.remote": "sc://s"}, "Connect server more cores"),
    ],
)
async def test_a_cluster_without_a_slot_is_left_alone_and_people_are_told_what_to_raise(
    conf: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slice_module, "_NO_SLOT_S", 0.001)
    world = world_with(conf)
    world.engine.may_be_full = True
    handle = world.handle(open_timeout_s=0.005)
    with caplog.at_level(logging.WARNING):
        opening = asyncio.create_task(handle.open())
        await asyncio.wait_for(world.engine.was_asked_thrice.wait(), 60)
        assert not opening.done(), "it is waited for"
        await comes_up(world, opening)
    assert len(world.engine.jobs) == 1
    assert len(caplog.records) >= 2
    assert all(advice in one.getMessage() and "tasks.max" in one.getMessage() for one in caplog.records)
    await handle.close()


async def test_a_predecessor_is_asked_to_make_room_before_the_log_complains(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slice_module, "_NO_SLOT_S", 0.01)
    world = world_with({"spark.master": "local[1]"})
    handle, no_slot = world.handle(), asyncio.Event()

    def make_room() -> None:
        monkeypatch.setattr(slice_module, "_NO_SLOT_S", 3600.0)
        no_slot.set()

    handle.on_no_slot = make_room
    opening = asyncio.create_task(handle.open())
    await world.until_started()
    await asyncio.sleep(0.05)
    assert not no_slot.is_set(), "Spark does not answer or has free slots"
    world.engine.may_be_full = True
    await asyncio.wait_for(no_slot.wait(), 60)
    assert not caplog.records
    await comes_up(world, opening)
    await handle.close()


async def test_a_job_whose_slice_never_came_is_cancelled_at_once(world: World) -> None:
    handle = world.handle()
    opening = asyncio.create_task(handle.open())
    await world.until_started()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await handle.close()
    assert world.engine.cancelled == world.engine.jobs


async def test_a_job_whose_slice_is_done_may_end_by_itself(world: World) -> None:
    handle = await opened(world)
    world.wire.say("done", unclean=[])
    assert await asyncio.wait_for(handle.ended, 60) is None
    await handle.close()
    assert world.engine.cancelled == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("Fenced", SliceFenced),
        ("Defect", SliceDefect),
        ("ClusterUnreachable", SliceLost),
        ("TransformUnusable", TransformsRefused),
    ],
)
async def test_what_a_slice_failed_of_is_kept_apart(
    world: World, fault: str, kind: type[SliceLost | SliceFenced | TransformsRefused]
) -> None:
    handle = await opened(world)
    world.wire.say("failed", error="why", fault=fault)
    error = await asyncio.wait_for(handle.ended, 60)
    assert type(error) is kind
    assert isinstance(error, PermanentError) is (fault in ("Fenced", "TransformUnusable"))


def plans(count: int) -> list[PartitionPlan]:
    return [plan("a" * 246, index) for index in range(count)]


async def test_thousands_of_partitions_go_in_messages_of_bounded_length(world: World) -> None:
    handle = await opened(world)
    world.wire.sent.clear()
    await handle.go(ProducerIdAndEpoch(7, 0), plans(1200))
    lengths = [(one["type"], len(one["plans"])) for one in world.wire.sent if one["type"] != "lease"]
    assert lengths == [("go", MAX_ENTRIES), ("add", MAX_ENTRIES), ("add", 1200 - 2 * MAX_ENTRIES)]
    await handle.go(ProducerIdAndEpoch(7, 0), [])
    assert world.wire.sent[-1]["plans"] == []


async def test_others_of_the_loop_have_their_turn_between_the_pieces_of_a_list(world: World) -> None:
    handle, turns = await opened(world), 0
    going = asyncio.create_task(handle.go(ProducerIdAndEpoch(7, 0), plans(10 * MAX_ENTRIES)))
    while not going.done():
        assert not any(one["type"] == "add" for one in world.wire.sent), "all or nothing of it is on its way"
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    assert len([one for one in world.wire.sent if one["type"] == "add"]) == 9


async def test_others_of_the_loop_have_their_turn_between_the_reports_that_wait(world: World) -> None:
    reported = list[PartitionProgress]()
    handle = world.handle()
    handle._on_progress = reported.append
    await opened(world, handle)
    for index in range(3):
        one = PartitionProgress(TopicPartition("a", index), 1, 0, 1, 1, 1, 0, 5, 1, 10, {}, [(0, 0, 1)])
        world.wire.say("progress", partitions=[one.to_wire()])
    seen = set[int]()
    async with asyncio.timeout(60):
        while len(reported) < 3:
            seen.add(len(reported))
            await asyncio.sleep(0)
    assert seen == {0, 1, 2}
    assert (reported[2].source, reported[2].runs) == (TopicPartition("a", 2), [(0, 0, 1)])


async def test_a_warning_of_a_slice_comes_with_its_cause(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await opened(world)
    lines = {"level": logging.WARNING, "text": "node 1: no answer"}
    world.wire.say("log", **lines, cause=["no answer", ["a:1"]])
    world.wire.say("log", **lines, cause=None)
    async with asyncio.timeout(60):
        while len(caplog.records) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert [cause_of(record) for record in caplog.records] == [Cause("no answer", frozenset({"a:1"})), None]


async def test_partitions_are_resumed_one_message_each(world: World) -> None:
    handle = await opened(world)
    wanted = plans(MAX_ENTRIES + 1)
    resuming, sent = asyncio.create_task(handle.resume(wanted)), list[int]()
    async with asyncio.timeout(60):
        while len(sent) < 2:
            await asyncio.sleep(0)
            sent = [len(one["plans"]) for one in world.wire.sent if one["type"] == "resume"]
    assert sent == [MAX_ENTRIES, 1]
    for one in reversed(wanted):
        assert not resuming.done()
        world.wire.say("resumed", partition=Resumed(one).to_wire())
    assert {found.plan for found in await asyncio.wait_for(resuming, 60)} == set(wanted)
    assert await handle.resume([]) == []


async def test_a_slice_is_renewed_while_its_work_is_ours(world: World) -> None:
    ours = [True]
    handle = world.handle()
    handle.holds = lambda: ours[0]
    await opened(world, handle)
    ((lease_s, holds),) = world.wire.renewed
    assert lease_s == SETTINGS.lease_ms / 1000
    assert holds()
    ours[0] = False
    assert not holds()


async def test_a_stop_waits_for_a_slice_until_it_falls_silent(world: World) -> None:
    handle = await opened(world)
    stopping = asyncio.create_task(handle.stop())
    for _ in range(30):
        await asyncio.sleep(0)
        world.wire.say("alive", answered_ago_s=[None, None], throttled_ms=[0, 0])
    assert not stopping.done()
    world.wire.end(SliceSilent("nothing heard from the slice for 60.0 s"))
    with pytest.raises(SliceLost, match=r"nothing heard from the slice for 60\.0 s \(pid 7\)"):
        await asyncio.wait_for(stopping, 60)
    assert world.wire.lapses
    await handle.close()
    assert world.engine.cancelled == [], "it may still hear that its lease is over"
