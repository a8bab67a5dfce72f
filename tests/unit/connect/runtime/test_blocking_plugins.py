"""Connectors and tasks of plain functions that block; the cases of Kafka's ``BlockingConnectorTest``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from connect.api.connector import Props
from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import SourceConnector, SourceConnectorContext, SourceRecord, SourceTask, SourceTaskContext
from connect.core.config.config_def import ConfigDef, ConfigValue
from connect.core.errors import PermanentError
from connect.core.model import State, TargetState, TaskId
from connect.kafka.threads import PluginThread
from connect.runtime import worker as runtime_worker
from connect.runtime.plugins.config_validation import validate_connector
from connect.runtime.plugins.plugin_registry import Plugins
from connect.runtime.task_builder import TaskSpec
from connect.runtime.worker import Worker
from tests.kit.work import Heard, TestConnector, memory_topic, worker_config
from tests.kit.work import plugins as built_in

BLOCKING, NORMAL = TaskId("blocking", 0), TaskId("normal", 0)
_DEADLINE_S = 60.0


class Block:
    """Where a call hangs, until the test is over."""

    def __init__(self) -> None:
        self.at = ""
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.entered = threading.Event()
        self.free = threading.Event()

    def reached(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())
        if call == self.at:
            self.entered.set()
            self.free.wait()


class BlockingTask(SourceTask):
    def __init__(self, block: Block) -> None:
        self._block = block
        self._number = 0

    def initialize(self, context: SourceTaskContext) -> None:
        self._block.reached("task initialize")
        super().initialize(context)

    def start(self, props: Props) -> None:
        assert self.context.wait_for(self.context.offset_reader.offset({"p": 0})) is None
        self._block.reached("task start")

    def poll(self) -> Sequence[SourceRecord] | None:
        self._block.reached("task poll")
        return None

    def stop(self) -> None:
        self._block.reached("task stop")


class BlockingConnector(TestConnector):
    block: Block

    def initialize(self, context: SourceConnectorContext) -> None:
        self.block.reached("initialize")
        super().initialize(context)

    def start(self, props: Props) -> None:  # type: ignore[override]
        self.block.reached("start")

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:  # type: ignore[override]
        self.block.reached("task_configs")
        return [{"number": "0"}]

    def validate(self, props: Props, values: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
        self.block.reached("validate")
        return values

    def make_task(self) -> SourceTask:
        return BlockingTask(self.block)

    def stop(self) -> None:
        self.block.reached("stop")


class NormalTask(SourceTask):
    polls = 0

    async def start(self, props: Props) -> None: ...

    async def poll(self) -> Sequence[SourceRecord] | None:
        type(self).polls += 1
        await asyncio.sleep(0.001)
        return None


class NormalConnector(TestConnector):
    task = NormalTask


@pytest.fixture
def block() -> Iterator[Block]:
    made = Block()
    yield made
    made.free.set()


@pytest.fixture
def found(block: Block) -> Plugins:
    class Own(BlockingConnector):
        pass

    Own.block = block
    kinds: list[tuple[str, type[SourceConnector]]] = [("Blocking", Own), ("Normal", NormalConnector)]
    own = [PluginDescription(PluginKind.SOURCE, name, kind, ConfigDef(), "1") for name, kind in kinds]
    return Plugins([*built_in(TestConnector)._all, *own])


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def worker(found: Plugins, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(runtime_worker, "_CONNECTORS_GRACE_S", 0.1)
    monkeypatch.setattr(runtime_worker, "_CANCELLED_GRACE_S", 0.1)
    config = worker_config(task_shutdown_graceful_timeout_ms="100")
    topic, _ = memory_topic()
    return Worker(config, found, heard, transformer=config.transformer, offsets=topic)


def start(worker: Worker, name: str) -> None:
    props = {"name": name, "connector.class": name.capitalize(), "tasks.max": "1"}
    worker.start_connector(name, props, TargetState.STARTED)
    worker.start_task(TaskSpec(TaskId(name, 0), props, {}, 1), TargetState.STARTED)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def goes_on(worker: Worker, heard: Heard) -> None:
    """A connector that does not block starts, runs and stops beside the one that does."""
    start(worker, "normal")
    await until(lambda: heard.last("normal") is State.RUNNING and heard.last(NORMAL) is State.RUNNING)
    before = NormalTask.polls
    await until(lambda: NormalTask.polls > before + 10)
    assert len(await worker.task_configs("normal")) == 1
    await worker.stop_work(["normal"], [NORMAL])
    assert heard.last("normal") is heard.last(NORMAL) is State.UNASSIGNED


@pytest.mark.parametrize("at", ["initialize", "start", "task initialize", "task start", "task poll"])
async def test_a_call_that_blocks_harms_only_its_own(at: str, worker: Worker, heard: Heard, block: Block) -> None:
    block.at = at
    start(worker, "blocking")
    await until(block.entered.is_set)
    await goes_on(worker, heard)
    hit: str | TaskId = BLOCKING if at.startswith("task") else "blocking"
    assert heard.last(hit) is (State.RUNNING if at == "task poll" else None)
    async with asyncio.timeout(_DEADLINE_S):
        await worker.stop()
    assert heard.last("blocking") is State.UNASSIGNED
    assert (worker.connectors, worker.tasks) == ({}, {})


@pytest.mark.parametrize("at", ["stop", "task stop"])
async def test_a_stop_that_blocks_harms_only_its_own(
    at: str, worker: Worker, heard: Heard, block: Block, caplog: pytest.LogCaptureFixture
) -> None:
    block.at = at
    start(worker, "blocking")
    await until(lambda: heard.last("blocking") is State.RUNNING and "task poll" in block.calls)
    async with asyncio.timeout(_DEADLINE_S):
        await worker.stop_work(["blocking"], [BLOCKING])
    assert block.entered.is_set()
    await goes_on(worker, heard)
    # The same again beside what still hangs, as after a restart.
    block.at = ""
    start(worker, "blocking")
    await until(lambda: heard.last("blocking") is State.RUNNING and heard.last(BLOCKING) is State.RUNNING)
    await worker.stop()
    assert f"graceful stop of {'task blocking-0' if at == 'task stop' else 'connector blocking'} failed" in caplog.text


async def test_asking_for_tasks_may_block(worker: Worker, heard: Heard, block: Block) -> None:
    block.at = "task_configs"
    start(worker, "blocking")
    await until(lambda: heard.last("blocking") is State.RUNNING)
    asking = asyncio.create_task(worker.task_configs("blocking"))
    await until(block.entered.is_set)
    await goes_on(worker, heard)
    async with asyncio.timeout(_DEADLINE_S):
        await worker.stop()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_blocking_validation_is_given_up(found: Plugins, worker: Worker, heard: Heard, block: Block) -> None:
    block.at = "validate"
    config = worker_config()
    asked = {"name": "blocking", "connector.class": "Blocking"}
    asking = asyncio.create_task(validate_connector(asked, found, config, config.transformer))
    await until(block.entered.is_set)
    await goes_on(worker, heard)
    asking.cancel()
    async with asyncio.timeout(_DEADLINE_S):
        await asyncio.gather(asking, return_exceptions=True)
    block.at = ""
    assert (await validate_connector(asked, found, config, config.transformer)).name == "Blocking"
    await worker.stop()


@pytest.mark.parametrize("kind", ["connector", "task"])
async def test_what_was_given_up_in_start_is_stopped_when_it_returns(kind: str, worker: Worker, block: Block) -> None:
    prefix = "task " if kind == "task" else ""
    block.at = f"{prefix}start"
    start(worker, "blocking")
    await until(block.entered.is_set)
    await worker.stop_work(["blocking"], [BLOCKING])
    assert f"{prefix}stop" not in block.calls
    block.free.set()
    await until(lambda: f"{prefix}stop" in block.calls)
    await worker.stop()


async def test_each_has_one_thread_of_its_own_and_it_ends(worker: Worker, heard: Heard, block: Block) -> None:
    start(worker, "blocking")
    await until(lambda: heard.last("blocking") is State.RUNNING and block.calls.count("task poll") > 3)
    assert len(block.threads) == 2
    assert threading.get_ident() not in block.threads
    await worker.stop()
    await until(lambda: not {thread.ident for thread in threading.enumerate()} & block.threads)


async def test_a_thread_may_ask_for_reconfiguration_and_give_up(worker: Worker, heard: Heard, block: Block) -> None:
    start(worker, "blocking")
    await until(lambda: heard.last("blocking") is State.RUNNING)
    runner, before = worker.connectors["blocking"], len(heard.wanted)
    await asyncio.to_thread(runner.request_task_reconfiguration)
    await until(lambda: len(heard.wanted) > before)
    await asyncio.to_thread(runner.raise_error, PermanentError("the source is gone"))
    await until(lambda: heard.last("blocking") is State.FAILED)
    await worker.stop()


async def test_what_a_plain_function_raises_and_returns() -> None:
    def fails(error: BaseException) -> None:
        raise error

    async def answer(value: int) -> int:
        return value

    async with PluginThread("plugin") as thread:
        assert await thread.call(lambda: 7) == 7
        assert await thread.call(lambda: answer(8)) == 8
        for raised in (ValueError("wrong"), SystemExit(3)):
            with pytest.raises(type(raised)):
                await thread.call(fails, raised)
        for taken in (StopIteration(), KeyboardInterrupt()):
            with pytest.raises(RuntimeError, match=type(taken).__name__):
                await thread.call(fails, taken)
        assert await thread.call(lambda: thread.wait_for(answer(9))) == 9
        with pytest.raises(RuntimeError, match="await the coroutine instead"):
            thread.wait_for(answer(10))


async def test_a_cancelled_call_that_waits_its_turn_is_not_made() -> None:
    free = threading.Event()
    made: list[int] = []
    async with PluginThread("plugin") as thread:
        first = asyncio.create_task(thread.call(free.wait))
        waiting: list[asyncio.Task[Any]] = []
        for number, always in enumerate((False, True)):
            waiting.append(asyncio.create_task(thread.call(made.append, number, always=always)))
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        free.set()
        await first
        assert await thread.call(lambda: list(made)) == [1]


async def test_a_call_after_the_end_is_refused() -> None:
    for calls_before in (0, 1):
        thread = PluginThread("task c-0")
        for _ in range(calls_before):
            await thread.call(lambda: None)
        await thread.close()
        async with asyncio.timeout(_DEADLINE_S):
            with pytest.raises(RuntimeError, match="task c-0 is closed"):
                await thread.call(lambda: None)


def test_a_call_that_hangs_does_not_hold_the_process() -> None:
    script = (
        "import asyncio, threading\n"
        "from connect.kafka.threads import PluginThread\n"
        "async def main():\n"
        "    thread, entered = PluginThread('plugin'), threading.Event()\n"
        "    hanging = asyncio.create_task(thread.call(lambda: (entered.set(), threading.Event().wait())))\n"
        "    while not entered.is_set():\n"
        "        await asyncio.sleep(0.01)\n"
        "    hanging.cancel()\n"
        "    await thread.close()\n"
        "    print('over')\n"
        "asyncio.run(main())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=_DEADLINE_S
    )
    assert run.stdout == "over\n"
