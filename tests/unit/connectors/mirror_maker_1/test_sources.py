"""MirrorMaker 1 with several sources: each begins by itself."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.config.properties import parse_properties
from connect.core.errors import PermanentError
from connectors.mirror_maker_1 import process
from connectors.mirror_maker_1.config import MirrorConsumerSettings, Options, mirror_settings
from connectors.mirror_maker_1.process import MirrorMaker1
from connectors.mirror_maker_1.topics import takes
from connectors.spark.engine import SparkEngine
from tests.kit.members import until


class Nothing:
    def __init__(self, *_: object, **__: object) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...


class Streams:
    """Run until they are stopped, or are made to fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.fails = asyncio.Event()

    def made(self, source: MirrorConsumerSettings) -> Any:
        stopping = asyncio.Event()

        async def run() -> None:
            self.begun.append(source.name)
            either = [asyncio.create_task(one.wait()) for one in (stopping, self.fails)]
            await asyncio.wait(either, return_when="FIRST_COMPLETED")
            for task in either:
                task.cancel()
            if self.fails.is_set() and not stopping.is_set():
                raise PermanentError(f"{source.name} failed")
            self.stopped.append(source.name)

        return SimpleNamespace(run=run, stop=stopping.set, view=list)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()

    async def clusters(self: MirrorMaker1, source: MirrorConsumerSettings, closing: AsyncExitStack) -> Any:
        if source.name == "source1":  # which nobody answers for
            await self._over.wait()
            return None
        return object()

    monkeypatch.setattr(process, "LinkServer", Nothing)
    monkeypatch.setattr(process, "Admin", Nothing)
    monkeypatch.setattr(MirrorMaker1, "_clusters", clusters)
    monkeypatch.setattr(MirrorMaker1, "_stream", lambda self, source, *_: made.made(source))
    return made


def maker_of_three() -> MirrorMaker1:
    consumer = parse_properties("bootstrap.servers=a:9092\ngroup.id=g\n", "c.properties")
    producer = parse_properties("bootstrap.servers=b:9092\n", "p.properties")
    settings = mirror_settings([consumer] * 3, producer, Options(takes(".*", None)), lambda _: None)
    return MirrorMaker1(settings, cast(SparkEngine, SimpleNamespace(code="")))


async def test_a_source_that_does_not_answer_keeps_no_other_waiting(streams: Streams) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(maker_of_three().run(stop))
    await until(lambda: sorted(streams.begun) == ["source2", "source3"], "the others have begun")
    stop.set()
    await running
    assert sorted(streams.stopped) == ["source2", "source3"]


async def test_the_error_of_one_ends_all_and_is_raised(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.create_task(maker_of_three().run(asyncio.Event()))
    await until(lambda: len(streams.begun) == 2, "the others have begun")
    streams.fails.set()
    with pytest.raises(PermanentError, match=r"source[23] failed"):
        await running
    del running
    gc.collect()
    # The other one fails as well: its error is in the log as it is, not as an exception that was never retrieved.
    assert [record.message.split()[1] for record in caplog.records] == ["failed"]
