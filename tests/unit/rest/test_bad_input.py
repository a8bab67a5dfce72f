"""Malformed requests get Java's status, the server continues, and nothing half-read reaches the herder."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from connect.core.errors import HeliographError
from rest import server
from rest.rest_config import RestSettings
from tests.kit.raw_http import Raw, ask, connected, exchange, read_answer
from tests.kit.rest_herder import DictHerder

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def received_until_cut(reader: asyncio.StreamReader) -> int:
    """How many bytes still come before the server closes the connection, in order or not."""
    received = 0
    try:
        while data := await reader.read(1 << 20):
            received += len(data)
    except ConnectionError:
        pass
    return received


def error(answer: Raw) -> tuple[int, str]:
    body = answer.json
    assert list(body) == ["error_code", "message"]
    assert body["error_code"] == answer.status
    return answer.status, body["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        *(("GET", path, 404, "HTTP 404 Not Found") for path in ("/nothing", "/connectors/a/tasks-config")),
        *(("GET", f"/connectors/a/tasks/{x}/status", 404, "HTTP 404 Not Found") for x in ("x", "99999999999", "1_0")),
        ("POST", "/connectors/a/tasks/1.5/restart", 404, "HTTP 404 Not Found"),
        ("DELETE", "/connectors", 405, "HTTP 405 Method Not Allowed"),
        ("GET", "/connectors/a/pause", 405, "HTTP 405 Method Not Allowed"),
        ("BREW", "/connectors/a", 405, "HTTP 405 Method Not Allowed"),
        ("GET", "/connectors/zz", 404, "Connector zz not found"),
    ],
)
async def test_paths_and_methods(port: int, method: str, path: str, status: int, text: str) -> None:
    assert error(await ask(port, method, path)) == (status, text)


async def test_405_names_what_is_allowed(port: int) -> None:
    answer = await ask(port, "POST", "/connectors/a/config")
    assert answer.header("allow") == "HEAD,GET,OPTIONS,PUT,PATCH"


async def test_options_and_head(port: int, herder: DictHerder) -> None:
    herder.add("a")
    options = await ask(port, "OPTIONS", "/connectors/a")
    assert (options.status, options.header("allow")) == (200, "HEAD,DELETE,GET,OPTIONS")
    assert (options.header("content-type"), options.body) == ("text/plain", b"HEAD, DELETE, GET, OPTIONS")
    assert (await ask(port, "OPTIONS", "/nothing")).status == 404
    whole = await ask(port, "GET", "/connectors/a")
    head = await ask(port, "HEAD", "/connectors/a")
    assert (head.status, head.header("content-length")) == (200, str(len(whole.body)))
    assert (await ask(port, "HEAD", "/connectors/a/pause")).status == 405


@pytest.mark.parametrize("path", ["/connectors/a/", "/connectors;v=1/a;b=c", "http://127.0.0.1:1/connectors/a"])
async def test_paths_are_read_without_their_ends_parameters_and_host(port: int, herder: DictHerder, path: str) -> None:
    herder.add("a")
    assert (await ask(port, "GET", path)).json["name"] == "a"


@pytest.mark.parametrize(
    "path", ["//", "/connectors//status", "/connectors/%FF", "/connectors/%zz", "/connectors/a%0Ab"]
)
async def test_paths_that_no_name_has(port: int, path: str) -> None:
    answer = await ask(port, "GET", path)
    assert answer.status == 400
    assert answer.header("content-type") == "text/html;charset=iso-8859-1"
    answer = await ask(port, "DELETE", path)
    assert (answer.status, answer.header("content-type"), answer.body) == (400, None, b"")


@pytest.mark.parametrize("name", ["a/b", "100%", "a b", "ü-名", "a\\b", "..", "a?b#c", "x+y", "%2F", "a;b=c"])
async def test_names_with_any_character(port: int, herder: DictHerder, name: str) -> None:
    created = await ask(port, "POST", "/connectors", {"name": name, "config": {}})
    assert created.status == 201
    location = created.header("location")
    assert location is not None
    path = location.removeprefix(f"http://127.0.0.1:{port}")
    path = path.replace("/..", "/%2E%2E")
    assert (await ask(port, "GET", path)).json["name"] == name
    assert (await ask(port, "GET", f"{path}/status")).json["name"] == name
    assert (await ask(port, "DELETE", path)).status == 204
    assert herder.configs == {}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_a_body_of_another_type(port: int, herder: DictHerder, kind: str) -> None:
    answer = await ask(port, "PUT", "/connectors/a/config", {"k": "v"}, headers={"Content-Type": kind})
    assert error(answer) == (415, "HTTP 415 Unsupported Media Type")
    assert herder.done == []


async def test_a_body_of_no_type(port: int, herder: DictHerder) -> None:
    request = b"PUT /connectors/a/config HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    assert error(await exchange(port, request)) == (415, "HTTP 415 Unsupported Media Type")
    assert herder.done == []
    nothing = b"PUT /connectors/a/config HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    assert error(await exchange(port, nothing))[0] == 500


async def test_json_with_a_charset(port: int) -> None:
    kind = {"Content-Type": "application/json; charset=UTF-8"}
    assert (await ask(port, "PUT", "/connectors/a/config", {"k": "v"}, headers=kind)).status == 201


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        *((accept, 406) for accept in ("text/plain", "application/xml, text/*", "application/json;q=0")),
        *((accept, 200) for accept in ("*/*", "text/html, application/*;q=0.1", "text/html, *; q=.2")),
    ],
)
async def test_clients_that_take_json_or_do_not(port: int, accept: str, status: int) -> None:
    answer = await ask(port, "GET", "/connectors", headers={"Accept": accept})
    assert answer.status == status and (status == 200 or error(answer)[1] == "HTTP 406 Not Acceptable")


CREATE = ("POST", "/connectors")
CONFIG = ("PUT", "/connectors/a/config")
OFFSETS = ("PATCH", "/connectors/a/offsets")
VALIDATE = ("PUT", "/connector-plugins/File/config/validate")
#: What follows the name of a connector that is to be created.
CREATED = (
    *(b"", b',"config":null', b',"config":{},"extra":1', b',"config":{},"initial_state":"GONE"'),
    *(b',"name":["n"],"config":{}', b',"config":{"k":{"deep":1}}'),
)
CONFIGS = (
    *(b'{"k":[]}', b'{"k":NaN}', b'{"k":01}', b"{'k':1}", b'{"k":"\xff"}', b'{"k":"\\ud800"}', b"[" * 100_000),
    *(b'{"k":"v"} trailing', b"{} {}", b"{}]"),
)


@pytest.mark.parametrize(
    ("request_line", "body"),
    [
        *((line, body) for line in (CREATE, CONFIG, OFFSETS, VALIDATE) for body in (b"", b"null", b"[]", b"{", b'"a"')),
        *((CREATE, b'{"name":"n"%s}' % rest) for rest in CREATED),
        *((CONFIG, body) for body in CONFIGS),
        *((OFFSETS, body) for body in (b'{"offsets":{}}', b'{"offsets":[123]}', b'{"key":[]}')),
        *((OFFSETS, b'{"offsets":[%s]}' % entry) for entry in (b'{"partition":1}', b'{"part":{}}')),
        (("POST", "/connectors/a/tasks"), b'{"k":"v"}'),
        (("POST", "/connectors/a/tasks"), b'[{"k":{}}]'),
        (("PUT", "/admin/loggers/root"), b"[]"),
    ],
    ids=str,
)
async def test_bodies_of_wrong_shape(port: int, herder: DictHerder, request_line: tuple[str, str], body: bytes) -> None:
    assert error(await ask(port, *request_line, body))[0] == 500
    assert herder.done == []


async def test_an_error_repeats_no_value(port: int) -> None:
    for body in (b'{"password":"hunter2"', b'{"password":["hunter2"]}', b'{"password":"hunter2\\ud800"}'):
        answer = await ask(port, "PUT", "/connectors/a/config", body)
        assert answer.status == 500 and b"hunter2" not in answer.body


async def test_java_reads_behind_mistakes_that_change_nothing(port: int, herder: DictHerder) -> None:
    twice = await ask(port, "PUT", "/connectors/a/config", '﻿{"k":"v","k":"w"} '.encode())
    assert twice.status == 201 and herder.configs["a"]["k"] == "w"
    wide = await ask(
        port, "PUT", "/connectors/b/config", json.dumps({"k": "ü"}, ensure_ascii=False).encode("utf-16-le")
    )
    assert wide.status == 201 and herder.configs["b"]["k"] == "ü"


# -- size and speed ----------------------------------------------------------------------------------------------------


LIMIT_BYTES = RestSettings().max_request_bytes
PUT_CONFIG = b"PUT /connectors/a/config HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def test_a_client_that_sends_a_large_body_reads_its_answer(port: int, herder: DictHerder) -> None:
    for headers in ({}, {"Expect": "100-continue"}):
        answer = await ask(port, "POST", "/connectors", b"x" * 20_000_000, headers)
        assert error(answer) == (413, f"The body of a request may have at most {LIMIT_BYTES} bytes.")
        assert answer.header("connection") == "close"
    assert herder.done == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\xff\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ],
)
async def test_what_is_not_http(port: int, data: bytes) -> None:
    answer = await exchange(port, data)
    assert answer.status == 400
    assert (await ask(port, "GET", "/connectors")).status == 200


async def test_nonsense_behind_an_answer_that_is_under_way(port: int, herder: DictHerder) -> None:
    herder.hangs.add("connector_info")
    async with connected(port) as (reader, writer), asyncio.timeout(60):
        writer.write(b"GET /connectors/a HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"\x00\x01nonsense\r\n\r\n")
        assert (await read_answer(reader)).status == 500
        await reader.read()
    assert (await ask(port, "GET", "/connectors")).status == 200


@pytest.mark.parametrize(
    "sent", [b"", b"GET /conn", b"GET / HTTP/1.1\r\nHost: localhost\r\n", PUT_CONFIG + b"Content-Length: 9\r\n\r\n{"]
)
async def test_a_client_that_never_ends_its_request(port: int, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST_ARRIVES_WITHIN_S", 0.2)
    async with connected(port) as (reader, writer), asyncio.timeout(60):
        writer.write(sent)
        assert await received_until_cut(reader) == 0


async def test_a_kept_connection_has_the_same_time_for_its_next(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_ARRIVES_WITHIN_S", 0.2)
    request = b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with connected(port, first=request) as (reader, writer), asyncio.timeout(60):
        assert (await read_answer(reader)).status == 200
        await asyncio.sleep(0.3)
        writer.write(request)
        assert (await read_answer(reader)).status == 200
        await asyncio.sleep(0.3)
        writer.write(request[:10])
        assert await received_until_cut(reader) == 0


async def test_a_client_that_reads_nothing(port: int, herder: DictHerder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_MOVES_WITHIN_S", 0.2)
    cut = asyncio.Event()
    lost = server.BoundedProtocol.connection_lost

    def noted(self: server.BoundedProtocol, error: Exception | None) -> None:
        lost(self, error)
        cut.set()

    monkeypatch.setattr(server.BoundedProtocol, "connection_lost", noted)
    herder.add("a", value="x" * 30_000_000)
    async with connected(port, limit=1024) as (_, writer), asyncio.timeout(60):
        writer.write(b"GET /connectors/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # Who reads nothing keeps 30 MB in the server: it gives up by itself, whatever the kernel still holds by then.
        await cut.wait()


# -- defects -----------------------------------------------------------------------------------------------------------


async def test_a_defect_is_logged_with_its_trace_and_told_without_its_text(
    port: int, herder: DictHerder, caplog: pytest.LogCaptureFixture
) -> None:
    herder.refusals["connector_info"] = ZeroDivisionError("the password is hunter2")
    answer = await ask(port, "GET", "/connectors/a")
    assert error(answer) == (500, "The worker failed to handle this request (ZeroDivisionError); see its log.")
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


async def test_our_errors_speak_for_themselves(port: int, herder: DictHerder, caplog: pytest.LogCaptureFixture) -> None:
    herder.refusals["put_connector"] = HeliographError("the config topic took no record within 30 s")
    answer = await ask(port, "PUT", "/connectors/a/config", {})
    assert error(answer) == (500, "the config topic took no record within 30 s")
    assert [each.levelno for each in caplog.records if each.name.startswith("rest")] == [logging.WARNING]
