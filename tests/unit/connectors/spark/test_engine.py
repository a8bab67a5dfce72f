"""The worker's hold on Spark where its child process ends: with a script for a Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from connectors.spark import engine as engine_module
from connectors.spark.config import SparkSettings
from connectors.spark.engine import EngineBroken, EngineLost, SparkEngine
from connectors.spark.sessions import SparkFailure
from tests.kit.members import until

READY = 'echo \'{"type": "ready", "spark": "none"}\''


def program(folder: Path, text: str) -> Path:
    script = folder / "spark"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o700)
    return script


def children(folder: Path, then: str) -> Path:
    """From now on they read their settings, say that they are ready, and do what is to come ``then``."""
    return program(folder, f"read -r settings\necho started >> {folder / 'starts'}\n{READY}\n{then}")


def frozen(folder: Path) -> Path:
    return program(folder, f"echo started >> {folder / 'starts'}\nexec sleep 1000")


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


@pytest.fixture
async def engine() -> AsyncIterator[SparkEngine]:
    made = SparkEngine(SparkSettings(None, {}))
    yield made
    await made.stop()


async def test_a_child_that_ends_before_a_job_is_replaced(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(children(tmp_path, "exit 3")))
    ensure = SparkEngine.ready

    async def ensured_and_then_gone(self: SparkEngine) -> None:
        await ensure(self)
        await asyncio.wait(self._readers)

    with monkeypatch.context() as late:
        late.setattr(SparkEngine, "ready", ensured_and_then_gone)
        with pytest.raises(EngineLost, match="ended just after its start"):
            await asyncio.wait_for(engine.start_job({}, ""), 60)
    children(tmp_path, "read -r job")  # ends with its first job
    job = await asyncio.wait_for(engine.start_job({}, ""), 60)
    with pytest.raises(EngineLost, match="Spark's driver process ended"):
        await asyncio.wait_for(job.finished, 60)
    assert starts(tmp_path) == 2


async def test_a_child_that_starts_in_silence_is_replaced(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(frozen(tmp_path)))
    with monkeypatch.context() as hurried:
        hurried.setattr(engine_module, "_START_TIMEOUT_S", 0.05)
        for _ in range(2):
            with pytest.raises(EngineLost, match="Spark was not ready within"):
                await engine.start_job({}, "")
        assert engine._process is not None and not engine._is_abandoned, "it may still be at it"
        hurried.setattr(engine_module, "_START_SILENCE_S", 0.0)
        with pytest.raises(EngineLost, match="Spark was not ready within"):
            await engine.start_job({}, "")
    assert engine.timeout_factor == 2, "the next one may be as slow"
    children(tmp_path, "read -r job")
    await asyncio.wait_for(engine.start_job({}, ""), 60)


async def test_a_spark_that_is_starting_is_ended_at_once(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(frozen(tmp_path)))
    monkeypatch.setattr(engine_module, "_STOP_MARGIN_S", 1000.0)
    engine.begin()
    await until((tmp_path / "starts").exists, "that it starts")
    await asyncio.wait_for(engine.stop(), 60)


async def test_a_python_worker_that_hangs_delays_no_end(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a process group of its own, and the standard error of its Spark."""
    hung = tmp_path / "hung"
    then = f"setsid sh -c 'echo $$ >> {hung}; exec sleep 1000' <&- >&- &\nread -r job"
    monkeypatch.setattr(sys, "executable", str(children(tmp_path, then)))
    await asyncio.wait_for(engine.ready(), 60)
    await until(lambda: hung.exists() and hung.read_text(), "that it hangs")
    try:
        await asyncio.wait_for(engine.stop(), 30)
    finally:
        os.kill(int(hung.read_text()), signal.SIGKILL)


async def test_what_a_starting_spark_prints_shows_that_it_is_alive(engine: SparkEngine) -> None:
    engine._ready = asyncio.get_running_loop().create_future()

    async def printed(line: bytes) -> None:
        output = asyncio.StreamReader()
        output.feed_data(line)
        output.feed_eof()
        engine._heard_s = 0.0
        await engine._read_printed(output)

    await printed(b"downloading a jar\n")
    assert engine._heard_s > 0
    engine._ready.set_result(None)
    await printed(b"a warning\n")
    assert engine._heard_s == 0, "later it says so by itself"


def without_a_jvm(folder: Path, said: str) -> Path:
    text = "JvmEnded: the JVM ended with exit code 1"
    failure = orjson.dumps({"type": "broken", "failure": SparkFailure(text).to_wire()}).decode()
    return program(folder, f"read -r settings\necho '{said}' >&2\necho '{failure}'")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING: Using incubator modules", "it printed nothing"),
        # The script that starts Spark was killed, and with it went the file that the JVM was to read.
        ("Error: Invalid properties file", "Error: Invalid properties file"),
    ],
)
async def test_a_jvm_that_ends_while_it_starts_is_started_again_twice(
    engine: SparkEngine, said: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(without_a_jvm(tmp_path, said)))
    for _ in range(2):
        with pytest.raises(EngineLost, match=f"JVM ended while it started: {reason}"):
            await asyncio.wait_for(engine.start_job({}, ""), 60)
    with pytest.raises(EngineBroken, match=r"Spark does not start: .*; check the spark"):
        await asyncio.wait_for(engine.start_job({}, ""), 60)


async def test_each_spark_that_is_abandoned_in_a_row_leaves_the_next_more_time(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine so busy that a Spark takes minutes to start would never run one else."""
    monkeypatch.setattr(engine_module, "_kill_group", lambda _: None)
    engine._process = cast(Any, SimpleNamespace(pid=0))
    given = []
    for _ in range(5):
        assert engine.abandon_if_frozen()
        assert engine.abandon_if_frozen(), "a second task that finds the same one takes nothing more"
        given.append(engine.timeout_factor)
        engine._is_abandoned = False  # as the next launch leaves it
    assert given == [2, 4, 8, 8, 8]
    engine.has_run()
    assert engine.timeout_factor == 1
    engine._process = None


async def test_only_a_spark_that_answers_with_more_jobs_than_slots_may_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(engine_module, "_kill_group", killed.append)
    here = SparkEngine(SparkSettings(None, {"spark.master": "local[2,4]"}))
    elsewhere = SparkEngine(SparkSettings(None, {"spark.remote": "sc://s"}))
    for engine in (here, elsewhere):
        engine._process = cast(Any, SimpleNamespace(pid=7))
        engine._heard_s = time.monotonic()
    here._jobs = dict.fromkeys("ab", cast(Any, None))
    assert [one.may_be_full for one in (here, elsewhere)] == [False, True]
    here._jobs["c"] = cast(Any, None)
    assert [here.may_be_full, here.abandon_if_frozen()] == [True, False]
    assert [here.is_ready] == [False], "it is starting"
    here._ready = asyncio.get_running_loop().create_future()
    here._ready.set_result(None)
    assert [here.is_ready] == [True]
    here._heard_s -= 60
    assert [here.is_ready] == [False]
    assert [here.may_be_full, here.abandon_if_frozen()] == [False, True]
    assert killed == [7]
    for engine in (here, elsewhere):
        engine._process = None
        await engine.stop()
