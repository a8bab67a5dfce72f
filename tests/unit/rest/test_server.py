"""Listeners: where they are bound, what is served where, what is advertised, and how all of it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from connect.core.config.rest_settings import REST, RestListener
from connect.core.errors import ConfigError
from rest.rest_config import RestSettings, RestTls
from rest.server import BoundedProtocol, CannotListen, RestServer
from tests.kit.certificates import make_party
from tests.kit.members import until
from tests.kit.raw_http import ask, connected, read_answer
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import ANYWHERE, HERE, running_server

HTTPS = RestListener("https", "127.0.0.1", 0)


@pytest.fixture
def tls(tmp_path: Path) -> RestTls:
    authority = make_party("authority", None)
    party = make_party("worker", authority, "127.0.0.1")
    pem = tmp_path / "worker.pem"
    pem.write_text(party.key_pem() + party.pem)

    def server_context(prefix: str) -> ssl.SSLContext:
        assert prefix in ("listeners.https.", "admin.listeners.https.")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return context

    return RestTls(server_context, lambda: ssl.create_default_context(cadata=authority.pem))


async def test_nothing_is_there_before_the_herder_is() -> None:
    async with running_server(HERE) as server:
        for path in ("/", "/health", "/connectors"):
            answer = await ask(server.ports[0], "GET", path)
            assert answer.status == 404
            assert answer.header("content-type") == "text/html;charset=iso-8859-1"
            assert b"HTTP ERROR 404 Not Found" in answer.body


async def test_http_and_https_side_by_side(tls: RestTls) -> None:
    herder = DictHerder()
    herder.add("a")
    async with running_server(RestSettings((HTTPS, ANYWHERE)), herder, tls=tls) as server:
        https, http = server.ports
        assert server.advertised_url == f"http://127.0.0.1:{http}/"
        assert (await ask(http, "GET", "/connectors")).json == ["a"]
        async with httpx.AsyncClient(verify=tls.client(), trust_env=False) as client:
            assert (await client.get(f"https://127.0.0.1:{https}/connectors")).json() == ["a"]
            created = await client.post(f"https://127.0.0.1:{https}/connectors", json={"name": "b", "config": {}})
            assert created.headers["location"] == f"https://127.0.0.1:{https}/connectors/b"
        answer = await server.forwarder.send("GET", f"https://127.0.0.1:{https}/connectors")
        assert answer.body == b'["a","b"]'


async def test_https_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"listeners: an https listener needs the ssl\.keystore keys"):
        await RestServer(RestSettings((ANYWHERE, HTTPS))).start()


async def test_loggers_have_a_server_of_their_own(tls: RestTls) -> None:
    settings = RestSettings((ANYWHERE,), admin_listeners=(ANYWHERE, HTTPS), allowed_origins=("*",))
    async with running_server(settings, DictHerder(), tls=tls) as server:
        main, (admin, _) = server.ports[0], server.admin_ports
        assert (await ask(main, "GET", "/admin/loggers")).status == 404
        assert (await ask(main, "GET", "/connectors")).header("vary") == "Origin"
        loggers = await ask(admin, "GET", "/admin/loggers")
        assert loggers.status == 200 and loggers.header("vary") is None
        for path in ("/connectors", "/health", "/openapi.json"):
            assert (await ask(admin, "GET", path)).status == 404


async def test_empty_admin_listeners_are_no_loggers() -> None:
    async with running_server(RestSettings((ANYWHERE,), admin_listeners=()), DictHerder()) as server:
        assert (await ask(server.ports[0], "GET", "/admin/loggers")).status == 404


async def test_an_address_in_use(tls: RestTls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = RestServer(RestSettings((ANYWHERE, RestListener("http", "127.0.0.1", port))))
        with pytest.raises(CannotListen, match=f"cannot listen on http://127.0.0.1:{port}: .*in use"):
            await server.start()
        assert server.ports == []


async def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen on http://192\.0\.2\.1:0"):
        await RestServer(RestSettings((RestListener("http", "192.0.2.1", 0),))).start()


@pytest.mark.parametrize(
    ("properties", "url"),
    [
        ({}, "http://127.0.0.1:{port}/"),
        ({"rest.advertised.port": "99"}, "http://127.0.0.1:99/"),
        ({"rest.advertised.host.name": "worker.example"}, "http://worker.example:{port}/"),
        ({"rest.advertised.listener": "HTTPS", "rest.advertised.host.name": "::1"}, "https://[::1]:{port}/"),
    ],
)
async def test_what_is_advertised(properties: dict[str, str], url: str) -> None:
    values = REST.parse({"listeners": "HTTP://127.0.0.1:0", **properties})
    async with running_server(RestSettings.of(values)) as server:
        assert server.advertised_url == url.format(port=server.ports[0])


async def test_without_listeners_only_this_machine_is_served() -> None:
    (listener,) = RestSettings.of(REST.parse({})).listeners
    assert (listener.host, listener.port) == ("localhost", 8083)
    assert RestSettings().listeners == (listener,)


@pytest.mark.parametrize(("host", "is_reported"), [("127.0.0.1", True), ("", False)])
async def test_a_server_of_this_machine_says_so(host: str, is_reported: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_server(RestSettings((RestListener("http", host, 0),)), DictHerder()):
        assert ("on this machine only" in caplog.text) is is_reported


async def test_a_listener_on_all_interfaces_advertises_this_machine() -> None:
    async with running_server(RestSettings((RestListener("http", "", 0),)), DictHerder()) as server:
        host = httpx.URL(server.advertised_url).host
        assert host not in ("", "0.0.0.0", "::")
        assert (await ask(server.ports[0], "GET", "/connectors")).json == []


async def test_a_request_that_runs_is_answered_while_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest.server._STOPS_WITHIN_S", 60)
    herder = DictHerder()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def connectors() -> list[str]:
        begun.set()
        await may_end.wait()
        return ["late"]

    herder.connectors = connectors  # type: ignore[method-assign]
    async with running_server(HERE, herder) as server, connected(port := server.ports[0]) as (reader, writer):
        writer.write(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        stopping = asyncio.create_task(server.stop())
        while await can_connect(port):  # noqa: ASYNC110 - a port tells nobody that it closes
            await asyncio.sleep(0.01)
        may_end.set()
        assert (await read_answer(reader)).json == ["late"]
        await stopping


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
async def test_an_answers_body_does_not_wait_for_the_client_to_acknowledge_its_headers(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[asyncio.BaseTransport] = []
    made = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        accepted.append(transport)
        made(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with (
        running_server(RestSettings((RestListener("http", host, 0),)), DictHerder()) as server,
        connected(server.ports[0], first=request) as (reader, _),
    ):
        assert (await read_answer(reader)).status == 200
        (transport,) = accepted
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def can_connect(port: int) -> bool:
    try:
        async with connected(port):
            return True
    except ConnectionRefusedError:
        return False


async def test_stopping_waits_for_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest.server._STOPS_WITHIN_S", 0.2)
    herder = DictHerder()
    herder.hangs.add("connectors")
    server = RestServer(HERE)
    await server.start()
    server.serve(herder)
    port = server.ports[0]
    async with connected(port) as (_, hanging), connected(port) as (_, halfway), connected(port), asyncio.timeout(60):
        hanging.write(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n")
        halfway.write(b"GET /conn")
        await until(lambda: herder.done, "the request to reach the herder")
        await server.stop()
    left = [each.get_name() for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    assert left == []


async def test_stopping_leaves_no_answer_behind_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest.server._STOPS_WITHIN_S", 0.2)
    cut = asyncio.Event()
    lost = BoundedProtocol.connection_lost

    def noted(self: BoundedProtocol, error: Exception | None) -> None:
        lost(self, error)
        cut.set()

    monkeypatch.setattr(BoundedProtocol, "connection_lost", noted)
    herder = DictHerder()
    herder.add("a", value="x" * 30_000_000)
    async with running_server(HERE, herder) as server, connected(server.ports[0], limit=1024) as (_, writer):
        writer.write(b"GET /connectors/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: herder.done, "the request to reach the herder")
        async with asyncio.timeout(60):
            await server.stop()
            await cut.wait()


async def test_a_connection_too_many_replaces_the_one_that_waits_longest() -> None:
    async with running_server(
        RestSettings((ANYWHERE,), max_connections=3, max_connections_per_address=2), DictHerder()
    ) as server:
        port = server.ports[0]
        async with connected(port) as (first, _), connected(port) as (second, writer):
            assert (await ask(port, "GET", "/connectors")).status == 200
            assert await first.read() == b""
            writer.write(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await read_answer(second)).status == 200


async def test_a_connection_that_is_worked_for_stays() -> None:
    herder = DictHerder()
    herder.hangs.add("connectors")
    settings = RestSettings((ANYWHERE,), max_connections=1, max_connections_per_address=1)
    async with running_server(settings, herder) as server, connected(server.ports[0]) as (_, writer):
        writer.write(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: herder.done, "the request to reach the herder")
        async with connected(server.ports[0]) as (refused, _):
            assert await refused.read() == b""
