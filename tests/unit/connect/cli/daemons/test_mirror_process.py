"""How flows live beside each other and are stopped, and that they agree on one listener; all in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli.daemons import mirror_process
from connect.cli.daemons.mirror_process import FlowsFailed, MirrorMaker, StopFailed
from connect.cli.rates import ENDED
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.runtime.herder.driver import WorkerFailed
from connectors.config.mm2_properties import load
from connectors.flow_facts import FlowProgress, Tally


class Worker:
    """A flow's worker that starts, lives and stops as it is told."""

    def __init__(self, flow: SimpleNamespace, *_: object) -> None:
        self.flow = flow
        self.herder = None
        self._failed = asyncio.Event()
        self._error = ""
        flow.workers.append(self)

    async def start(self) -> None:
        self.flow.starts.set()
        if self.flow.raises_in_starting:
            raise self.flow.raises_in_starting.pop()

    def fail(self, error: str) -> None:
        self._error = error
        self._failed.set()

    async def ended(self) -> None:
        await self._failed.wait()
        raise WorkerFailed(self._error)

    def failure(self) -> None: ...

    def progress(self, _: int) -> FlowProgress:
        return FlowProgress(self.flow.name, "running", 0, Tally())

    async def put_away(self) -> None:
        self.flow.leaves.set()

    async def stop(self) -> None:
        self.flow.stops.set()
        if self.flow.raises_in_stopping is not None:
            raise self.flow.raises_in_stopping


class Engine:
    code = "heliograph-1"

    def __init__(self) -> None:
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


class Flow(SimpleNamespace):
    def __str__(self) -> str:
        return str(self.name)

    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(link_listener=self.listener, link_advertised_address="")


def a_flow(name: str, *, listener: str = "127.0.0.1:0", enabled: bool = True, **raises: Any) -> Flow:
    defaults: dict[str, Any] = {"raises_in_starting": [], "raises_in_stopping": None, "workers": []}
    events = {what: asyncio.Event() for what in ("starts", "leaves", "stops")}
    return Flow(name=name, enabled=enabled, listener=listener, **{**defaults, **events, **raises})


Made = Callable[..., tuple[MirrorMaker, Engine]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Made:
    """A mirror of the flows that are given, and its engine."""
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = us, eu\nlink.listener = 127.0.0.1:0\n")
    monkeypatch.setattr(mirror_process, "FlowWorker", Worker)
    monkeypatch.setattr(mirror_process, "check_flow", lambda _: None)
    monkeypatch.setattr(mirror_process, "worker_config", lambda _: SimpleNamespace(progress_timeout_ms=30_000))
    monkeypatch.setattr(mirror_process, "_RESTART_DELAYS_S", (0.0, 0.0))

    def make(*flows: SimpleNamespace) -> tuple[MirrorMaker, Engine]:
        engine = Engine()
        return MirrorMaker(load(file), cast(Any, flows), cast(Any, engine)), engine

    return make


async def test_a_flow_that_fails_while_it_is_stopped_is_an_error_and_the_rest_is_stopped(made: Made) -> None:
    error = RetriableError("the target does not answer")
    mirrors, engine = made(a_flow("us->eu", raises_in_stopping=error), a_flow("eu->us"))
    await mirrors.start()
    with pytest.raises(StopFailed, match="us->eu: the target does not answer"):
        await mirrors.stop()
    assert engine.is_stopped


async def test_a_flow_whose_worker_has_failed_leaves_its_group_and_the_others_go_on(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = a_flow("us->eu"), a_flow("eu->us")
    mirrors, _ = made(one, other)
    await mirrors.start()
    stop = asyncio.Event()
    running = asyncio.create_task(mirrors.run_until(stop))
    await asyncio.sleep(0)
    one.workers[0].fail("its topic is gone")
    await one.leaves.wait()
    assert not one.stops.is_set(), "whether its clusters answer is still watched"
    assert [each.state for each in mirrors.progress()] == [ENDED, "running"]
    assert not other.leaves.is_set()
    assert not running.done()
    assert "us->eu: its worker has ended, other flows continue: its topic is gone" in caplog.text
    other.workers[0].fail("and this one")
    with pytest.raises(FlowsFailed, match="us->eu: its topic is gone; eu->us: and this one"):
        await running
    await mirrors.stop()


@pytest.mark.parametrize("how", ["cannot start yet", "has failed"])
async def test_heartbeats_alone_come_back_and_hold_up_no_mirror(made: Made, how: str) -> None:
    failing = [RetriableError("no answer")] if how == "cannot start yet" else []
    beside = a_flow("eu->us", enabled=False, raises_in_starting=failing)
    mirrors, _ = made(a_flow("us->eu"), beside)
    await mirrors.start()
    await beside.starts.wait()
    beside.starts.clear()
    if not failing:
        beside.workers[0].fail("its topic is gone")
    await beside.starts.wait()
    assert beside.stops.is_set(), "the first one was put away"
    assert len(beside.workers) == 2
    await mirrors.stop()


async def test_heartbeats_that_are_refused_for_good_are_told_once(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    beside = a_flow("eu->us", enabled=False, raises_in_starting=[PermanentError("topics are not made here")])
    mirrors, _ = made(a_flow("us->eu"), beside)
    with caplog.at_level(logging.ERROR):
        await mirrors.start()
        await beside.starts.wait()
        for _ in range(5):
            await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == ["eu->us: no heartbeats: topics are not made here"]
    assert len(beside.workers) == 1
    await mirrors.stop()


@pytest.mark.parametrize(
    ("listeners", "word"),
    [(("127.0.0.1:1", "127.0.0.1:2"), "differs between flows"), (("nowhere", "nowhere"), "should be host:port")],
)
async def test_a_listener_that_cannot_serve_all_flows_is_refused_with_its_line(
    made: Made, listeners: tuple[str, str], word: str
) -> None:
    with pytest.raises(ConfigError, match=f"mm2.properties:2: link.listener.*{word}"):
        made(*(a_flow(str(index), listener=listener) for index, listener in enumerate(listeners)))
