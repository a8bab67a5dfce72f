"""Automatic restarts of one worker: what is decided, remembered and said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.config.connector_settings import PERMANENT_ERROR
from connect.core.config_topic import ConfigLog, connector_record
from connect.core.herder import events
from connect.core.model import Restarts, State, Status, TaskId
from connect.core.status_and_offset_topics import StatusLog, status_record
from connect.runtime.herder.effects_and_fencing import AutoRestarts, EffectHandler
from connect.runtime.task.task_control import FailureTrace

MINUTE_MS = 60_000
TASK = TaskId("c", 0)
ON = {"auto.restart.enabled": "true"}
PASSING, LASTING = FailureTrace("no answer", True), FailureTrace("no right", False)


class Worker:
    """One whose connector ``c`` has this config; ``statuses`` is what the status topic says, as far as it was read."""

    def __init__(self, config: dict[str, str], statuses: StatusLog | None = None) -> None:
        self.now_ms = 10 * MINUTE_MS
        self.statuses = StatusLog() if statuses is None else statuses
        self.configs = ConfigLog()
        self.configs.apply(0, *connector_record("c", config))
        self.restarts = AutoRestarts(lambda: self.configs, self.statuses, lambda: self.now_ms)
        self.events: list[events.Event] = []
        self.put: list[Status] = []
        nothing = cast(Any, None)
        self.effect_handler = EffectHandler(
            nothing,
            cast(Any, SimpleNamespace(generation=3)),
            cast(Any, SimpleNamespace(name="us->eu", put=self.events.append)),
            nothing,
            cast(Any, SimpleNamespace(put=self._put)),
            self.restarts,
            *(nothing,) * 3,
            worker_id="one:8083",
            now_ms=lambda: self.now_ms,
            changed=lambda: None,
        )

    def _put(self, work: str | TaskId, status: Status, *, safe: bool) -> None:
        self.put.append(status)

    def read_back(self) -> None:
        self.statuses.apply(*status_record(TASK, self.put[-1]))

    def fails(self, failure: FailureTrace = PASSING) -> int | None:
        """Fail the task, and return how long its restart waits."""
        self.effect_handler.reported(TASK, State.FAILED, failure, None)
        last = self.events.pop()
        assert isinstance(last, events.ScheduleAutoRestart) and last.work == TASK
        return last.wait_ms


def test_a_task_that_fails_at_once_again_waits_longer_each_time() -> None:
    worker = Worker(ON)
    waits = []
    for _ in range(4):
        wait_ms = worker.fails()
        assert wait_ms is not None
        waits.append(wait_ms // MINUTE_MS)
        worker.now_ms += wait_ms
        worker.effect_handler.reported(TASK, State.RUNNING, None, None)
    # Nothing was read back of the status topic meanwhile.
    assert waits == [0, 2, 6, 12]
    assert worker.put[-1].restarts == Restarts(4, worker.now_ms), "what runs says how often it was restarted"
    assert worker.restarts.totals == {TASK: 4}


def test_running_again_takes_a_restart_back() -> None:
    worker = Worker(ON)
    worker.fails()
    worker.effect_handler.reported(TASK, State.RUNNING, None, None)
    assert worker.events == [events.ScheduleAutoRestart(TASK, None)]


def test_the_next_owner_goes_on_with_the_count() -> None:
    first = Worker(ON)
    first.fails()
    first.fails()
    first.read_back()
    second = Worker(ON, first.statuses)
    second.now_ms = first.now_ms + 2 * MINUTE_MS
    assert second.fails() == 6 * MINUTE_MS
    # Back at the first one, which remembers less than the topic says.
    second.read_back()
    first.now_ms = second.now_ms + 6 * MINUTE_MS
    assert first.fails() == 12 * MINUTE_MS


def test_what_a_restart_cannot_fix_is_not_restarted_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(ON)
    assert worker.fails(LASTING) is None
    assert worker.put[-1].restarts == Restarts(0, 0, PERMANENT_ERROR)
    assert "task c-0 is not restarted automatically: a restart cannot fix this error" in caplog.text
    assert worker.restarts.totals == {}


@pytest.mark.parametrize("config", [{}, {"auto.restart.enabled": "false"}, {**ON, "auto.restart.max.restarts": "x"}])
def test_nothing_is_restarted_unless_the_connector_says_so(config: dict[str, str]) -> None:
    worker = Worker(config)
    worker.effect_handler.reported(TASK, State.FAILED, PASSING, None)
    assert worker.events == []
    assert worker.put[-1] == Status(State.FAILED, "one:8083", 3, "no answer")


def test_what_fails_as_it_ends_is_not_restarted() -> None:
    worker = Worker(ON)
    worker.fails()
    ending = FailureTrace("its stop is broken", True, is_at_end=True)
    assert worker.fails(ending) is None, "it would be what was started in its place"
    assert worker.put[-1] == Status(
        State.FAILED, "one:8083", 3, "its stop is broken", None, Restarts(1, 10 * MINUTE_MS)
    )
    assert worker.restarts.totals == {TASK: 1}


def test_deleted_connectors_are_forgotten() -> None:
    worker = Worker(ON)
    worker.configs.apply(1, *connector_record("d", ON))
    worker.fails()
    worker.configs.apply(2, "connector-c", None)
    worker.effect_handler.reported(TaskId("d", 0), State.FAILED, PASSING, None)
    assert worker.restarts.totals == {TaskId("d", 0): 1}


def test_the_line_of_a_state_names_the_flow(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Worker({}).effect_handler.reported("c", State.RUNNING, None, None)
    assert caplog.messages == ["us->eu: connector c is RUNNING"]
