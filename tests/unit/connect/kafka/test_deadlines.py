"""Pauses that grow, and a log that is not flooded."""

from __future__ import annotations

import asyncio
import logging

import pytest

from connect.kafka.concurrency import Backoff
from tests.kit.virtual_time import run

log = logging.getLogger(__name__)


async def pauses(backoff: Backoff, count: int, cause: str = "it is away") -> list[float]:
    clock = asyncio.get_running_loop().time
    taken = []
    for _ in range(count):
        before_s = clock()
        await backoff.after(RuntimeError(cause))
        taken.append((clock() - before_s) * 1000)
    return taken


def test_pauses_double_up_to_the_last() -> None:
    async def main() -> list[float]:
        backoff = Backoff(log, "asking", 100, 1_000)
        taken = await pauses(backoff, 6)
        backoff.over()
        return taken + await pauses(backoff, 1)

    for taken, expected in zip(run(main()), [100, 200, 400, 800, 1_000, 1_000, 100], strict=True):
        assert expected * 0.79 < taken < expected * 1.21


def test_what_may_pass_in_a_moment_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        backoff = Backoff(log, "asking", 1_000, 1_000)
        await pauses(backoff, 5)
        backoff.over()
        await pauses(backoff, 2, "the disk is full")

    with caplog.at_level(logging.INFO, __name__):
        run(main())
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == __name__]
    assert {line for level, line in said if level == "WARNING"} == {"asking: it is away; retrying"}
    assert [line for level, line in said if level == "INFO"][-2:] == ["asking: the disk is full; retrying"] * 2
