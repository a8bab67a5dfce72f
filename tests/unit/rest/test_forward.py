"""Requests that another worker must answer: two hops at most, and what is passed on each way."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest
import pytest_asyncio

from connect.core import herder_api
from connect.core.errors import RetriableError
from rest.errors import RestError
from rest.other_workers import Forwarder, InternalClient, Unreachable
from rest.server import RestServer
from tests.kit.raw_http import Raw, ask
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import running_server

#: A second worker.
Other = tuple[RestServer, DictHerder]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second() -> AsyncIterator[RestServer]:
    async with running_server() as server:
        yield server


@pytest.fixture
def other(second: RestServer) -> Other:
    herder = DictHerder()
    second.serve(herder)
    return second, herder


class Listening:
    """A worker that answers everything with the same bytes, and keeps what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.received = b""
        self._answer = answer

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        self.received = head + await reader.readexactly(length)
        writer.write(self._answer)
        writer.close()


def answered(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_a_request_goes_on_as_it_came(port: int, herder: DictHerder) -> None:
    listening = Listening(answered(202, b'{"name":"a"}'))
    async with listening as url:
        herder.refusals["restart"] = herder_api.NotLeader("Only the leader", url)
        path = "/connectors/a%2Fb%20c/restart?onlyFailed=true&x=%26&includeTasks=true"
        headers = {"Authorization": "Basic dTpw", "Cookie": "c", "X-Other": "o"}
        answer = await ask(port, "POST", path, headers=headers)
    assert (answer.status, answer.json) == (202, {"name": "a"})
    line, *sent = listening.received.decode().split("\r\n")
    assert line == "POST /connectors/a%2Fb%20c/restart?onlyFailed=true&x=%26&includeTasks=true&forward=true HTTP/1.1"
    fields = {name.lower(): value for name, _, value in (each.partition(": ") for each in sent)}
    assert fields["user-agent"] == "kafka-connect" and fields["authorization"] == "Basic dTpw"
    assert fields["accept"] == "application/json"
    assert not {"cookie", "x-other"} & set(fields)


async def test_a_body_goes_on_byte_by_byte(port: int, herder: DictHerder) -> None:
    listening = Listening(answered(200, b"{}"))
    body = b' {"name":"a", "config":{"n":1.50}} '
    async with listening as url:
        herder.refusals["put_connector"] = herder_api.NotLeader("Only the leader", url)
        assert (await ask(port, "POST", "/connectors", body)).status == 200
    assert listening.received.endswith(b"\r\n\r\n" + body)
    assert b"content-type: application/json" in listening.received.lower()


async def test_created_elsewhere(port: int, herder: DictHerder, other: Other) -> None:
    server, leader = other
    herder.refusals["put_connector"] = herder_api.NotLeader("Only the leader", server.advertised_url)
    answer = await ask(port, "POST", "/connectors", {"name": "a/b", "config": {}})
    assert answer.status == 201 and list(leader.configs) == ["a/b"]
    assert answer.header("location") == f"http://127.0.0.1:{port}/connectors/a%2Fb"
    assert (await ask(port, "PUT", "/connectors/a%2Fb/config", {"k": "v"})).status == 200


async def test_errors_of_the_target_are_passed_through(port: int, herder: DictHerder, other: Other) -> None:
    server, leader = other
    herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", server.advertised_url)
    leader.refusals["delete_connector"] = herder_api.NotFound("Connector a not found")
    answer = await ask(port, "DELETE", "/connectors/a")
    assert (answer.status, answer.json) == (404, {"error_code": 404, "message": "Connector a not found"})


async def test_two_hops_and_no_third(port: int, server: RestServer, herder: DictHerder, other: Other) -> None:
    second, leader = other
    herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", second.advertised_url)
    leader.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", server.advertised_url)
    answer = await ask(port, "DELETE", "/connectors/a")
    assert answer.status == 409
    text = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
    assert answer.json == {"error_code": 409, "message": text}
    assert len(herder.done) == 2 and len(leader.done) == 1


@pytest.mark.parametrize(("forward", "status"), [("false", 409), ("yes", 409), ("1", 409), ("", 204)])
async def test_any_value_but_true_counts_as_false_and_a_blank_one_as_none(
    port: int, herder: DictHerder, other: Other, forward: str, status: int
) -> None:
    herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", other[0].advertised_url)
    other[1].add("a")
    assert (await ask(port, "DELETE", f"/connectors/a?forward={forward}")).status == status
    assert len(other[1].done) == (status == 204)


async def test_nobody_knows_the_leader(port: int, herder: DictHerder) -> None:
    herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", None)
    answer = await ask(port, "DELETE", "/connectors/a")
    text = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
    assert (answer.status, answer.json["message"]) == (409, text)


async def test_what_is_read_here_is_never_forwarded(port: int, herder: DictHerder) -> None:
    herder.refusals["connector_info"] = herder_api.NotLeader("Only the leader", "http://127.0.0.1:1/")
    assert (await ask(port, "GET", "/connectors/a")).status == 409


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "NOTUSED", "http://[bad/"])
async def test_a_target_that_cannot_be_reached(port: int, herder: DictHerder, url: str) -> None:
    herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", url)
    answer = await ask(port, "DELETE", "/connectors/a")
    assert answer.status == 500
    assert answer.json["message"].startswith("IO Error trying to forward REST request: ")


