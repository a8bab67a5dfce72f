"""Connectors and tasks on a worker, without a cluster: what they become, and that none of them holds the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from connect.api.connector import Props
from connect.api.source import EngineTask, SourceConnector
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import NotRunning, PermanentError, TooManyTasks
from connect.core.model import State, TargetState, TaskId
from connect.runtime.task.task_control import Starts
from connect.runtime.task_builder import TaskSpec
from connect.runtime.worker import Worker
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import Heard, TestConnector, memory_topic, plugins, with_secret, worker_config

TASK = TaskId("c", 0)
PROPS = {"name": "c", "connector.class": "Test", "tasks.max": "2"}
STARTED, PAUSED, STOPPED = TargetState.STARTED, TargetState.PAUSED, TargetState.STOPPED


class Here:
    """A worker with one kind of connector."""

    def __init__(self, connector: type[SourceConnector], config: WorkerConfig | None = None) -> None:
        self.heard = Heard()
        topic, self.offsets = memory_topic()
        config = config or worker_config(task_shutdown_graceful_timeout_ms="2000")
        self.worker = Worker(config, plugins(connector), self.heard, transformer=config.transformer, offsets=topic)

    async def start(self, target: TargetState = STARTED, props: Mapping[str, str] = PROPS) -> None:
        self.worker.start_connector("c", props, target)
        await asyncio.sleep(0.1)

    async def start_task(self, target: TargetState = STARTED, *, task_count: int = 1, **checks: Any) -> None:
        self.worker.start_task(TaskSpec(TASK, PROPS, {"k": "v"}, task_count, **checks), target)
        await asyncio.sleep(0.1)

    async def aim(self, target: TargetState) -> None:
        self.worker.set_target("c", target)
        await asyncio.sleep(0.1)

    async def stop(self) -> float:
        """Stop all; how long that took, in seconds."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        await self.worker.stop_work(["c", "unknown"], [TASK, TaskId("unknown", 3)])
        assert (self.worker.connectors, self.worker.tasks) == ({}, {})
        return clock() - began_s


class Noting(TestConnector):
    """Notes its calls in ``log`` and raises or hangs as configured; the state is that of its class."""

    log: ClassVar[list[str]]
    trouble: ClassVar[dict[str, Exception | float]]
    configs: ClassVar[list[Mapping[str, str]]]
    instance: ClassVar[Noting]

    async def _does(self, what: str) -> None:
        self.log.append(what)
        trouble = self.trouble.get(what)
        if isinstance(trouble, Exception):
            raise trouble
        await asyncio.sleep(trouble or 0)

    async def start(self, props: Props) -> None:
        type(self).instance = self
        await self._does("start")

    async def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        await self._does(f"configs of {max_tasks}")
        return self.configs

    async def stop(self) -> None:
        await self._does("stop")


def noting(**trouble_in: Exception | float) -> type[Noting]:
    """A class of its own, which has trouble in calls of these names."""

    class Own(Noting):
        log, trouble, configs = [], dict(trouble_in), [{"number": "0"}]

    return Own


async def started(connector: type[SourceConnector], config: WorkerConfig | None = None, **start: Any) -> Here:
    here = Here(connector, config)
    await here.start(**start)
    return here


# -- connectors --------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_connector_starts_pauses_stops_and_ends() -> None:
    kind = noting()
    here = await started(kind)
    assert here.heard.wanted == ["c"]
    assert here.heard.versions["c"] == "1.2"
    for target in (PAUSED, STARTED, STARTED, STOPPED, PAUSED, STARTED):
        await here.aim(target)
    shown = [state.name for state in here.heard.of("c")]
    assert shown == ["RUNNING", "PAUSED", "RUNNING", "STOPPED", "PAUSED", "RUNNING"]
    assert here.heard.wanted == ["c"] * 4
    assert await here.stop() < 0.1
    assert here.heard.last("c") is State.UNASSIGNED
    assert kind.log == ["start", "stop", "start", "stop", "start", "stop"]
    assert here.worker.connector_starts == Starts(succeeded=1)


@pytest.mark.parametrize(("target", "shown"), [(PAUSED, State.PAUSED), (STOPPED, State.STOPPED)])
@in_virtual_time
async def test_a_connector_that_is_not_to_run_is_not_started(target: TargetState, shown: State) -> None:
    kind = noting()
    here = Here(kind)
    await here.start(target)
    assert (here.heard.of("c"), kind.log, here.heard.wanted) == ([shown], [], [])
    with pytest.raises(NotRunning):
        await here.worker.task_configs("c")
    await here.stop()
    assert kind.log == []


