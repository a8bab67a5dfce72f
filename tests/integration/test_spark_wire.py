"""What a network between a driver and its executors sees: a proxy on both of the driver's ports records every byte."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from connect.cli.daemons.spark import with_archive
from connect.embedded.cluster_config import choose
from connect.embedded.java import find_java
from connectors.spark.config import SparkSettings, check_spark
from connectors.spark.engine import SparkEngine
from tests.kit.spark_cluster import StandaloneSpark

pytestmark = pytest.mark.integration

_DRIVER: Final = "127.0.0.1"
#: Where executors look for the driver.
_ADVERTISED: Final = "127.0.0.2"
TOKEN = "a-token-that-only-the-slice-may-see"
CERTIFICATE = "-----BEGIN CERTIFICATE-----of-the-link"
#: A port of loopback without a listener: the slice ends at once.
PAYLOAD = {"host": "127.0.0.1", "port": 9, "certificate": CERTIFICATE, "token": TOKEN, "slice": "s", "epoch": 0}


class Recorder:
    """Passes connections to ``_ADVERTISED`` on to the same port of ``_DRIVER``, and keeps what goes through."""

    def __init__(self, ports: tuple[int, ...]) -> None:
        self.seen = bytearray()
        self._ports = ports

    async def start(self) -> list[asyncio.Server]:
        return [await asyncio.start_server(partial(self._pass, port), _ADVERTISED, port) for port in self._ports]

    async def _pass(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(_DRIVER, port)
        await asyncio.gather(self._copy(reader, forth), self._copy(back, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.seen += data
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.long)], ids=["protected", "insecure"])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[bool, StandaloneSpark]]:
    with StandaloneSpark(Path(sys.executable), workers=1, protected=request.param) as made:
        yield request.param, made


async def test_neither_token_nor_certificate_can_be_read_on_the_way_to_an_executor(
    cluster: tuple[bool, StandaloneSpark],
) -> None:
    is_protected, standalone = cluster
    ports = tuple(choose(2))
    recorder = Recorder(ports)
    servers = await recorder.start()
    conf = {
        **standalone.properties,
        "spark.driver.host": _ADVERTISED,
        "spark.driver.bindAddress": _DRIVER,
        "spark.driver.port": str(ports[0]),
        "spark.driver.blockManager.port": str(ports[1]),
        # Else compression would hide the texts from this test.
        "spark.broadcast.compress": "false",
    }
    settings = SparkSettings(find_java().home, conf)
    check_spark(settings)
    spark = SparkEngine(with_archive(settings))
    try:
        job = await spark.start_job(PAYLOAD, "")
        await job.finished
    finally:
        await spark.stop()
        for server in servers:
            server.close()
    assert len(recorder.seen) > 10_000
    # Without protection both are seen, so the recording can tell.
    found = [text.encode() in recorder.seen for text in (TOKEN, CERTIFICATE)]
    assert found == [not is_protected] * 2
