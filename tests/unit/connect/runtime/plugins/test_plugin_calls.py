"""What authors of plugins raise: it fails their connector or task, and ends nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from connect.api.connector import Props
from connect.api.source import EngineTask, RecordMetadata, SourceConnector, SourceRecord
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.core.herder_api import BadRequest
from connect.core.model import State, TargetState, TaskId
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import PluginBroke, SecretMask, masked, plugin_call
from connect.runtime.task.record_delivery import TaskCallbacks
from connect.runtime.task_builder import TaskSpec
from connect.runtime.worker import Worker
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import Heard, QuietTask, TestConnector, memory_topic, plugins, record, worker_config

TASK = TaskId("c", 0)
PROPS = {"name": "c", "connector.class": "Test"}


class Ended(BaseException):
    """What a library may have of its own."""


ENDINGS = [SystemExit(3), asyncio.CancelledError(), Ended()]


def a_worker(connector: type[SourceConnector]) -> tuple[Worker, Heard]:
    heard, config = Heard(), worker_config(task_shutdown_graceful_timeout_ms="1000")
    made = Worker(config, plugins(connector), heard, transformer=config.transformer, offsets=memory_topic()[0])
    return made, heard


async def started(connector: type[SourceConnector], **more: str) -> tuple[Worker, Heard]:
    worker, heard = a_worker(connector)
    worker.start_connector("c", {**PROPS, **more}, TargetState.STARTED)
    await asyncio.sleep(0.1)
    return worker, heard


class Broken(TestConnector):
    """Raises ``error`` in the call named ``where``."""

    where = ""
    error: BaseException

    def __init__(self) -> None:
        self.reach("constructor")

    def reach(self, where: str) -> None:
        if where == self.where:
            raise self.error

    async def start(self, props: Props) -> None:
        self.reach("start")

    async def stop(self) -> None:
        self.reach("stop")

    async def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        self.reach("task_configs")
        return [{}]

    def make_task(self) -> Any:
        self.reach("make_task")
        connector = self

        class Engine(EngineTask):
            async def run(self) -> None:
                connector.reach("run")
                await asyncio.Event().wait()

            def stop(self) -> None: ...

        return Engine()


def broken(breaks: str, raised: BaseException) -> type[Broken]:
    class Own(Broken):
        where = breaks
        error = raised

    return Own


@pytest.mark.parametrize("error", ENDINGS, ids=repr)
@pytest.mark.parametrize("where", ["constructor", "start", "stop"])
@in_virtual_time
async def test_a_connector_that_wants_to_end_more_than_itself_has_failed(where: str, error: BaseException) -> None:
    worker, heard = await started(broken(where, error))
    worker.set_target("c", TargetState.PAUSED)
    await asyncio.sleep(0.1)
    assert heard.last("c") is State.FAILED
    assert type(error).__name__ in (heard.traces["c"] or "")
    await worker.stop()
    assert heard.last("c") is State.UNASSIGNED


@pytest.mark.parametrize("error", ENDINGS, ids=repr)
@pytest.mark.parametrize("where", ["constructor", "make_task", "run"])
@in_virtual_time
async def test_a_task_that_wants_to_end_more_than_itself_has_failed(where: str, error: BaseException) -> None:
    worker, heard = a_worker(broken(where, error))
    worker.start_task(TaskSpec(TASK, PROPS, {}, 1), TargetState.STARTED)
    await asyncio.sleep(0.1)
    assert heard.last(TASK) is State.FAILED
    assert type(error).__name__ in (heard.traces[TASK] or "")
    await worker.stop()


@pytest.mark.parametrize("error", ENDINGS, ids=repr)
@in_virtual_time
async def test_task_configs_that_want_to_end_more_are_an_error(error: BaseException) -> None:
    worker, heard = await started(broken("task_configs", error))
    with pytest.raises(PluginBroke):
        await worker.task_configs("c")
    assert heard.last("c") is State.RUNNING
    await worker.stop()


@pytest.mark.parametrize("error", ENDINGS, ids=repr)
@in_virtual_time
async def test_callbacks_that_want_to_end_more_are_told(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Task(QuietTask):
        async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
            raise error

        async def commit(self) -> None:
            raise error

    callbacks = TaskCallbacks(TASK, Task(), SecretMask(), PluginThread("task"))
    await callbacks.commit_record(record(1), None)
    await callbacks.commit()
    assert "its commit_record raised an error" in caplog.text
    assert "its commit raised an error" in caplog.text


@in_virtual_time
async def test_who_is_really_cancelled_is() -> None:
    async def call(scope: asyncio.Timeout) -> None:
        async with scope:
            with plugin_call("it"):
                await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await call(asyncio.timeout(1))
    calling = asyncio.create_task(call(asyncio.timeout(None)))
    await asyncio.sleep(1)
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), ValueError("x")], ids=repr)
def test_what_is_the_users_or_the_loops_or_a_plain_error_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), plugin_call("it"):
        raise error


def test_masked_errors_stay_what_they_are() -> None:
    secrets = SecretMask(["hunter2"])
    for kind in (BadRequest, ConfigError, RetriableError, PermanentError):
        found = masked(kind("login with hunter2"), secrets)
        assert (type(found), str(found)) == (kind, "login with [hidden]")
    assert str(masked(ValueError("hunter2"), secrets)) == "ValueError: [hidden]"
    assert isinstance(masked(ValueError("hunter2"), secrets), PermanentError)


@in_virtual_time
async def test_task_configs_that_cannot_be_stored() -> None:
    """What cannot is in ``test_refusals.py`` of the herder."""

    class Wrong(TestConnector):
        async def task_configs(self, max_tasks: int) -> Any:
            return [{"key": "secret \udcff"}]

    worker, _ = await started(Wrong)
    with pytest.raises(PermanentError, match=r"cannot be stored: the value of 'key' of task 0") as raised:
        await worker.task_configs("c")
    assert "secret" not in str(raised.value)
    await worker.stop()


@in_virtual_time
async def test_secrets_are_not_in_what_asking_for_tasks_raises() -> None:
    class Wrong(TestConnector):
        async def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
            raise RetriableError("login with hunter2 refused")

    worker, _ = await started(Wrong, **{"producer.override.ssl.key.password": "hunter2"})
    with pytest.raises(RetriableError, match=r"^login with \[hidden\] refused$"):
        await worker.task_configs("c")
    await worker.stop()