@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        (answered(302, b"", "Location: http://127.0.0.1:1/"), 500, "Unexpected status code when handling forwarded"),
        (answered(400, b"<html>no</html>"), 400, "The worker at 127.0.0.1:"),
        (answered(503, b"[]"), 503, "The worker at 127.0.0.1:"),
        (b"nonsense\r\n\r\n", 500, "IO Error trying to forward REST request: "),
    ],
)
async def test_answers_no_worker_gives(port: int, herder: DictHerder, given: bytes, status: int, text: str) -> None:
    async with Listening(given) as url:
        herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", url)
        answer: Raw = await ask(port, "DELETE", "/connectors/a")
    assert answer.status == status and answer.json["message"].startswith(text)


# -- between workers ---------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def forwarder() -> AsyncIterator[Forwarder]:
    forwarder = Forwarder()
    yield forwarder
    await forwarder.close()


VALIDATE = ("PUT", "/connector-plugins/J/config/validate", b'{"connector.class": "J"}')


def sign(body: bytes) -> Mapping[str, str]:
    return {"X-Connect-Authorization": str(len(body)), "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}


async def test_task_configs_are_signed_as_they_are_sent(forwarder: Forwarder, other: Other) -> None:
    server, leader = other
    client = InternalClient(forwarder)
    await client.post_task_configs(server.advertised_url, "a/b", [{"k": "ü"}], sign)
    _, name, configs, signature = leader.done[-1]
    assert (name, configs, signature.body) == ("a/b", [{"k": "ü"}], '[{"k":"ü"}]'.encode())
    assert signature.signature == str(len(signature.body)) and signature.algorithm == "HmacSHA256"
    await client.put_fence(server.advertised_url, "a", sign)
    assert leader.done[-1][2].signature == "0"
    await client.put_fence(server.advertised_url, "a", None)
    assert leader.done[-1][2].signature is None


@pytest.mark.parametrize(
    ("refusal", "status", "passing"),
    [
        (herder_api.NotFound("Connector a not found"), 404, False),
        (herder_api.BadRequest("it is no source"), 400, False),
        (herder_api.RebalanceExpected(), 409, True),
        (RetriableError("the round was not done in time"), 500, True),
        (herder_api.NotLeader("Only the leader", None), 409, True),
        (herder_api.NotReady("no key yet"), 503, True),
        # After a new key it need not be reported for a while, so it is known as what it is.
        (herder_api.Forbidden("Internal request contained invalid signature."), 403, True),
    ],
    ids=repr,
)
async def test_refusals_of_the_leader(
    forwarder: Forwarder, other: Other, refusal: Exception, status: int, passing: bool
) -> None:
    server, leader = other
    leader.refusals["fence_zombies"] = refusal
    with pytest.raises(RestError) as refused:
        await InternalClient(forwarder).put_fence(server.advertised_url, "a", sign)
    assert (refused.value.status, isinstance(refused.value, RetriableError)) == (status, passing)
    assert isinstance(refused.value, herder_api.Forbidden) is isinstance(refusal, herder_api.Forbidden)


INFOS = herder_api.ConfigInfos(
    "a.J",
    1,
    ("Common",),
    (herder_api.ConfigInfo(None, herder_api.ConfigValueInfo("topics", None, errors=("missing",))),),
)


@pytest.mark.parametrize(
    ("answer", "infos"),
    [
        (answered(200, orjson.dumps(asdict(INFOS))), INFOS),
        (
            answered(500, b'{"error_code": 500, "message": "a.BadRequestException: Failed to find any class that"}'),
            None,
        ),
    ],
)
async def test_another_worker_validates(
    forwarder: Forwarder, answer: bytes, infos: herder_api.ConfigInfos | None
) -> None:
    worker = Listening(answer)
    async with worker as url:
        assert await InternalClient(forwarder).validate(url, "a.J", {"connector.class": "a.J"}) == infos
    assert worker.received.startswith(b"PUT /connector-plugins/a.J/config/validate ")
    assert worker.received.endswith(b'{"connector.class":"a.J"}')


@pytest.mark.parametrize(
    ("status", "body", "has"), [(200, b"[]", True), (404, b'{"error_code":404,"message":"Unknown plugin a.J."}', False)]
)
async def test_another_worker_has_a_class(forwarder: Forwarder, status: int, body: bytes, has: bool) -> None:
    worker = Listening(answered(status, body))
    async with worker as url:
        assert await InternalClient(forwarder).has_class(url, "a.J") is has
    assert worker.received.startswith(b"GET /connector-plugins/a.J/config ")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answered(200, b'{"name":"a.J","configs":[{"value":"s3cret"}]}'), Unreachable),
        (answered(200, b"<html>s3cret"), Unreachable),
        (answered(500, b'{"error_code":500,"message":7}'), RestError),
    ],
)
async def test_another_worker_answers_something_else(
    forwarder: Forwarder, answer: bytes, error: type[RestError], caplog: pytest.LogCaptureFixture
) -> None:
    async with Listening(answer) as url:
        with pytest.raises(error) as found:
            await InternalClient(forwarder).validate(url, "a.J", {"connector.class": "a.J"})
    assert "s3cret" not in "".join(traceback.format_exception(found.value)) + caplog.text


