"""One mirror with transform.sql that meets hostile data and idle connections."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import zstandard

from connect.wire import batch as wire
from connect.wire.fetch_produce import uvarint
from tests.kit.brokers import KafkaCluster
from tests.kit.copies import await_records, send
from tests.kit.direct import Broker
from tests.kit.logs import batch_of
from tests.kit.mirror import CALM, Mirror, one_flow, with_rest
from tests.kit.processes import Role, soonest_s, wait_until
from tests.kit.rest_client import RestClient
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long]

TOPIC = "hostile"
DEADLINE_S = 600.0
SOCKETS = 2000
MIB = 1 << 20


@dataclass
class Flow:
    """The running mirror, what is written to partition 1 of its topic, and its REST API."""

    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror
    url: str
    written: int = 0

    def copies(self, count: int) -> None:
        asyncio.run(send(self.us.bootstrap, TOPIC, (b"value %d" % number for number in range(count)), [1]))
        self.written += count
        await_records(self.mirror, self.eu.bootstrap, f"us.{TOPIC}", self.written, DEADLINE_S)

    def get(self, path: str) -> Any:
        return RestClient(f"{self.url}/").ask("GET", path)

    def python_bytes(self) -> int:
        """The memory of the worker, Spark's driver and its Python workers; the JVM has a limit of its own."""
        total = 0
        for member in self.mirror.members():
            if member.role not in (Role.SPARK_JVM, Role.OTHER):
                with suppress(psutil.NoSuchProcess):
                    total += member.process.memory_full_info().pss
        return total


@pytest.fixture(scope="module")
def flow(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    asyncio.run(make_topics(us.bootstrap, {TOPIC: 2}))
    rest = with_rest()
    properties = {
        **one_flow(us.bootstrap, eu.bootstrap, TOPIC, tasks=1),
        **CALM,
        **rest,
        "us->eu.transform.sql": "SELECT upper(string(value)) AS value FROM records",
    }
    with Mirror(properties, tmp_path_factory.mktemp("hostile")) as mirror:
        mirror.start()
        found = Flow(us, eu, mirror, rest["listeners"])
        found.copies(10)
        yield found
        assert mirror.stop() == 0


def bomb() -> bytes:
    """A batch that brokers take: one record with a GiB of zeros, which zstd makes into 32 KiB."""
    value_bytes = 1 << 30
    front = b"\0\0\0" + uvarint(1) + uvarint(value_bytes << 1)
    packer = zstandard.ZstdCompressor().compressobj()
    parts = [packer.compress(uvarint((len(front) + value_bytes + 1) << 1) + front)]
    parts += [packer.compress(bytes(MIB)) for _ in range(value_bytes // MIB)]
    return batch_of(0, b"".join([*parts, packer.compress(b"\0"), packer.flush()]), wire.CODEC_NAMES.index("zstd"))


def test_a_batch_that_expands_to_a_gibibyte_stops_its_partition_only(flow: Flow) -> None:
    base, peak, done = flow.python_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, flow.python_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        Broker(flow.us, 0).append(TOPIC, bomb())
        path = "/us/eu/connectors/MirrorSourceConnector/partitions?state=stopped"
        wait_until(lambda: flow.get(path)["partitions"], DEADLINE_S, "the partition has stopped")
        flow.copies(10)
    finally:
        done.set()
        watching.join()
    (stopped,) = flow.get(path)["partitions"]
    assert "exceeds" in json.dumps(stopped) and TOPIC in json.dumps(stopped)
    assert base < peak < base + 300 * MIB, (base, peak)


@contextmanager
def flooded(ports: list[int]) -> Iterator[None]:
    with ExitStack() as closing:
        for number in range(SOCKETS):
            each = closing.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", ports[number % len(ports)]))
        yield


def test_two_thousand_idle_connections_stop_no_copy(flow: Flow) -> None:
    """To all that the worker listens on: its REST API and the link of its slices."""
    listening = psutil.Process(flow.mirror.pid).net_connections("tcp")
    ports = sorted({each.laddr.port for each in listening if each.status == psutil.CONN_LISTEN})
    assert len(ports) >= 2
    with flooded(ports):
        flow.copies(10)
        assert soonest_s(lambda: flow.get("/health")) < 1.0
        flow.copies(10)
