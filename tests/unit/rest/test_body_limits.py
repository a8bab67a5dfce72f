"""Bodies that are larger than a worker takes: refused while they come, at a cost that no loop and no memory feels."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from connect.core.config.rest_settings import REST
from connect.core.herder_api import Forbidden
from connect.core.jackson import MAX_ELEMENTS
from rest import bodies
from rest.request_handling import BodyBudget
from rest.rest_config import RestSettings
from tests.kit.large_bodies import ENDPOINTS, MIB, OBJECTS, send
from tests.kit.raw_http import ask
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import ANYWHERE, HERE, running_server


@asynccontextmanager
async def served(settings: RestSettings, herder: DictHerder) -> AsyncIterator[int]:
    async with running_server(settings, herder) as server:
        yield server.ports[0]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_ten_mebibytes_of_objects_cost_little(method: str, path: str, chunked: bool) -> None:
    herder = DictHerder()
    async with served(HERE, herder) as port:
        await ask(port, "GET", "/connectors")  # what the first request prepares is not counted
        began_s = time.thread_time()
        status = await asyncio.to_thread(send, port, method, path, OBJECTS, chunked=chunked)
        loop_s = time.thread_time() - began_s
        tracemalloc.start()
        try:
            await asyncio.to_thread(send, port, method, path, OBJECTS, chunked=chunked)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # What an endpoint takes no body of is not read beyond what fits into a buffer.
    is_left_unread = chunked and path.endswith(("/pause", "/restart"))
    assert status == (404 if is_left_unread else 413)
    assert {name for name, *_ in herder.done} <= {"connectors", "set_target_state", "restart_connector"}
    assert loop_s < 0.2  # to parse them takes 0.27 s
    assert peak_bytes < 100 * MIB


async def test_a_signature_is_checked_before_a_body_is_read() -> None:
    herder = DictHerder()
    herder.refusals["put_task_configs"] = Forbidden("Internal request contained invalid signature.")
    async with served(HERE, herder) as port:
        for body in (b"no json", b"[" * 100_000, b"null"):
            answer = await ask(port, "POST", "/connectors/a/tasks", body)
            assert (answer.status, answer.json["message"]) == (403, "Internal request contained invalid signature.")


def unfinished(port: int, headers: str, body: bytes, address: str) -> socket.socket:
    """Send a request between workers without the last byte of its body."""
    length = f"Content-Type: application/json\r\nContent-Length: {len(body) + 1}\r\n"
    opened = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(address, 0))
    opened.sendall(f"POST /connectors/a/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}{length}\r\n".encode())
    opened.sendall(body)
    return opened


async def answered(opened: socket.socket, last: bytes = b"") -> int:
    """Return the status of the answer; 0 if the connection was closed, which may take an answer with it that was sent
    while the body still came."""
    opened.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=opened)
    writer.write(last)
    try:
        status_line = await reader.readline()
        return int(status_line.split()[1]) if status_line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


FORWARDED = (
    "X-Heliograph-Forwarded: ADMIN ann 1 x\r\nX-Connect-Authorization: AAAA\r\n"
    "X-Connect-Request-Signature-Algorithm: HmacSHA256\r\n"
)


@pytest.mark.parametrize("headers", ["", FORWARDED], ids=["between workers", "forwarded"])
async def test_bodies_of_unknown_senders_are_bounded_in_total(headers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of the largest in memory, two from one address, until their signature can be checked."""
    taken: list[int] = []
    real = BodyBudget.take

    def take(self: BodyBudget, address: str, size: int) -> None:
        real(self, address, size)
        taken.append(size)

    monkeypatch.setattr(BodyBudget, "take", take)
    limit = 10 * MIB
    body = b"[" * (limit - MIB)
    herder = DictHerder()
    herder.refusals["put_task_configs"] = Forbidden("Internal request contained invalid signature.")
    async with served(RestSettings((ANYWHERE,), max_request_bytes=limit), herder) as port:
        tracemalloc.start()
        try:
            opened = []
            for address in ("127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"):
                opened.append(await asyncio.to_thread(unfinished, port, headers, body, address))
                while sum(taken) < len(opened) * len(body):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # it is being received
            for address in ("127.0.0.3", "127.0.0.4", "127.0.0.5"):
                assert await answered(await asyncio.to_thread(unfinished, port, headers, body, address)) in (503, 0)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 60 * MIB
        assert (await ask(port, "GET", "/connectors")).status == 200
        for each in opened:
            assert await answered(each, b"[") == 403
        assert await answered(await asyncio.to_thread(unfinished, port, headers, body, "127.0.0.3"), b"[") == 403


async def test_requests_between_workers_may_be_longer() -> None:
    herder = DictHerder()
    configs = [{"key": "x" * 1000}] * 2000
    async with served(HERE, herder) as port:
        assert (await ask(port, "POST", "/connectors/a/tasks", configs)).status == 204
        assert (await ask(port, "PUT", "/connectors/a/config", {"key": "x" * (2 * MIB)})).status == 413
    assert [name for name, *_ in herder.done] == ["put_task_configs"]


async def test_the_limit_is_a_setting() -> None:
    settings = RestSettings.of(REST.parse({"listeners": "http://127.0.0.1:0", "rest.max.request.bytes": "2000"}))
    async with served(settings, DictHerder()) as port:
        largest = b'{"k":"' + b"x" * (2000 - 8) + b'"}'
        assert (await ask(port, "PUT", "/connectors/a/config", largest)).status == 201
        answer = await ask(port, "PUT", "/connectors/a/config", largest + b" ")
        assert answer.status == 413
        assert answer.json["message"] == "The body of a request may have at most 2000 bytes."


async def test_elements_are_counted_before_objects_are_made() -> None:
    herder = DictHerder()
    async with served(HERE, herder) as port:
        body = b'{"offsets":[' + b"{}," * (MAX_ELEMENTS // 2) + b"{}]}"
        answer = await ask(port, "PATCH", "/connectors/a/offsets", body)
        assert (answer.status, answer.json["message"]) == (
            413,
            f"The body is too large: it has more than {MAX_ELEMENTS} elements.",
        )
    assert herder.done == []


async def test_bodies_are_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[int] = []

    def read(body: bytes, shape: TypeAdapter[Any]) -> Any:
        readers.append(threading.get_ident())
        return bodies.read(body, shape)

    monkeypatch.setattr("rest.request_handling.bodies", SimpleNamespace(read=read))
    async with served(HERE, DictHerder()) as port:
        await ask(port, "PUT", "/connectors/a/config", {})
    assert len(readers) == 1
    assert readers[0] != threading.get_ident()
