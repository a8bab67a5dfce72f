"""Apply transforms in a slice's event loop, a few records at a time, so that the loop still answers the worker."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from connect.kafka.concurrency import Scope
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan
from connectors.transforms.smt_chain import Chain, Done, Outcome

#: How long transforms may block the loop.
_TURN_S: Final = 0.01


class TransformStage(Protocol):
    """A stage that transforms records, in the slice's loop."""

    async def start(self, broken: Callable[[BaseException], None]) -> None:
        """Start; ``broken`` is called with the error when the stage cannot continue."""
        ...

    async def stop(self) -> None: ...

    def submit(self, plan: PartitionPlan, part: Sequence[Record], done: Done) -> None:
        """Transform records; ``done`` is called with the outcome, in the order of the calls."""
        ...


async def outcome_of(stage: TransformStage, plan: PartitionPlan, part: Sequence[Record]) -> Outcome:
    """Transform these records and wait for the outcome."""
    found: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    stage.submit(plan, part, lambda outcome: None if found.done() else found.set_result(outcome))
    return await found


class ChainStage:
    """A stage that applies ``chain``, after the stage ``before`` if there is one."""

    def __init__(self, chain: Chain, before: TransformStage | None = None) -> None:
        self._chain = chain
        self._before = before
        self._waiting: deque[tuple[PartitionPlan, Outcome, Done]] = deque()
        self._some = asyncio.Event()
        self._scope = Scope("transforms")

    async def start(self, broken: Callable[[BaseException], None]) -> None:
        self._scope.spawn(self._work(), "transforms", broken)
        if self._before is not None:
            await self._before.start(broken)

    async def stop(self) -> None:
        await self._scope.close()
        if self._before is not None:
            await self._before.stop()
        self._chain.close()

    def submit(self, plan: PartitionPlan, part: Sequence[Record], done: Done) -> None:
        if self._before is None:
            self._take(plan, list(part), done)
        else:
            self._before.submit(plan, part, lambda outcome: self._take(plan, outcome, done))

    def _take(self, plan: PartitionPlan, outcome: Outcome, done: Done) -> None:
        self._waiting.append((plan, outcome, done))
        self._some.set()

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            until_s = time.monotonic() + _TURN_S
            while self._waiting:
                plan, outcome, done = self._waiting.popleft()
                for index, one in enumerate(outcome):
                    if isinstance(one, Record):
                        outcome[index] = self._chain.transform(plan, one)
                    if time.monotonic() > until_s:
                        await asyncio.sleep(0)
                        until_s = time.monotonic() + _TURN_S
                done(outcome)
