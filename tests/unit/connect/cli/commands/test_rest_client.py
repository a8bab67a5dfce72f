"""Which worker a failover stops a flow by: one that runs other flows has answered all the same."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from connect.cli.commands.failover import FailoverArguments, run_failover
from connect.cli.commands.rest_client import RestClient, WorkerRefused, WorkerUnreachable, find_control
from connect.core.errors import ConfigError

URLS = ("http://one:1", "http://other:1")
MIRROR = {"connector.class": "MirrorSourceConnector", "source.cluster.alias": "us", "target.cluster.alias": "eu"}


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
    def ask(self: RestClient, _method: str, _path: str, _body: Any = None) -> Any:
        answer = answers.get(self.shown_url, WorkerUnreachable("nobody answers"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(RestClient, "ask", ask)


def found(urls: Sequence[str] = URLS, connector: str = "Source") -> str | None:
    """The name of the flow's connector, if a worker has it."""
    with ExitStack() as closing:
        control = find_control(closing, urls, "us", "eu", connector)
        return None if control is None else control.name


def test_a_mirror_of_other_flows_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    other = WorkerRefused("no such flow", 404)
    answering(monkeypatch, {f"{url}{path}": other for url in URLS for path in ("", "/us/eu")})
    assert found() is None


def test_a_wrong_url_is_named_as_it_was_typed() -> None:
    with pytest.raises(ConfigError, match="--rest: 'nonsense' is not a worker's URL"):
        found(["nonsense"])


def test_it_is_found_at_whichever_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {f"{URLS[1]}/us/eu": {"Source": {"info": {"config": MIRROR}}}})
    assert found() == "Source"


def test_of_several_it_is_the_one_that_the_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {URLS[0]: {name: {"info": {"config": MIRROR}} for name in ("a", "b", "c")}})
    assert found(connector="b") == "b"


@pytest.mark.parametrize(
    "answer",
    [[], None, "x", {"a": 1}, {"a": {"info": {}}}, {"a": {"info": {"config": {}}, "status": {"connector": {}}}}],
)
def test_json_of_another_service_is_no_answer_of_a_worker(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    answering(monkeypatch, {URLS[0]: answer})
    with RestClient(URLS[0]) as client, pytest.raises(WorkerUnreachable, match="is not a Connect worker"):
        client.connectors("status")


async def test_checkpoints_are_stopped_and_resumed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they go on moving groups; those of another flow go on."""
    asked: list[tuple[str, str]] = []
    checkpoint = {**MIRROR, "connector.class": "org.apache.kafka.connect.mirror.MirrorCheckpointConnector"}
    configs = {"a": MIRROR, "c": checkpoint, "other": {**checkpoint, "target.cluster.alias": "ap"}}

    def ask(_: RestClient, method: str, path: str, __: Any = None) -> Any:
        asked.append((method, path))
        return {name: {"info": {"config": config}} for name, config in configs.items()}

    monkeypatch.setattr(RestClient, "ask", ask)
    with ExitStack() as closing:
        control = find_control(closing, URLS[:1], "us", "eu", "a")
        assert control is not None
        asked.clear()
        await control.stop()
        await control.resume()
    assert asked == [("PUT", f"/connectors/{name}/{what}") for what in ("stop", "resume") for name in ("a", "c")]


@pytest.mark.parametrize(("enabled", "is_found"), [("false", False), (" False ", False), ("true", True)])
def test_a_connector_that_is_there_for_heartbeats_alone_is_not_the_flow(
    monkeypatch: pytest.MonkeyPatch, enabled: str, is_found: bool
) -> None:
    answering(monkeypatch, {URLS[0]: {"Source": {"info": {"config": {**MIRROR, "enabled": enabled}}}}})
    assert (found() is not None) == is_found


def test_a_name_that_the_file_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, {URLS[0]: {"mine": {"info": {"config": MIRROR}}}})
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = us, eu\nus->eu.enabled = true\n")
    with pytest.raises(ConfigError, match=r"Set us->eu.name = mine, .* eu.offset.storage.topic"):
        run_failover(FailoverArguments(file, "us", "eu", rest=URLS))


@pytest.mark.parametrize("error", [WorkerUnreachable("nobody answers"), WorkerRefused("who are you?", 401)])
def test_who_answers_nothing_of_use_is_told_of(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    answering(monkeypatch, {f"{url}{path}": error for url in URLS for path in ("", "/us/eu")})
    with pytest.raises(type(error), match=str(error).removesuffix("?")):
        found()


def test_a_mirror_whose_flow_does_not_answer_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the way back of a dedicated mirror, once its source is lost."""
    starting = WorkerRefused("Request timed out. starting", 500)
    answering(monkeypatch, {f"{URLS[0]}/us/eu": starting, URLS[0]: WorkerRefused("no such path", 404)})
    with ExitStack() as closing:
        assert find_control(closing, URLS[:1], "us", "eu", "Source") is None


def test_a_worker_that_is_lost_while_it_is_asked_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {f"{URLS[0]}/us/eu": WorkerRefused("no such flow", 404)})
    with pytest.raises(WorkerUnreachable, match="nobody answers"):
        found(URLS[:1])


def test_a_proxy_does_not_get_the_password_of_a_local_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the environment listens; the worker's port is closed."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HELIOGRAPH_USER", "ann")
    monkeypatch.setenv("HELIOGRAPH_PASSWORD", "a-pass")
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.socket() as closed:
        proxy.setblocking(False)
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setattr("connect.cli.commands.rest_client._TIMEOUT", 1.0)
        client = RestClient(f"http://127.0.0.1:{closed.getsockname()[1]}")
        with client, pytest.raises(WorkerUnreachable):
            client.ask("GET", "/connectors")
        with pytest.raises(BlockingIOError):
            proxy.accept()
