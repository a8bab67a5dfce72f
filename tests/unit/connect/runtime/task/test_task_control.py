"""What a task is wished to do: stopping it twice is harmless."""

from __future__ import annotations

import asyncio

from connect.core.model import TargetState
from connect.runtime.task.task_control import TaskControl


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