@pytest.mark.parametrize(
    ("method", "request_"), [("connector_offsets", ("GET", "/connectors/a/offsets")), ("validate", VALIDATE)]
)
async def test_a_class_that_only_another_worker_has(
    port: int, herder: DictHerder, other: Other, method: str, request_: tuple[Any, ...]
) -> None:
    server, second = other
    second.add("a")
    herder.refusals[method] = herder_api.NotAssigned("not here", server.advertised_url)
    assert (await ask(port, *request_)).status == 200
    assert second.done[-1][0] == method


async def test_a_leader_that_does_not_answer(forwarder: Forwarder) -> None:
    with pytest.raises(Unreachable):
        await InternalClient(forwarder).put_fence("http://127.0.0.1:1", "a", sign)


async def test_signatures_are_not_passed_on(port: int, herder: DictHerder, forwarder: Forwarder, other: Other) -> None:
    herder.refusals["fence_zombies"] = herder_api.NotLeader("Only the leader", other[0].advertised_url)
    await InternalClient(forwarder).put_fence(f"http://127.0.0.1:{port}/", "a", sign)
    _, _, signature = other[1].done[-1]
    assert signature.signature is None


@pytest.mark.parametrize("signing", [sign, None])
async def test_a_signed_request_that_a_former_leader_has_passed_on_may_be_granted_a_moment_later(
    port: int,
    herder: DictHerder,
    forwarder: Forwarder,
    other: Other,
    signing: Callable[[bytes], Mapping[str, str]] | None,
) -> None:
    """Java's leaders pass it on without its signature, and ours as theirs."""
    server, leader = other
    herder.refusals["fence_zombies"] = herder_api.NotLeader("Only the leader", server.advertised_url)
    leader.refusals["fence_zombies"] = herder_api.BadRequest("Internal request missing required signature")
    with pytest.raises(RestError) as refused:
        await InternalClient(forwarder).put_fence(f"http://127.0.0.1:{port}/", "a", signing)
    assert refused.value.status == 400
    assert isinstance(refused.value, RetriableError) is (signing is not None)


