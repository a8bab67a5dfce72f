"""A long log of a real broker, read by a process of its own: the same as otherwise, and no process is left."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from connect.core.errors import ClusterUnreachable, RetriableError
from connect.core.model import NewTopic
from connect.embedded import cluster_config
from connect.kafka import long_log
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic, read_to_end
from connect.kafka.log.producer import OutRecord, PlainWriter, TransactionalWriter
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import connection_settings
from tests.kit.brokers import KafkaCluster
from tests.kit.members import until
from tests.kit.topics import until_led

pytestmark = pytest.mark.integration

SECRET = "not-for-others"


class Client:
    def __init__(self, bootstrap: str) -> None:
        settings = connection_settings({"bootstrap.servers": bootstrap}, client_id="long", where="cluster us")
        # Unused, as the listener asks for nothing.
        self.cluster = Cluster(replace(settings, username="ann", password=SECRET), "us")
        self.admin = Admin(settings, "us")
        self.topic = f"log-{uuid4()}"

    async def make(self, partitions: int) -> None:
        await ensure_compacted_topic(self.admin, NewTopic(self.topic, partitions, 1))
        await until_led(self.cluster, {self.topic: partitions})

    async def write(self, chance: random.Random, rounds: int) -> None:
        """Plain records, transactions that are committed, and such that are aborted; a third deletes a key."""
        for number in range(rounds):
            records = [
                OutRecord(
                    self.topic,
                    b"key-%d" % chance.randrange(20),
                    None if chance.random() < 0.3 else b"%d-%d" % (number, at),
                    headers=(("n", b"%d" % at),),
                )
                for at in range(chance.randrange(1, 30))
            ]
            kind = chance.choice(("plain", "committed", "aborted"))
            if kind == "plain":
                await PlainWriter(self.cluster).write(records)
                continue
            writer = TransactionalWriter(self.cluster, f"writer-{uuid4()}")
            await writer.open()

            async def commits(_: object, kind: str = kind) -> bool:
                return kind == "committed"

            await writer.write(records, commits)

    async def read(self, **arguments: object) -> list[LogRecord]:
        found: list[LogRecord] = []
        await read_to_end(self.cluster, self.topic, found.append, **arguments)  # type: ignore[arg-type]
        return found

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[None]:
        """Nobody reads past it until the context ends."""
        is_open, may_end = asyncio.Event(), asyncio.Event()

        async def wait(_: object) -> bool:
            is_open.set()
            await may_end.wait()
            return True

        writer = TransactionalWriter(self.cluster, f"open-{uuid4()}")
        writing = asyncio.ensure_future(writer.write([OutRecord(self.topic, b"open", b"v")], wait))
        await is_open.wait()
        try:
            yield
        finally:
            may_end.set()
            await writing


@pytest.fixture
async def client(us: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(long_log, "LONG_OFFSETS", 10)
    client = Client(us.bootstrap)
    yield client
    await client.admin.close()
    await client.cluster.close()
    assert not readers()


def readers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if long_log._READER in one.cmdline()]


async def a_reader() -> psutil.Process:
    await until(readers, "a process reads", 60)
    return readers()[0]


def folded(records: list[LogRecord]) -> dict[tuple[int, bytes | None], LogRecord]:
    return {(one.partition, one.key): one for one in records}


@pytest.mark.parametrize("seed", range(3))
async def test_it_gives_what_reading_gives(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    await client.make(4)
    await client.write(chance, 12)
    for read_committed in (True, False):
        for partitions in (None, {1, 2}):
            after = {partition: chance.randrange(30) for partition in range(4)} if chance.random() < 0.5 else None
            asked = {"partitions": partitions, "after": after, "read_committed": read_committed}
            whole, last = await client.read(**asked), await client.read(only_last=True, **asked)
            assert folded(last) == folded(whole)
            for partition in range(4):
                offsets = [one.offset for one in last if one.partition == partition]
                assert offsets == sorted(set(offsets))
    assert len(last) < len(whole), "they are other ways to read"
    await client.write(chance, 3)
    asked = {"read_committed": True}
    assert folded(await client.read(only_last=True, **asked)) == folded(await client.read(**asked)), "with what is kept"


async def test_an_open_transaction_is_waited_for(client: Client) -> None:
    await client.make(1)
    await client.write(random.Random(1), 5)
    async with client.open_transaction():
        await PlainWriter(client.cluster).write([OutRecord(client.topic, b"behind", b"it")])
        with pytest.raises(
            RetriableError, match=rf"nothing came for 5 s; a transaction .* is open in {client.topic}-0"
        ):
            await client.read(only_last=True, read_committed=True, timeout_s=5)
        assert not readers()
        reading = asyncio.ensure_future(client.read(only_last=True, read_committed=True))
        await a_reader()
    assert [one.key for one in (await reading)[-2:]] == [b"open", b"behind"]


async def test_its_process_ends_with_who_reads_and_knows_secrets_from_its_input_alone(client: Client) -> None:
    await client.make(1)
    await client.write(random.Random(2), 5)
    async with client.open_transaction():
        reading = asyncio.ensure_future(client.read(only_last=True, read_committed=True))
        process = await a_reader()
        assert not any(SECRET in one for one in (*process.cmdline(), *process.environ().values()))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not process.is_running()


async def test_a_process_that_dies_is_tried_again_by_who_reads(client: Client) -> None:
    await client.make(1)
    await client.write(random.Random(3), 5)
    async with client.open_transaction():
        reading = asyncio.ensure_future(client.read(only_last=True, read_committed=True))
        (await a_reader()).kill()
        with pytest.raises(RetriableError, match=rf"topic {client.topic} could not be read to its end: .* code -9"):
            await reading
    assert folded(await client.read(only_last=True)) == folded(await client.read())


async def test_it_ends_with_its_parent(client: Client, tmp_path: Path) -> None:
    await client.make(1)
    await client.write(random.Random(4), 5)
    async with client.open_transaction():
        with (tmp_path / "rows").open("wb") as file:
            order = long_log._Order(client.cluster, client.topic, {0: (0, 1 << 40)}, True)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", long_log._READER, stdin=-1, stdout=-1, pass_fds=(file.fileno(),)
            )
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(order.line(file.fileno()))
            await process.stdout.readline()  # it reads
            process.stdin.close()
            async with asyncio.timeout(30):
                assert await process.wait() == 1


async def test_what_it_cannot_do_is_said_as_readers_say_it(client: Client) -> None:
    await client.make(1)
    (port,) = cluster_config.choose(1)
    nowhere = Cluster(replace(client.cluster.settings, bootstrap=((cluster_config.HOST, port),)), "us")

    def progressed() -> None: ...

    with pytest.raises(
        ClusterUnreachable, match=rf"cluster us \({cluster_config.HOST}:{port}\): topic .* cannot be read"
    ):
        await long_log._read(long_log._Order(nowhere, client.topic, {0: (0, 5)}, True), progressed)
    await client.write(random.Random(5), 3)
    order = long_log._Order(client.cluster, client.topic, {0: (0, 5)}, False)
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(RetriableError, match=r"cannot be read by its reader process: .*No space left"):
        async with long_log._process(order, full) as process:
            await long_log._ends(order, process, progressed)
    os.close(full)