@in_virtual_time
async def test_a_connector_that_fails_stays_so_until_it_is_stopped() -> None:
    kind = noting(start=PermanentError("no database"))
    here = await started(kind)
    assert here.heard.of("c") == [State.FAILED]
    assert "PermanentError: no database" in (here.heard.traces["c"] or "")
    await here.aim(PAUSED)
    await here.aim(STARTED)
    assert here.heard.of("c") == [State.FAILED]
    kind.trouble.clear()
    await here.aim(STOPPED)
    await here.aim(STARTED)
    assert here.heard.of("c") == [State.FAILED, State.STOPPED, State.RUNNING]
    await here.stop()


@pytest.mark.parametrize(
    ("target", "shown"), [(PAUSED, [State.RUNNING, State.FAILED]), (STOPPED, [State.RUNNING, State.STOPPED])]
)
@in_virtual_time
async def test_a_stop_that_raises(target: TargetState, shown: list[State]) -> None:
    kind = noting(stop=PermanentError("stuck"))
    here = await started(kind)
    await here.aim(target)
    assert here.heard.of("c") == shown


@in_virtual_time
async def test_one_that_fails_as_it_ends_does_not_count_as_one_that_did_not_start() -> None:
    kind = noting(stop=PermanentError("stuck"))
    here = await started(kind)
    await here.stop()
    assert here.heard.last("c") is State.FAILED
    assert (here.heard.failed, here.heard.failed_at_end) == ([], {"c"})
    kind.trouble["start"] = PermanentError("no database")
    again = Here(kind)
    await again.start()
    assert (again.heard.failed, again.heard.failed_at_end) == (["c"], set())
    await again.stop()


@in_virtual_time
async def test_a_connector_that_is_not_known_or_a_sink_fails_with_a_sentence() -> None:
    for named, reported in (("org.x.FileStreamSinkConnector", "runs source connectors only"), ("Nope", "Nope")):
        here = Here(noting())
        await here.start(props={**PROPS, "connector.class": named})
        assert here.heard.of("c") == [State.FAILED]
        assert reported in (here.heard.traces["c"] or "")
        here.worker.start_task(TaskSpec(TASK, {**PROPS, "connector.class": named}, {}, 1), STARTED)
        await asyncio.sleep(0.1)
        assert here.heard.of(TASK) == [State.FAILED]
        assert reported in (here.heard.traces[TASK] or "")
        assert here.worker.connector_starts == here.worker.task_starts == Starts(failed=1)
        await here.stop()


@in_virtual_time
async def test_a_connector_may_fail_itself_and_be_failed() -> None:
    kind = noting()
    here = await started(kind)
    kind.instance.context.raise_error(PermanentError("the source is gone"))
    await asyncio.sleep(0.1)
    here.worker.fail_connector("c", PermanentError("later"))
    await asyncio.sleep(0.1)
    assert here.heard.of("c") == [State.RUNNING, State.FAILED]
    assert "the source is gone" in (here.heard.traces["c"] or "")
    await here.stop()
    # What was started is stopped, which Java leaves out.
    assert kind.log == ["start", "stop"]
    assert here.heard.last("c") is State.UNASSIGNED


@in_virtual_time
async def test_a_start_that_waits_is_cancelled_once_its_connector_is_to_stop() -> None:
    kind = noting(start=1000.0)
    here = await started(kind)
    assert await here.stop() < 1
    # It may run parts of itself by then.
    assert kind.log == ["start", "stop"]
    assert here.heard.of("c") == [State.UNASSIGNED]


@in_virtual_time
async def test_a_connector_that_hangs_does_not_hold_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    kind = noting(stop=1000.0)
    here = await started(kind)
    assert 5 <= await here.stop() < 6.5
    assert kind.log == ["start", "stop"]
    assert here.heard.last("c") is State.UNASSIGNED
    heard = len(here.heard.states)
    await here.start(PAUSED)
    await asyncio.sleep(2000)
    assert here.heard.of("c")[heard:] == [State.PAUSED]
    await here.worker.stop()
    assert "graceful stop of connector c failed" in caplog.text


@in_virtual_time
async def test_a_connector_that_ignores_a_cancel_does_not_hold_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(TestConnector):
        async def start(self, props: Props) -> None:
            for _ in range(20):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    continue

    here = await started(Deaf)
    assert 5 <= await here.stop() < 6.5
    await asyncio.sleep(1000)
    assert here.heard.of("c") == [State.UNASSIGNED]
    await here.worker.stop()
    assert "is abandoned" in caplog.text


