"""The worker's hold on a real Spark: what is frozen is replaced, what is away is named, and nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from connect.cli.daemons.spark import record_archive, with_archive
from connect.embedded.java import find_java
from connect.kafka.security.connection_settings import connection_settings
from connectors.control_link.protocol import SliceSettings
from connectors.control_link.server import LinkServer, LinkSettings
from connectors.source.slice_handle import SliceHandle, SliceLost
from connectors.spark.config import SparkSettings
from connectors.spark.engine import EngineBroken, EngineLost, SparkEngine
from tests.kit.brokers import KafkaCluster
from tests.kit.one_loop import OneLoop
from tests.kit.processes import Member, Role, gone, tree, wait_until

pytestmark = pytest.mark.integration

DEADLINE_S = 180.0
#: A port of loopback without a listener: a slice ends at once.
NO_LINK = {"host": "127.0.0.1", "port": 9, "certificate": "", "token": "", "slice": "nobody's", "epoch": 0}
JAVA_HOME = find_java().home


@asynccontextmanager
async def engine(conf: dict[str, str]) -> AsyncIterator[SparkEngine]:
    started = SparkEngine(with_archive(SparkSettings(JAVA_HOME, conf)))
    try:
        yield started
    finally:
        await started.stop()


def jvms() -> list[Member]:
    return [member for member in tree(os.getpid()) if member.role is Role.SPARK_JVM]


@asynccontextmanager
async def slices(spark: SparkEngine, us: KafkaCluster, eu: KafkaCluster) -> AsyncIterator[Callable[..., SliceHandle]]:
    """Makes handles of slices between two brokers; all are closed in the end."""
    sides = [connection_settings({"bootstrap.servers": one.bootstrap}, client_id="t", where="t") for one in (us, eu)]
    settings = SliceSettings("us->eu", 0, sides[0].to_wire(), sides[1].to_wire())
    links, made = LinkServer(LinkSettings(), OneLoop(), spark.code), list[SliceHandle]()
    await links.start()

    def make(**bounds: float) -> SliceHandle:
        made.append(SliceHandle(spark, links, settings, len(made), lambda _: None, **bounds))
        return made[-1]

    try:
        yield make
    finally:
        for handle in made:
            await handle.close()
        await links.stop()


@pytest.mark.long
async def test_a_frozen_spark_is_replaced_by_the_next_slice(us: KafkaCluster, eu: KafkaCluster) -> None:
    async with engine({}) as spark, slices(spark, us, eu) as handle:
        await asyncio.wait_for(handle().open(), DEADLINE_S)
        frozen = jvms()
        assert len(frozen) == 1
        frozen[0].process.send_signal(signal.SIGSTOP)
        with pytest.raises((SliceLost, EngineLost)):
            await handle(open_timeout_s=1.0).open()
        wait_until(lambda: gone(frozen), DEADLINE_S, "the frozen Spark is ended")
        following = handle()
        await asyncio.wait_for(following.open(), 2 * DEADLINE_S)
        assert not following.ended.done()
    assert not jvms()


async def test_a_server_that_is_away_is_named_and_worth_another_try() -> None:
    remote = "sc://127.0.0.1:1"
    async with engine({"spark.remote": f"{remote}/;token=secret"}) as spark:
        for _ in range(2):
            with pytest.raises(
                EngineLost, match=f"{remote} does not accept the application: failed to connect"
            ) as caught:
                await asyncio.wait_for(spark.start_job({}, ""), DEADLINE_S)
            assert "secret" not in str(caught.value)


async def test_keys_that_spark_refuses_are_not_tried_again() -> None:
    before = sparks()
    async with engine({"spark.driver.memory": "100m"}) as spark:
        with pytest.raises(EngineBroken, match="memory"):
            await asyncio.wait_for(spark.start_job({}, ""), DEADLINE_S)
    wait_until(lambda: not sparks() - before, DEADLINE_S, "no process of the Spark that was refused is left")


def sparks() -> set[psutil.Process]:
    """What runs of a Spark below this process, by its command line; other tests may have left theirs."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "spark" in " ".join(child.cmdline()):
                found.add(child)
    return found


async def test_workers_are_forked_by_the_parent_that_was_started_beside_the_jvm() -> None:
    def early() -> list[Member]:
        return [one for one in tree(os.getpid()) if one.process.cmdline()[-1:] == ["connectors.spark.python_daemon"]]

    before = sparks()
    async with engine({}) as spark:
        await asyncio.wait_for(spark.ready(), DEADLINE_S)
        wait_until(lambda: len(early()) > 1, DEADLINE_S, "a Python worker runs")
        parent, *workers = early()
        assert parent.role is Role.PYTHON_DAEMON
        assert {(one.role, one.process.ppid()) for one in workers} == {(Role.PYTHON_WORKER, parent.pid)}
        others = sparks() - before
        assert {one.process for one in (parent, *workers)} <= others
    wait_until(lambda: not any(map(_runs, others)), DEADLINE_S, "nothing of it is left")


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def test_a_parent_of_workers_that_is_killed_is_replaced() -> None:
    async with engine({}) as spark:
        first = await asyncio.wait_for(spark.start_job(NO_LINK, ""), DEADLINE_S)
        await asyncio.wait_for(first.finished, DEADLINE_S)
        for one in tree(os.getpid()):
            if one.role in (Role.PYTHON_DAEMON, Role.PYTHON_WORKER):
                one.process.kill()
        second = await asyncio.wait_for(spark.start_job(NO_LINK, ""), DEADLINE_S)
        await asyncio.wait_for(second.finished, DEADLINE_S)


@pytest.mark.long
async def test_the_recorded_classes_are_those_that_the_next_spark_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = SparkSettings(JAVA_HOME)
    assert with_archive(settings) is settings
    recorded = await record_archive(settings)
    assert recorded is not None
    assert recorded.stat().st_size > 10_000_000
    assert str(recorded) in with_archive(settings).java_options
