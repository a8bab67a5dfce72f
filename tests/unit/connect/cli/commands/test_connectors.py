"""``heliograph connectors`` against a REST server: what is asked of it, what is shown, and how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner, Result

from connect.cli.commands.connectors import app
from connect.cli.commands.rest_client import RestClient, WorkerRefused, WorkerUnreachable
from connect.core.config.rest_settings import RestListener
from connect.core.errors import ConfigError, HeliographError
from connect.core.herder_api import BadRequest, NotFound, SourceOffset
from connect.core.model import RestartRequest, TargetState, TaskId
from rest.rest_config import RestSettings
from rest.server import RestServer
from tests.kit.rest_herder import DictHerder


class Served:
    """A REST server in a loop and a thread of its own: commands wait for their answers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest")
        self._thread.start()
        self._server = RestServer(
            RestSettings((RestListener("http", "127.0.0.1", 0),)), metrics=AsyncMock(return_value=b"m 1\n")
        )
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(30)
        self.url = self._server.advertised_url

    def serve(self, herder: DictHerder) -> None:
        self._loop.call_soon_threadsafe(self._server.serve, herder)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def herder(served: Served, monkeypatch: pytest.MonkeyPatch) -> DictHerder:
    monkeypatch.setenv("HELIOGRAPH_URL", served.url)
    monkeypatch.setenv("NO_PROXY", "*")
    herder = DictHerder()
    herder.add("a/b", file="f")
    served.serve(herder)
    return herder


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def out(*arguments: str, stdin: str | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_shows_states_and_tasks(herder: DictHerder) -> None:
    head, _, row = (line for line in out("list").splitlines() if line.strip())
    assert head.split() == ["connector", "type", "state", "tasks", "running", "worker"]
    assert row.split() == ["a/b", "source", "RUNNING", "1", "of", "2", "w:8083"]
    assert json.loads(out("list", "--json"))["a/b"]["info"]["config"]["file"] == "f"


def test_a_connector_without_a_status_is_listed(herder: DictHerder) -> None:
    herder.refusals["connector_status"] = NotFound("No status found")
    assert "a/b" in out("list") and "UNASSIGNED" in out("list")


def test_nothing_to_list(herder: DictHerder) -> None:
    herder.configs.clear()
    assert out("list") == "no connectors\n"


def test_the_status_shows_why_a_task_failed(herder: DictHerder) -> None:
    shown = out("status", "a/b")
    assert "task 1" in shown and "FAILED" in shown and "it broke" in shown
    assert json.loads(out("status", "a/b", "--json"))["tasks"][1]["trace"] == "it broke"


def test_a_name_is_not_obeyed_by_the_terminal(herder: DictHerder) -> None:
    herder.add("evil\x1b[2J[red]")
    assert "evil\N{REPLACEMENT CHARACTER}[2J[red]" in out("list")


@pytest.mark.parametrize("form", ["flat", "whole", "properties", "stdin"])
def test_connectors_are_created_from_files(herder: DictHerder, tmp_path: Path, form: str) -> None:
    config = {"name": "new", "topic": "t"}
    file, stdin = tmp_path / "new.json", None
    match form:
        case "flat":
            file.write_text(json.dumps(config))
        case "whole":
            file.write_text(json.dumps({"name": "new", "config": {"topic": "t"}}))
        case "properties":
            file = tmp_path / "new.properties"
            file.write_text("name = new\ntopic = t\n")
        case "stdin":
            file, stdin = Path("-"), json.dumps(config)
    assert out("create", str(file), "--state", "paused", stdin=stdin) == "new: created\n"
    assert herder.done == [("put_connector", "new", config, TargetState.PAUSED)]
    assert "already exists. Replace its config with --replace" in str(run("create", str(file), stdin=stdin).exception)
    assert out("create", str(file), "--replace", stdin=stdin) == "new: stored\n"


@pytest.mark.parametrize(
    ("said", "option", "state"),
    [
        ("STOPPED", (), TargetState.STOPPED),
        ("paused", (), TargetState.PAUSED),
        ("RUNNING", (), TargetState.STARTED),
        ("STOPPED", ("--state", "running"), TargetState.STARTED),
        (None, ("--state", "stopped"), TargetState.STOPPED),
    ],
)
def test_a_file_says_how_a_connector_begins(
    herder: DictHerder, tmp_path: Path, said: str | None, option: tuple[str, ...], state: TargetState
) -> None:
    file = tmp_path / "new.json"
    file.write_text(json.dumps({"name": "new", "config": {"topic": "t"}, "initial_state": said}))
    assert out("create", str(file), *option) == "new: created\n"
    assert herder.done == [("put_connector", "new", {"name": "new", "topic": "t"}, state)]


def test_the_life_of_connectors(herder: DictHerder) -> None:
    herder.add("c")
    assert out("pause", "a/b", "c") == "a/b: pausing\nc: pausing\n"
    assert out("resume", "c") == "c: resuming\n"
    assert out("stop", "a/b") == "a/b: stopped\n"
    assert herder.states == {"a/b": TargetState.STOPPED, "c": TargetState.STARTED}
    assert out("delete", "a/b") == "a/b: deleted\n"
    assert list(herder.configs) == ["c"]


def test_restarts(herder: DictHerder) -> None:
    assert out("restart", "a/b") == "a/b: restarted\n"
    assert "FAILED" in out("restart", "a/b", "--tasks", "--failed")
    assert out("restart", "a/b", "--task", "1") == "a/b: task 1 restarted\n"
    assert [each for each in herder.done if each[0].startswith("restart")] == [
        ("restart_connector", "a/b"),
        ("restart", RestartRequest("a/b", only_failed=True, include_tasks=True)),
        ("restart_task", TaskId("a/b", 1)),
    ]


def test_offsets_are_shown_set_and_reset(herder: DictHerder, tmp_path: Path) -> None:
    assert out("offsets", "a/b") == "no offsets\n"
    herder.offsets = [SourceOffset({"topic": "t"}, {"offset": 41})]
    assert '{"topic": "t"}' in out("offsets", "a/b")
    file = tmp_path / "offsets.json"
    file.write_text(out("offsets", "a/b", "--json").replace("41", "7"))
    assert "altered successfully" in out("offsets", "a/b", "--set", str(file))
    assert herder.offsets == [SourceOffset({"topic": "t"}, {"offset": 7})]
    assert "reset successfully" in out("offsets", "a/b", "--reset")


def test_what_the_worker_refuses_is_one_line_and_exit_code_1(herder: DictHerder) -> None:
    refused = run("status", "none")
    assert refused.exit_code == 1
    assert str(refused.exception) == "No status found for connector none"
    herder.refusals["alter_offsets"] = BadRequest("Connectors must be in the STOPPED state")
    refused = run("offsets", "a/b", "--reset")
    assert refused.exit_code == 1
    assert "a/b is not stopped. Stop it first: heliograph connectors stop a/b --rest http" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("list", "--rest", "http://127.0.0.1:1"), "no worker answers at http://127.0.0.1:1: "),
        (("list", "--rest", "http://user:secret@127.0.0.1:1"), "--rest: a URL that contains a password is seen by all"),
        (("list", "--rest", "localhost:8083"), "'localhost:8083' is not a worker's URL"),
        (("restart", "a", "--task", "1", "--tasks"), "--task restarts one task."),
        (("offsets", "a", "--reset", "--set", "x"), "--reset and --set cannot be combined"),
        (("create", "{folder}/bad.json"), "bad.json:2: this is not JSON"),
        (("create", "{folder}/nameless.json"), "nameless.json: the connector has no name"),
        (("create", "{folder}/list.json"), "list.json: a connector's config is a JSON object"),
        (("create", "{folder}/latin.json"), "latin.json: this is not JSON in UTF-8"),
        (("create", "{folder}/odd.json"), "odd.json: initial-state is not known next to name and config"),
        (("create", "{folder}/asleep.json"), 'asleep.json: initial_state is "ASLEEP". Use RUNNING, PAUSED or STOPPED'),
        (("create", "{folder}/stopped.json", "--replace"), "stopped.json: --replace keeps the current state. Remove"),
    ],
)
def test_what_was_never_asked(herder: DictHerder, tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    (tmp_path / "bad.json").write_text('{"name":\n]')
    (tmp_path / "nameless.json").write_text("{}")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "odd.json").write_text('{"name":"a","config":{},"initial-state":"STOPPED"}')
    (tmp_path / "asleep.json").write_text('{"name":"a","config":{},"initial_state":"ASLEEP"}')
    (tmp_path / "stopped.json").write_text('{"name":"a","config":{},"initial_state":"STOPPED"}')
    (tmp_path / "latin.json").write_bytes(b'"\xff"')
    result = run(*(each.format(folder=tmp_path) for each in arguments))
    assert isinstance(result.exception, HeliographError)
    assert text in str(result.exception) and "secret" not in str(result.exception)
    assert herder.done == []


def test_what_answers_may_be_no_worker(served: Served, herder: DictHerder) -> None:
    with (
        RestClient(served.url) as client,
        pytest.raises(WorkerUnreachable, match=r"is not a Connect worker, .*status 200"),
    ):
        client.ask("GET", "/metrics")


def test_an_address_without_connectors_is_not_a_bare_404(served: Served, herder: DictHerder) -> None:
    """Such as that of a mirror, above its flows."""
    url = f"{served.url.rstrip('/')}/above"
    with RestClient(url) as client, pytest.raises(WorkerRefused, match=f"{url} has no .* {url}/us/eu for") as reported:
        client.ask("GET", "/connectors")
    assert reported.value.status == 404


def test_a_replaced_connector_keeps_its_state(herder: DictHerder, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"name": "a"}')
    assert isinstance(run("create", str(file), "--replace", "--state", "paused").exception, ConfigError)