@in_virtual_time
async def test_task_configs_are_raw_and_name_their_class(tmp_path: Path) -> None:
    config, reference = with_secret(tmp_path)

    class Copying(TestConnector):
        async def start(self, props: Props) -> None:
            assert props["password"] == "hunter2"
            self._props = props

        async def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
            return [{**self._props, "number": str(number)} for number in range(max_tasks)]

    here = await started(Copying, config, props={**PROPS, "password": reference})
    configs = await here.worker.task_configs("c")
    assert [config["number"] for config in configs] == ["0", "1"]
    assert {config["password"] for config in configs} == {reference}
    assert {config["task.class"] for config in configs} == {Copying.task_class()}
    await here.stop()


@in_virtual_time
async def test_a_stored_config_that_names_a_file_of_the_worker_does_not_start() -> None:
    named = {"source.cluster.ssl.truststore.location": "/etc/shadow"}
    here = await started(noting(), props={**PROPS, **named})
    assert "NotAllowed" in (here.heard.traces["c"] or "")
    here.worker.start_task(TaskSpec(TASK, PROPS, named, 1), STARTED)
    await asyncio.sleep(0.1)
    assert "NotAllowed" in (here.heard.traces[TASK] or "")
    await here.stop()


@pytest.mark.parametrize("enforced", [True, False])
@in_virtual_time
async def test_too_many_tasks(enforced: bool, caplog: pytest.LogCaptureFixture) -> None:
    kind = noting()
    kind.configs = [{}, {}, {}]
    here = Here(kind)
    await here.start(props={**PROPS, "tasks.max.enforce": str(enforced).lower()})
    if enforced:
        with pytest.raises(TooManyTasks, match="has generated 3 tasks, which is greater than 2"):
            await here.worker.task_configs("c")
    else:
        assert len(await here.worker.task_configs("c")) == 3
    await here.start_task(task_count=3)
    assert "has generated 3 tasks" in (here.heard.traces[TASK] or "")
    await here.stop()
    assert ("should fix that" in caplog.text) is not enforced


@in_virtual_time
async def test_asking_for_tasks_ends_with_the_connector() -> None:
    kind = noting()
    kind.trouble["configs of 2"] = 1000.0
    here = await started(kind)
    asking = asyncio.create_task(here.worker.task_configs("c"))
    await asyncio.sleep(1)
    assert await here.stop() < 1
    with pytest.raises(NotRunning):
        await asking
    with pytest.raises(NotRunning):
        await here.worker.task_configs("c")
    kind.trouble["configs of 2"] = ValueError("cannot count")
    await here.start()
    with pytest.raises(ValueError, match="cannot count"):
        await here.worker.task_configs("c")
    await here.stop()


@in_virtual_time
async def test_secrets_are_not_in_traces(tmp_path: Path) -> None:
    config, reference = with_secret(tmp_path)
    kind = noting(start=PermanentError("login with hunter2 refused"))
    here = await started(kind, config, props={**PROPS, "password": reference})
    trace = here.heard.traces["c"] or ""
    assert "login with [hidden] refused" in trace
    assert "hunter2" not in trace


@pytest.mark.parametrize(
    ("key", "own", "refused"),
    [
        ("producer.override.linger.ms", {}, True),
        ("admin.override.retries", {}, False),
        ("admin.override.retries", {"offsets.storage.topic": "own"}, True),
        ("consumer.override.fetch.min.bytes", {}, False),
    ],
)
@in_virtual_time
async def test_overrides_that_the_policy_does_not_allow(key: str, own: Mapping[str, str], refused: bool) -> None:
    here = await started(
        noting(), worker_config(connector_client_config_override_policy="None"), props={**PROPS, **own, key: "1"}
    )
    assert (here.heard.last("c") is State.FAILED) == refused
    if refused:
        assert "Client Config Overrides not allowed" in (here.heard.traces["c"] or "")
    await here.stop()


# -- tasks that own their engine ---------------------------------------------------------------------------------------


class Engine(EngineTask):
    """Notes its calls; ends as ``ending`` says."""

    def __init__(self, log: list[str], ending: Exception | float | None) -> None:
        self._log = log
        self._ending = ending
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        self._log.append(f"run {self.context.configs['k']}")
        self.meter.copied(6, batches=2)
        self.meter.left_out(1)
        self.meter.committed(5.0)
        for _ in range(2):
            self.topic_used("us.orders")
        if isinstance(self._ending, Exception):
            raise self._ending
        await self._stopped.wait()
        await asyncio.sleep(self._ending or 0)
        self._log.append("ran")

    def stop(self) -> None:
        self._log.append("stop")
        self._stopped.set()

    def reconfigure(self, props: Props) -> bool:
        self._log.append(f"take {props['k']}")
        return props["k"] != "bitter"


def with_engines(ending: Exception | float | None = None) -> tuple[Here, list[str]]:
    """A worker whose tasks are engines, and what these note."""
    log: list[str] = []

    class Kind(TestConnector):
        def make_task(self) -> Any:
            return Engine(log, ending)

    return Here(Kind), log


