"""Pauses that grow, and a log that is not flooded."""

from __future__ import annotations

import asyncio
import logging

import pytest

from connect.kafka.patience import Patience
from tests.kit.virtual_time import run

log = logging.getLogger(__name__)


async def pauses(patience: Patience, count: int, cause: str = "it is away") -> list[float]:
    clock = asyncio.get_running_loop().time
    taken = []
    for _ in range(count):
        before_s = clock()
        await patience.after(RuntimeError(cause))
        taken.append((clock() - before_s) * 1000)
    return taken


def test_pauses_double_up_to_the_last() -> None:
    async def main() -> list[float]:
        patience = Patience(log, "asking", 100, 1_000)
        taken = await pauses(patience, 6)
        patience.over()
        return taken + await pauses(patience, 1)

    for taken, expected in zip(run(main()), [100, 200, 400, 800, 1_000, 1_000, 100], strict=True):
        assert expected * 0.79 < taken < expected * 1.21


def test_a_cause_is_said_once_a_minute_whoever_meets_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        waiting = [Patience(log, name, 1_000, 1_000) for name in ("asking", "reading", "writing")]
        await asyncio.gather(*(pauses(each, 130, "the broker is away") for each in waiting))
        waiting[0].over()
        await pauses(waiting[0], 4, "the disk is full")

    with caplog.at_level(logging.INFO, __name__):
        run(main())
    said = [record for record in caplog.records if record.name == __name__]
    warnings = [record.getMessage() for record in said if record.levelno == logging.WARNING]
    # What may pass in a moment is no warning; what lasts is one a minute of two, from the second second on.
    assert [line.partition(": ")[2] for line in warnings] == [
        *["the broker is away; trying again"] * 3,
        "the disk is full; trying again",
    ]
    assert all(line.startswith(("asking: ", "reading: ", "writing: ")) for line in warnings)
