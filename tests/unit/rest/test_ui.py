"""The dashboard's files, data and events, without a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from connect.core.errors import RetriableError
from connect.core.herder_api import NotFound
from connect.kafka.concurrency import until
from rest.rest_config import Flows, RestSettings
from rest.server import RestServer
from rest.ui.snapshots import LiveFeed
from tests.kit.rest_herder import DictHerder
from tests.unit.rest.conftest import ANYWHERE, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")


def mirror(*flows: tuple[str, str, str]) -> DictHerder:
    """A herder with a MirrorSource for each (name, source, target)."""
    herder = DictHerder()
    for name, source, target in flows:
        config = {"source.cluster.alias": source, "target.cluster.alias": target}
        herder.add(name, **{"connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector", **config})
    return herder


def client_of(server: RestServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.ports[0]}")


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: RestServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as client:
        yield client


async def test_the_page_and_its_files_are_cached_by_tag_and_load_nothing_from_elsewhere(
    client: httpx.AsyncClient, herder: DictHerder
) -> None:
    page = await client.get("/ui/")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    script = await client.get("/ui/static/app.js")
    assert script.headers["content-type"].startswith("text/javascript") and script.headers["content-encoding"] == "gzip"
    again = await client.get("/ui/static/app.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    for text in (page.text, script.text):
        assert "http://" not in text and "https://" not in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", f"/ui/{path}", 404) for path in ("static/../router.py", "static/%2e%2e/router.py", "none")),
        ("GET", "/ui/api/flows/none/lag", 404),
        ("POST", "/ui/api/flows", 405),
    ],
)
async def test_other_requests_are_refused(
    client: httpx.AsyncClient, herder: DictHerder, method: str, path: str, status: int
) -> None:
    assert (await client.request(method, path)).status_code == status


async def test_flows_of_one_worker_have_names_of_their_own(server: RestServer, client: httpx.AsyncClient) -> None:
    herder = mirror(("a", "us", "eu"), ("b", "us", "eu"), ("c", "eu", "us"))
    herder.add("checkpoints", **{"connector.class": "MirrorCheckpoint", "source.cluster.alias": "eu"})
    herder.add("file", **{"connector.class": "FileStreamSource"})
    herder.refusals["connector_report"] = NotFound("Connector c has no overview report")
    server.serve(herder)
    found = (await client.get("/ui/api/flows")).json()["flows"]
    assert list(found) == ["eu->us", "us->eu (a)", "us->eu (b)"]
    assert found["eu->us"]["connectors"] == {"source": "c"} and found["eu->us"]["prefix"] == ""
    assert found["eu->us"]["states"]["source"]["tasks"] == {"RUNNING": 1, "FAILED": 1}
    assert found["eu->us"]["error"] == "Connector c has no overview report"


async def test_a_report_is_of_the_connector_that_the_query_names(server: RestServer, client: httpx.AsyncClient) -> None:
    herder = mirror(("a", "us", "eu"))
    herder.add("k", **{"connector.class": "MirrorCheckpointConnector", "source.cluster.alias": "us"})
    herder.configs["k"]["target.cluster.alias"] = "eu"
    server.serve(herder)
    report = await client.get("/ui/api/flows/us-%3Eeu/groups", params={"part": "checkpoint", "search": "a b"})
    assert report.json() == {"kind": "groups", "search": "a b"}
    assert ("connector_report", "k", "groups", {"search": "a b"}) in herder.done
    assert (await client.get("/ui/api/flows/us-%3Eeu/groups?part=heartbeat")).status_code == 404


async def test_flows_of_a_dedicated_mirror_keep_their_paths_even_if_a_cluster_is_called_ui() -> None:
    one, other = mirror(("MirrorSourceConnector", "ui", "eu")), mirror(("MirrorSourceConnector", "eu", "ui"))
    flows: Flows = {("ui", "eu"): one, ("eu", "ui"): other}
    async with running_server() as server:
        server.serve_flows(flows, public=True)
        async with client_of(server) as client:
            found = (await client.get("/ui/api/flows")).json()["flows"]
            assert {name: flow["prefix"] for name, flow in found.items()} == {"eu->ui": "/eu/ui", "ui->eu": "/ui/eu"}
            assert (await client.get("/ui/eu/connectors")).json() == ["MirrorSourceConnector"]


async def test_without_the_setting_there_is_no_dashboard() -> None:
    settings = RestSettings((ANYWHERE,), has_ui=False)
    async with running_server(settings, DictHerder()) as server, client_of(server) as client:
        assert (await client.get("/ui")).status_code == 404


async def test_all_pages_share_a_snapshot_and_a_stop_of_the_worker_ends_their_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rest.server._STOPS_WITHIN_S", 3600)
    herder = mirror(("a", "us", "eu"))

    async def first_event(client: httpx.AsyncClient, read: asyncio.Event) -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with client.stream("GET", "/ui/events") as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            async for line in stream.aiter_lines():
                if line.startswith("data: ") and not found:
                    found = json.loads(line[6:])
                    read.set()
        return found

    async with running_server(herder=herder) as server, client_of(server) as client:
        read = [asyncio.Event() for _ in range(3)]
        pages = asyncio.gather(*(first_event(client, each) for each in read))
        await asyncio.gather(*(each.wait() for each in read))
        async with asyncio.timeout(60):  # far less than a stop waits for requests
            await server.stop()
            found = await pages
    assert [list(each["flows"]) for each in found] == [["us->eu"]] * 3
    assert herder.done.count(("connector_report", "a", "overview", {})) == 1


async def test_streams_are_bounded_and_nothing_is_read_once_the_last_page_has_left() -> None:
    looks = 0

    async def look() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return {}

    feed = LiveFeed(look, interval_s=0.01, most_clients=1)
    left, sent = asyncio.Event(), []

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    page = asyncio.ensure_future(feed.stream(receive, send))
    await until(5, "an event", lambda: _raise_unless(len(sent) > 2))
    with pytest.raises(Exception, match="1 pages are open"):
        await feed.stream(receive, send)
    left.set()
    await page
    await asyncio.sleep(0.1)
    before = looks
    await asyncio.sleep(0.1)
    assert looks == before
    await feed.close()


async def _raise_unless(holds: bool) -> None:
    if not holds:
        raise RetriableError("not yet")