@in_virtual_time
async def test_an_engine_runs_pauses_as_a_new_one_and_stops() -> None:
    here, log = with_engines()
    await here.start_task()
    assert (here.heard.of(TASK), here.heard.versions[TASK]) == ([State.RUNNING], "1.2")
    await here.aim(PAUSED)
    await here.aim(PAUSED)
    await here.aim(STARTED)
    assert await here.stop() < 0.1
    assert here.heard.of(TASK) == [State.RUNNING, State.PAUSED, State.RUNNING, State.UNASSIGNED]
    assert log == ["run v", "stop", "ran"] * 2


@in_virtual_time
async def test_what_an_engine_counts_is_in_its_tasks_metrics_and_its_topics_are_active() -> None:
    here, _ = with_engines()
    await here.start_task()
    counted = here.worker.tasks[TASK].counters
    assert (counted.polled, counted.written, counted.active, counted.skipped, counted.errors) == (6, 6, 0, 1, 1)
    now_ms = counted.clock()
    assert (counted.batch_records.mean(now_ms), counted.commit_ms.mean(now_ms)) == (3, 5)
    await here.stop()
    assert here.heard.topics == [("us.orders", TASK)] * 2


@in_virtual_time
async def test_an_engine_that_is_to_go_on_before_it_has_ended_for_a_pause_is_followed_by_a_new_one() -> None:
    here, log = with_engines(ending=0.3)
    await here.start_task()
    await here.aim(PAUSED)
    await here.aim(STARTED)
    await asyncio.sleep(1)
    assert log == ["run v", "stop", "ran", "run v"]
    assert here.heard.last(TASK) is State.RUNNING
    await here.stop()
    assert log == ["run v", "stop", "ran"] * 2


@in_virtual_time
async def test_an_engine_takes_another_config_as_it_runs_or_refuses_it() -> None:
    here, log = with_engines()

    def offer(value: str) -> bool:
        return here.worker.reconfigure_task(TaskSpec(TASK, PROPS, {"k": value}, 1))

    assert not offer("early"), "nothing runs yet"
    await here.start_task()
    assert offer("w")
    assert not offer("bitter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "reconfigure", lambda *_: 1 / 0)
        assert not offer("x"), "a mistake of its author's costs a restart and no more"
    assert not here.worker.reconfigure_task(TaskSpec(TASK, PROPS, {"k": "x"}, 3)), "more than tasks.max"
    await here.aim(PAUSED)
    assert not offer("paused")
    await here.aim(STARTED)
    assert here.heard.of(TASK) == [State.RUNNING, State.PAUSED, State.RUNNING]
    await here.stop()
    assert log == ["run v", "take w", "take bitter", "stop", "ran", "run w", "stop", "ran"]


@in_virtual_time
async def test_an_engine_that_does_not_stop_is_abandoned_within_the_grace(caplog: pytest.LogCaptureFixture) -> None:
    here, log = with_engines(1000.0)
    await here.start_task()
    assert 2 <= await here.stop() < 3.5
    assert here.heard.of(TASK) == [State.RUNNING]
    assert log == ["run v", "stop"]
    assert "graceful stop of task c-0 failed" in caplog.text


@in_virtual_time
async def test_targets_reach_only_the_connector_that_is_meant_and_no_task_that_stops() -> None:
    here, _ = with_engines()
    await here.start_task()
    here.worker.set_target("other", PAUSED)
    await asyncio.sleep(0.1)
    assert here.heard.last(TASK) is State.RUNNING
    # Never wanted of a task, and taken as a wish to end.
    here.worker.set_target("c", STOPPED)
    await here.aim(PAUSED)
    assert here.heard.of(TASK) == [State.RUNNING, State.UNASSIGNED]
    await here.stop()


@in_virtual_time
async def test_fencing_comes_before_the_engine_and_may_refuse() -> None:
    here, log = with_engines()

    async def note() -> None:
        log.append("fenced")

    async def refuse() -> None:
        raise PermanentError("given to another worker")

    await here.start_task(before=note, after=refuse)
    assert log == ["fenced", "run v"], "it is the engine's to ask once it has claimed what it needs"
    await here.stop()
    log.clear()
    await here.start_task(before=refuse)
    assert here.heard.last(TASK) is State.FAILED
    assert log == []
    await here.stop()


@in_virtual_time
async def test_a_fencing_that_hangs_ends_when_the_task_is_to_stop() -> None:
    """The group may wait for the task to stop, and the fencing for the group."""
    here, log = with_engines()
    await here.start_task(before=lambda: asyncio.sleep(1000))
    assert await here.stop() < 0.5
    assert here.heard.of(TASK) == [State.UNASSIGNED]
    assert log == []
