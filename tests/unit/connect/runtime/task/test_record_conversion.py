"""Errors of records: tried again, tolerated, or fatal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.convert import DataError
from connect.core.errors import RetriableError
from connect.core.model import TaskId
from connect.runtime.plugins.plugin_errors import SecretMask
from connect.runtime.task.record_conversion import (
    ErrorHandler,
    ErrorSettings,
    LeftOut,
    Stage,
    ToleranceExceeded,
    retry_delay_ms,
)
from connect.runtime.task.task_control import Interrupted, TaskCounters
from tests.kit import virtual_time
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import record

TASK = TaskId("c", 0)


def failing(*errors: Exception) -> Callable[[], str]:
    """Raises ``errors`` one after the other, then gives «done»."""
    left: Iterator[Exception] = iter(errors)

    def operation() -> str:
        for error in left:
            raise error
        return "done"

    return operation


class Handled:
    """A handler, and what it counted."""

    def __init__(self, settings: ErrorSettings, secrets: SecretMask | None = None) -> None:
        self.counters = TaskCounters()
        self.stopping = asyncio.Event()
        self.handler = ErrorHandler(TASK, settings, self.counters, secrets or SecretMask(), self.stopping)

    async def attempt(self, operation: Callable[[], str], stage: Stage = Stage.TRANSFORMATION) -> str:
        return await self.handler.attempt(stage, self, record(1), operation)


@given(st.integers(1, 200), st.integers(0, 10**6), st.floats(0, 10**7), st.floats(0, 1, exclude_max=True))
def test_a_delay_doubles_and_is_bounded(attempt: int, max_ms: int, left_ms: float, chance: float) -> None:
    delay_ms = retry_delay_ms(attempt, max_ms, left_ms, chance)
    assert 0 <= delay_ms <= min(max_ms, left_ms)
    if 300 * 2 ** (attempt - 1) <= min(max_ms, left_ms):
        assert delay_ms == 300 * 2 ** (attempt - 1)


@in_virtual_time
async def test_what_works_is_handed_on() -> None:
    handled = Handled(ErrorSettings())
    assert await handled.attempt(failing()) == "done"
    assert handled.counters == TaskCounters()


@in_virtual_time
async def test_an_error_fails_the_task_and_is_the_cause() -> None:
    handled = Handled(ErrorSettings())
    with pytest.raises(ToleranceExceeded) as raised:
        await handled.attempt(failing(DataError("bad")))
    assert str(raised.value) == "Tolerance exceeded in error handler"
    assert str(raised.value.__cause__) == "bad"
    assert (handled.counters.failures, handled.counters.errors, handled.counters.skipped) == (1, 1, 0)
    assert handled.counters.last_error_ms > 0


@in_virtual_time
async def test_a_tolerated_error_leaves_the_record_out() -> None:
    handled = Handled(ErrorSettings(tolerates_all=True))
    with pytest.raises(LeftOut):
        await handled.attempt(failing(ValueError("any")))
    assert (handled.counters.errors, handled.counters.skipped) == (1, 1)


@in_virtual_time
async def test_only_retriable_errors_are_tried_again() -> None:
    handled = Handled(ErrorSettings(retry_timeout_ms=-1))
    clock = asyncio.get_running_loop().time
    assert await handled.attempt(failing(RetriableError("a"), RetriableError("b"))) == "done"
    assert clock() == pytest.approx(0.9)
    assert (handled.counters.failures, handled.counters.retries, handled.counters.errors) == (2, 2, 0)
    with pytest.raises(ToleranceExceeded):
        await handled.attempt(failing(RetriableError("a"), DataError("b")))
    assert handled.counters.retries == 3


@pytest.mark.parametrize("before", [(), (RetriableError("busy"),)])
@in_virtual_time
async def test_too_little_memory_is_no_error_of_the_record(before: tuple[Exception, ...]) -> None:
    handled = Handled(ErrorSettings(retry_timeout_ms=-1, tolerates_all=True))
    with pytest.raises(MemoryError):
        await handled.attempt(failing(*before, MemoryError()))


@pytest.mark.parametrize(("tolerates", "wanted"), [(False, ToleranceExceeded), (True, LeftOut)])
@in_virtual_time
async def test_retrying_ends_in_time(tolerates: bool, wanted: type[Exception]) -> None:
    # Java leaves the record out here even where nothing is tolerated.
    handled = Handled(ErrorSettings(retry_timeout_ms=2000, tolerates_all=tolerates))

    def operation() -> str:
        raise RetriableError("again")

    with pytest.raises(wanted):
        await handled.attempt(operation)
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


@in_virtual_time
async def test_a_task_that_stops_does_not_wait_for_a_retry_and_does_not_skip() -> None:
    handled = Handled(ErrorSettings(retry_timeout_ms=-1, tolerates_all=True))
    asyncio.get_running_loop().call_later(0.1, handled.stopping.set)
    with pytest.raises(Interrupted):
        await handled.attempt(failing(RetriableError("a")))
    assert asyncio.get_running_loop().time() == pytest.approx(0.1)
    assert handled.counters.skipped == 0


@pytest.mark.parametrize("with_messages", [True, False])
def test_errors_are_logged_where_wanted_without_secrets(caplog: pytest.LogCaptureFixture, with_messages: bool) -> None:
    async def main() -> None:
        settings = ErrorSettings(tolerates_all=True, log_enabled=True, log_includes_messages=with_messages)
        handled = Handled(settings, SecretMask(["hunter2"]))
        with pytest.raises(LeftOut):
            await handled.attempt(failing(DataError("no hunter2 today")), Stage.VALUE_CONVERTER)
        assert handled.counters.logged == 1

    with caplog.at_level(logging.ERROR):
        virtual_time.run(main())
    (reported,) = [each.getMessage() for each in caplog.records]
    assert reported.startswith("Error encountered in task c-0. Executing stage 'VALUE_CONVERTER' with class '")
    assert "DataError: no [hidden] today" in reported
    assert ("source record is = SourceRecord(" in reported) == with_messages


@in_virtual_time
async def test_an_error_told_from_outside() -> None:
    Handled(ErrorSettings(tolerates_all=True)).handler.failed(Stage.KAFKA_PRODUCE, None, record(1), OSError("x"))
    with pytest.raises(ToleranceExceeded):
        Handled(ErrorSettings()).handler.failed(Stage.KAFKA_PRODUCE, None, record(1), OSError("x"))
