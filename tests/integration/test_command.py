"""``connect-mirror-maker`` as its users meet it: a process with a file, signals and an exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from connect.core.errors import PermanentError
from connect.core.model import NewTopic
from connect.embedded.brokers import KafkaCluster
from connect.kafka.admin import Admin
from connect.kafka.settings import ConnectionSettings, connection_settings
from connectors.verify import Report, compare_topics
from tests.kit.mirror import SMALL, STOP_DEADLINE_S

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-c", "from connect.cli.mirror_maker import main; main()")
DEADLINE_S = 400


class Command:
    """A running command, its lines of log as they come: it never waits for somebody to read them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read(), name="stderr of the command")

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))

    async def until(self, wanted: Callable[[str], bool]) -> str:
        """The first line that is ``wanted``."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := [line for line in self.lines if wanted(line)]):
                assert not self._reading.done(), "the command ended:\n" + "\n".join(self.lines)
                await asyncio.sleep(0.05)
        return found[0]

    async def stop(self, number: signal.Signals) -> tuple[int, float]:
        """Exit code and seconds until it was there."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            code = await self.process.wait()
            await self._reading
        return code, time.monotonic() - began_s

    async def close(self) -> None:
        """Kill what still runs."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    running = Command(process)
    try:
        yield running
    finally:
        await running.close()


def settings(bootstrap: str) -> ConnectionSettings:
    return connection_settings({"bootstrap.servers": bootstrap}, client_id="command-test", where="test")


async def written(where: ConnectionSettings, topic: str, records: int) -> None:
    admin = Admin(where)
    try:
        assert await admin.create_topics([NewTopic(topic, 3, 1)]) == {topic: None}
    finally:
        await admin.close()
    producer = AIOKafkaProducer(**where.aiokafka_arguments(), compression_type="lz4")
    await producer.start()
    try:
        for number in range(records):
            await producer.send(topic, b"record %d" % number, b"%d" % number, partition=number % 3)
    finally:
        await producer.stop()


async def mirrored(source: ConnectionSettings, target: ConnectionSettings, topic: str, records: int) -> Report:
    """The comparison, once it finds ``records`` equal ones; the last one after the deadline."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            report = await compare_topics(source, target, {topic: f"us.{topic}"})
            if report.records == records or time.monotonic() > deadline_s:
                return report
        except PermanentError:  # the remote topic is not there yet
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(0.2)


async def test_it_mirrors_until_sigterm_and_exits_with_0(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    topic = f"command-{uuid.uuid4().hex[:8]}"
    source, target = settings(us.bootstrap), settings(eu.bootstrap)
    await written(source, topic, 3000)
    file = tmp_path / "mm2.properties"
    file.write_text(
        f"clusters = us, eu\nus.bootstrap.servers = {us.bootstrap}\neu.bootstrap.servers = {eu.bootstrap}\n"
        f"us->eu.enabled = true\nus->eu.topics = {topic}\n"
        "sync.topic.acls.enabled = true\nno.such.key = 1\n"
        + "".join(f"{key} = {value}\n" for key, value in SMALL.items())
    )
    async with command(str(file)) as running:
        notice = await running.until(lambda line: "no.such.key" in line)
        assert " WARNING " in notice
        report = await mirrored(source, target, topic, 3000)
        assert (report.difference, report.records) == (None, 3000)
        code, seconds = await running.stop(signal.SIGTERM)
        assert code == 0
        assert seconds < STOP_DEADLINE_S
    assert not [line for line in running.lines if "Traceback" in line]
