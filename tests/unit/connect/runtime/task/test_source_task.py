"""The loop of a source task, in a runner, with a producer that obeys the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import pytest

from connect.api.convert import DataError
from connect.api.source import SourceRecord, SourceTask
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import State, TargetState, TaskId
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import SecretMask
from connect.runtime.task.connector_offsets import ConnectorOffsets, encoded_key
from connect.runtime.task.delivery_guarantees import AtLeastOnceDelivery
from connect.runtime.task.record_conversion import Conversion, ErrorHandler, ErrorSettings, make_converters, make_steps
from connect.runtime.task.record_delivery import TaskCallbacks
from connect.runtime.task.source_config import TopicCreation
from connect.runtime.task.source_task import SourceWork, TaskContext, TaskRunner
from connect.runtime.task.task_control import Starts, TaskControl
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import Heard, ObedientProducer, TestConnector, memory_topic, plugins, record, worker_config

TASK = TaskId("c", 0)
Poll = Callable[[], Awaitable[Sequence[SourceRecord] | None]]


class Scripted(SourceTask):
    """Polls give what the test wrote down, then wait for ever."""

    def __init__(self, *polls: Sequence[SourceRecord] | Exception | None) -> None:
        self.polls = list(polls)
        self.log: list[str] = []
        self.props: Mapping[str, str] = {}

    async def start(self, props: Mapping[str, str]) -> None:
        self.props = props
        self.log.append("start")

    async def poll(self) -> Sequence[SourceRecord] | None:
        if not self.polls:
            self.log.append("waiting")
            await asyncio.Event().wait()
        result = self.polls.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def stop(self) -> None:
        self.log.append("stop")


class Stand:
    """A task in its runner."""

    def __init__(
        self,
        task: SourceTask,
        props: Mapping[str, str] | None = None,
        errors: ErrorSettings | None = None,
        target: TargetState = TargetState.STARTED,
    ) -> None:
        self.heard = Heard()
        self.producer = ObedientProducer(acks_at_once=True)
        self.topic, self.offsets = memory_topic()
        self._task = task
        self._props = dict(props or {})
        self._errors = errors or ErrorSettings()
        self.runner = TaskRunner(TASK, self._make, target, self.heard, Starts())
        self.running = self.runner.begin()

    async def _make(self, runner: TaskRunner) -> SourceWork:
        thread = PluginThread("task")
        known, config, found = runner.known, worker_config(), plugins(TestConnector)
        errors = ErrorHandler(TASK, self._errors, runner.counters, known.secrets, runner.control.stopping)
        offsets = ConnectorOffsets("c", self.topic)
        delivery = AtLeastOnceDelivery(
            TASK,
            self.producer,
            offsets,
            TaskCallbacks(TASK, self._task, known.secrets, thread),
            partial(self.heard.topic_used, task=TASK),
            errors,
            runner.counters,
            flush_interval_ms=60_000,
            flush_timeout_ms=5000,
        )
        conversion = Conversion(make_steps(self._props, found), make_converters(self._props, config, found), errors)
        context = TaskContext({"own": "config"}, offsets, thread)
        return SourceWork(
            TASK, self._task, context, delivery, conversion, TopicCreation([], None), runner.counters, known.secrets
        )

    async def stop(self) -> list[State]:
        self.runner.stop()
        await self.running
        return self.heard.of(TASK)

    @property
    def sent(self) -> list[bytes | None]:
        return [each.value for each in self.producer.sent]


@in_virtual_time
async def test_from_start_to_end() -> None:
    task = Scripted([record(1), record(2)], None, RetriableError("away"), [], [record(3)])
    stand = Stand(task)
    await asyncio.sleep(1)
    assert stand.sent == [b"v1", b"v2", b"v3"]
    assert task.props == task.context.configs == {"own": "config"}
    assert await task.context.offset_reader.offset({"p": 0}) is None
    assert task.context.transaction_context is None
    assert "own" not in repr(task.context), "configs have passwords"
    assert await stand.stop() == [State.RUNNING, State.UNASSIGNED]
    assert task.log == ["start", "waiting", "stop"]
    assert await ConnectorOffsets("c", stand.topic).offset({"p": 0}) == {"n": 3}
    counters = stand.runner.counters
    assert (counters.polled, counters.written, counters.active) == (3, 3, 0)
    assert (counters.batch_records.recorded, counters.batch_records.most(counters.clock())) == (2, 2)


@in_virtual_time
async def test_an_empty_poll_does_not_spin() -> None:
    class Careless(Scripted):
        count = 0

        async def poll(self) -> None:
            self.count += 1

    task = Careless()
    stand = Stand(task)
    await asyncio.sleep(1)
    assert 10 < task.count <= 201
    await stand.stop()


@pytest.mark.parametrize("error", [ValueError("no more"), TimeoutError("the task's own")], ids=repr)
@in_virtual_time
async def test_any_other_error_fails_the_task_and_what_arrived_is_stored(error: Exception) -> None:
    task = Scripted([record(1)], error)
    stand = Stand(task)
    await stand.running
    assert stand.heard.of(TASK) == [State.RUNNING, State.FAILED]
    trace = stand.heard.traces[TASK]
    assert trace is not None
    assert f"{type(error).__name__}: {error}" in trace
    assert await ConnectorOffsets("c", stand.topic).offset({"p": 0}) == {"n": 1}
    assert task.log[-1] == "stop"


@in_virtual_time
async def test_a_task_that_does_not_start() -> None:
    class Refusing(Scripted):
        async def start(self, props: Mapping[str, str]) -> None:
            raise PermanentError("no such file")

    task = Refusing()
    stand = Stand(task)
    await stand.running
    assert stand.heard.of(TASK) == [State.FAILED]
    assert task.log == ["stop"]
    assert stand.producer.closed_with_s == 30


@in_virtual_time
async def test_pause_finishes_the_batch_and_resume_goes_on() -> None:
    class Ticking(Scripted):
        number = 0

        async def poll(self) -> Sequence[SourceRecord]:
            await asyncio.sleep(0.1)
            self.number += 1
            return [record(self.number)]

    stand = Stand(Ticking())
    await asyncio.sleep(1.05)
    stand.runner.control.set_target(TargetState.PAUSED)
    await asyncio.sleep(1)
    assert len(stand.sent) == 11
    await asyncio.sleep(5)
    assert len(stand.sent) == 11
    stand.runner.control.set_target(TargetState.STARTED)
    await asyncio.sleep(1.05)
    assert len(stand.sent) == 21
    assert await stand.stop() == [State.RUNNING, State.PAUSED, State.RUNNING, State.UNASSIGNED]


@in_virtual_time
async def test_a_task_that_is_made_paused_starts_when_it_is_resumed() -> None:
    task = Scripted([record(1)])
    stand = Stand(task, target=TargetState.PAUSED)
    await asyncio.sleep(1)
    assert (stand.heard.of(TASK), task.log, stand.producer.log) == ([State.PAUSED], [], [])
    stand.runner.control.set_target(TargetState.STARTED)
    await asyncio.sleep(1)
    assert stand.sent == [b"v1"]
    assert await stand.stop() == [State.PAUSED, State.RUNNING, State.UNASSIGNED]
    again = Stand(Scripted(), target=TargetState.PAUSED)
    await asyncio.sleep(1)
    assert await again.stop() == [State.PAUSED, State.UNASSIGNED]


@in_virtual_time
async def test_what_was_polled_when_the_stop_came_is_still_sent() -> None:
    class LastWord(Scripted):
        async def poll(self) -> Sequence[SourceRecord]:
            try:
                await asyncio.Event().wait()
            finally:
                self.log.append("told")
            return []

    task = LastWord()
    stand = Stand(task)
    await asyncio.sleep(1)
    began_s = asyncio.get_running_loop().time()
    assert await stand.stop() == [State.RUNNING, State.UNASSIGNED]
    assert asyncio.get_running_loop().time() - began_s < 0.1
    assert task.log == ["start", "told", "stop"]

    class Finishing(Scripted):
        async def poll(self) -> Sequence[SourceRecord]:
            stand.runner.stop()
            return [record(1)]

    stand = Stand(Finishing())
    await stand.running
    assert stand.sent == [b"v1"]


@in_virtual_time
async def test_a_record_that_is_not_taken_is_sent_again_with_the_rest_of_its_batch() -> None:
    stand = Stand(Scripted([record(1), record(2), record(3)]))
    stand.producer.refusing.extend([RetriableError("no room"), RetriableError("no room")])
    await asyncio.sleep(0.05)
    assert stand.sent == []
    await asyncio.sleep(1)
    assert stand.sent == [b"v1", b"v2", b"v3"]
    await stand.stop()
    assert stand.runner.counters.polled == stand.runner.counters.written == 3


@in_virtual_time
async def test_transforms_change_and_drop_records() -> None:
    props = {
        "transforms": "route, drop",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "(.*)",
        "transforms.route.replacement": "x-$1",
        "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.drop.predicate": "named",
        "transforms.drop.negate": "true",
        "predicates": "named",
        "predicates.named.type": "TopicNameMatches",
        "predicates.named.pattern": "x-a.*",
    }

    stand = Stand(Scripted([record(1, topic="a1"), record(2, topic="b1"), record(3, topic="a2")]), props)
    await asyncio.sleep(1)
    assert [each.topic for each in stand.producer.sent] == ["x-a1", "x-a2"]
    await stand.stop()
    assert (stand.runner.counters.written, stand.runner.counters.active) == (2, 0)


class Unconvertible(str):
    """What a converter trips over."""

    def __str__(self) -> str:
        raise DataError("cannot be converted")


BAD = SourceRecord({"p": 0}, {"n": 2}, "t", Unconvertible())


@pytest.mark.parametrize("tolerates", [True, False])
@in_virtual_time
async def test_a_record_that_cannot_be_converted(tolerates: bool) -> None:
    errors = ErrorSettings(tolerates_all=tolerates)
    props = {"value.converter": "org.apache.kafka.connect.converters.LongConverter"}
    good = SourceRecord({"p": 0}, {"n": 3}, "t", 7)
    stand = Stand(Scripted([BAD, good]), props, errors)
    await asyncio.sleep(1)
    if tolerates:
        assert stand.sent == [bytes(7) + b"\x07"]
        assert await stand.stop() == [State.RUNNING, State.UNASSIGNED]
        assert stand.runner.counters.skipped == 1
    else:
        assert stand.heard.of(TASK) == [State.RUNNING, State.FAILED]
        assert "Tolerance exceeded in error handler" in (stand.heard.traces[TASK] or "")


@pytest.mark.parametrize(("timestamp_ms", "sent"), [(None, None), (-1, None), (17, 17), (-2, None)])
@in_virtual_time
async def test_timestamps(timestamp_ms: int | None, sent: int | None) -> None:
    stand = Stand(Scripted([SourceRecord({}, {}, "t", "v", timestamp_ms=timestamp_ms)]))
    await asyncio.sleep(1)
    if timestamp_ms == -2:
        assert stand.heard.last(TASK) is State.FAILED
        return
    assert [each.timestamp_ms for each in stand.producer.sent] == [sent]
    await stand.stop()


def _goes_on_at_the_old_place(stand: Stand) -> None:
    """Somebody else has the task now, and has stored a newer offset."""
    stand.offsets.put(encoded_key("c", {"p": 0}), b'{"n":100}')
    while stand.producer.under_way:
        stand.producer.ack()


async def _deaf(until_s: float) -> None:
    clock = asyncio.get_running_loop().time
    while clock() < until_s:
        try:
            await asyncio.sleep(until_s - clock())
        except asyncio.CancelledError:
            continue


@in_virtual_time
async def test_what_a_deaf_task_has_sent_is_not_stored_over_its_successors_offsets() -> None:
    class Deaf(Scripted):
        async def stop(self) -> None:
            await _deaf(until_s=500)

    stand = Stand(Deaf([record(1)]))
    stand.producer.acks_at_once = False
    await asyncio.sleep(1)
    stand.runner.stop()
    await asyncio.sleep(10)
    stand.runner.abandon()
    stand.runner.abandon()
    await asyncio.sleep(0.1)
    assert stand.producer.closed_with_s == 0
    assert stand.runner.unfinished() == [stand.running]
    _goes_on_at_the_old_place(stand)
    await asyncio.sleep(200)
    assert stand.offsets.writes == []
    assert stand.heard.of(TASK) == [State.RUNNING]


@in_virtual_time
async def test_a_task_that_comes_back_after_it_was_abandoned_stores_nothing() -> None:
    class Late(Scripted):
        async def poll(self) -> Sequence[SourceRecord]:
            self.log.append("poll")
            if self.log.count("poll") == 1:
                return [record(1)]
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                # What the loop means as an end, an abandoning one included.
                await asyncio.sleep(100)
            return [record(2)]

    stand = Stand(Late())
    stand.producer.acks_at_once = False
    await asyncio.sleep(1)
    stand.runner.stop()
    await asyncio.sleep(1)
    stand.runner.abandon()
    await asyncio.sleep(1)
    _goes_on_at_the_old_place(stand)
    await asyncio.wait({stand.running})
    assert stand.offsets.writes == []
    assert stand.heard.of(TASK) == [State.RUNNING]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=repr)
@in_virtual_time
async def test_a_poll_that_wants_to_end_more_than_its_task_fails_it(error: BaseException) -> None:
    class Broken(Scripted):
        async def poll(self) -> Sequence[SourceRecord] | None:
            if self.polls:
                return await super().poll()
            raise error

    task = Broken([record(1)])
    stand = Stand(task)
    await asyncio.wait({stand.running})
    assert stand.heard.of(TASK) == [State.RUNNING, State.FAILED]
    assert await ConnectorOffsets("c", stand.topic).offset({"p": 0}) == {"n": 1}
    assert task.log[-1] == "stop"


@in_virtual_time
async def test_secrets_are_not_in_the_log_of_a_poll_that_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand(Scripted(RetriableError("login with hunter2 refused"), [record(1)]))
    stand.runner.known.secrets = SecretMask(["hunter2"])
    with caplog.at_level("DEBUG"):
        await asyncio.sleep(1)
    assert stand.sent == [b"v1"]
    await stand.stop()
    assert "login with [hidden] refused" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_task_may_be_stopped_again_while_its_wait_is_given_up() -> None:
    control = TaskControl(TargetState.STARTED)
    cleaned = asyncio.Event()

    async def doing() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            control.stop()
            cleaned.set()

    waiting = asyncio.ensure_future(control.unless_stopped(doing))
    await asyncio.sleep(0)
    control.stop()
    assert not await waiting
    assert cleaned.is_set()

    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await TaskControl(TargetState.STARTED).unless_stopped(late)
