"""Whether a group is joined at once, or when the engine of its connectors is up."""

from __future__ import annotations

import asyncio
import logging

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.runtime.herder.rebalance_stages import Stages, prepare
from tests.kit import virtual_time

MIRROR = "org.example.Mirror"


class Engine:
    """An engine that starts after some seconds, or fails."""

    def __init__(self, after_s: float = 3.0, error: Exception | None = None) -> None:
        self.asked = False
        self._after_s = after_s
        self._error = error

    def is_for(self, connector_class: str) -> bool:
        return connector_class == MIRROR

    async def ready(self) -> None:
        self.asked = True
        await asyncio.sleep(self._after_s)
        if self._error is not None:
            raise self._error


def waited_s(engine: Engine | None, classes: list[str], others: int | Exception) -> float:
    async def members() -> list[bytes]:
        if isinstance(others, Exception):
            raise others
        return [b""] * others

    async def main() -> float:
        began_s = asyncio.get_running_loop().time()
        await prepare("group g", engine, classes, members, Stages(lambda: 0))
        return asyncio.get_running_loop().time() - began_s

    return virtual_time.run(main())


def test_a_group_at_work_is_joined_once_the_engine_is_up() -> None:
    assert waited_s(Engine(3.0), ["org.example.Lines", MIRROR], 2) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("classes", "others"),
    [([MIRROR], 0), (["org.example.Lines"], 2), ([], 2), ([MIRROR], RetriableError("no coordinator"))],
    ids=["no members", "no connector needs it", "no connectors", "members unknown"],
)
def test_otherwise_it_is_joined_at_once(classes: list[str], others: int | Exception) -> None:
    engine = Engine()
    assert waited_s(engine, classes, others) == 0.0
    assert not engine.asked


def test_an_engine_that_does_not_come_up_keeps_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert waited_s(Engine(1e6), [MIRROR], 1) == pytest.approx(30.0)
    assert "has not started after 30 s" in caplog.text
    assert waited_s(Engine(1.0, PermanentError("no Java")), [MIRROR], 1) == pytest.approx(1.0)
    assert "no Java" in caplog.text