@asynccontextmanager
async def mirror(*, public: bool) -> AsyncIterator[tuple[RestServer, dict[tuple[str, str], Any]]]:
    """The server of a dedicated mirror, and the flows that it serves."""
    flows: dict[tuple[str, str], Any] = {}
    async with running_server(metrics=AsyncMock(return_value=b"m 1\n")) as server:
        server.serve_flows(flows, public=public)
        yield server, flows


async def test_a_dedicated_mirror_serves_its_workers_only(forwarder: Forwarder) -> None:
    async with mirror(public=False) as (server, flows):
        port, herder = server.ports[0], DictHerder()
        flows["us west", "eu/1"] = herder
        client = InternalClient(forwarder, ("us west", "eu/1"))
        await client.post_task_configs(server.advertised_url, "MirrorSourceConnector", [{"k": "v"}], sign)
        assert herder.done[-1][:3] == ("put_task_configs", "MirrorSourceConnector", [{"k": "v"}])
        unknown = await ask(port, "PUT", "/us/zz/connectors/a/fence")
        text = "No replication flow found for source 'us' and target 'zz'"
        assert (unknown.status, unknown.json["message"]) == (404, text)
        assert (await ask(port, "GET", "/admin/loggers")).json["message"] == "HTTP 404 Not Found"
        for path in ("/", "/health", "/metrics", "/us%20west/eu%2F1", "/us%20west/eu%2F1/connectors", "/openapi.json"):
            assert (await ask(port, "GET", path)).status == 404


async def test_a_dedicated_mirror_serves_the_whole_api_of_each_flow() -> None:
    async with mirror(public=True) as (server, flows):
        port, west, east = server.ports[0], DictHerder(), DictHerder()
        assert (await ask(port, "GET", "/health")).status == 503
        flows["us", "eu"], flows["eu", "us"] = west, east
        west.add("a")
        assert (await ask(port, "GET", "/us/eu/connectors")).json == ["a"]
        assert (await ask(port, "GET", "/eu/us/connectors/")).json == []
        for path in ("/us/eu", "/us/eu/"):
            assert (await ask(port, "GET", path)).json["kafka_cluster_id"] == "cluster-1"
        created = await ask(port, "POST", "/eu/us/connectors", {"name": "b", "config": {}})
        assert created.header("location") == f"http://127.0.0.1:{port}/eu/us/connectors/b"
        allowed = await ask(port, "OPTIONS", "/us/eu/connectors/a/config")
        assert allowed.header("allow") == "HEAD,GET,OPTIONS,PUT,PATCH"
        assert (await ask(port, "GET", "/metrics")).body == b"m 1\n"
        assert (await ask(port, "GET", "/health")).json["status"] == "healthy"
        assert (await ask(port, "POST", "/health")).status == 405
        assert (await ask(port, "GET", "/us/eu/openapi.json")).status == 200


async def test_a_forwarded_request_keeps_its_flow() -> None:
    async with mirror(public=True) as (server, flows):
        herder = flows["us", "eu"] = DictHerder()
        listening = Listening(answered(204))
        async with listening as url:
            herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", url)
            assert (await ask(server.ports[0], "DELETE", "/us/eu/connectors/a")).status == 204
        assert listening.received.startswith(b"DELETE /us/eu/connectors/a?forward=true HTTP/1.1\r\n")


async def test_nothing_is_sent_to_our_own_address(port: int, herder: DictHerder, server: RestServer) -> None:
    """Workers of several machines that all advertise localhost have the same one."""
    herder.refusals["delete_connector"] = herder_api.NotLeader("Only the leader", server.advertised_url)
    answer = await ask(port, "DELETE", "/connectors/a")
    assert answer.status == 409
    assert b"rest.advertised.host.name" in answer.body and server.advertised_url.encode() in answer.body
    assert len(herder.done) == 1
