"""``heliograph connectors``, which manages the connectors of a running worker over its REST API.

A connector's file is properties, a config in JSON, or the body of a REST request that creates one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from connect.core.config.properties import load_properties
from connect.core.errors import ConfigError, HeliographError

if TYPE_CHECKING:
    from connect.cli.commands.rest_client import RestClient

#: Keys of a request body (Java's ``CreateConnectorRequest``).
_KEYS: Final = ("name", "config", "initial_state")


class ConnectorFileState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """A connector as in a file; ``state`` is None if the file does not set it."""

    name: str
    config: dict[str, Any]
    state: ConnectorFileState | None


def read_connector(file: str) -> ConnectorFile:
    """Read the connector in ``file``; ``-`` is JSON on standard input. Raises ConfigError if there is none in it, or if
    it has unknown keys."""
    if file == "-":
        document: Any = read_json(sys.stdin.read(), "standard input")
    elif file.endswith(".properties"):
        document = dict(load_properties(Path(file)))
    else:
        document = read_json(Path(file).read_bytes(), file)
    if not isinstance(document, dict):
        raise ConfigError("a connector's config is a JSON object", file=file)
    is_body = isinstance(document.get("config"), dict)
    config = document["config"] if is_body else document
    name = document.get("name", config.get("name"))
    if not isinstance(name, str) or not name:
        raise ConfigError("the connector has no name", "name", file)
    return ConnectorFile(name, config, _state(document, file) if is_body else None)


def read_json(text: str | bytes, file: str) -> Any:
    """Parse JSON. Raises ConfigError, which names ``file``, if it is not valid."""
    try:
        return json.loads(text)
    except UnicodeDecodeError:
        raise ConfigError("this is not JSON in UTF-8", file=file) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"this is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError):  # because Python limits digits and nesting, JSON does not
        text = "this JSON has too many digits in a number or too many levels. Is it a connector's config?"
        raise ConfigError(text, file=file) from None


def _state(body: dict[str, Any], file: str) -> ConnectorFileState | None:
    if unknown := [key for key in body if key not in _KEYS]:
        text = f"{unknown[0]} is not known next to name and config. Move it into config, or remove it"
        raise ConfigError(text, unknown[0], file)
    state = body.get("initial_state")
    if state is None:
        return None
    if not isinstance(state, str) or state.lower() not in list(ConnectorFileState):
        raise ConfigError(f"initial_state is {json.dumps(state)}. Use RUNNING, PAUSED or STOPPED", file=file)
    return ConnectorFileState(state.lower())


app = typer.Typer(
    name="connectors",
    help="Manage the connectors of a running worker. Exit codes: 0 done, 1 an error.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def rest_option(text: str) -> Any:
    """Return the option ``--rest`` with this help. Its default is ``HELIOGRAPH_URL``; a command that accepts several
    URLs splits it at spaces."""
    return typer.Option("--rest", metavar="URL", envvar="HELIOGRAPH_URL", help=text)


Url = Annotated[str, rest_option("A worker of the group; of a dedicated mirror http://host:port/SOURCE/TARGET.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the worker's answer as JSON.")]
Name = Annotated[str, typer.Argument(metavar="NAME")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...")]

DEFAULT_URL: Final = "http://localhost:8083"
#: Java's words for a connector whose offsets cannot be changed yet; their remedy is a request.
_NOT_STOPPED: Final = "must be in the STOPPED state"


@app.command("list")
def list_connectors(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all connectors with their states."""
    from connect.cli import tables

    with _worker(url) as worker:
        details = worker.connectors("status")
        if as_json:
            tables.show_json(details)
        else:
            # One without a status is only here.
            tables.show_connectors(worker.ask("GET", "/connectors"), details)


@app.command()
def create(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='A .properties file, or JSON: a config or {"name": ..., "config": ..., "initial_state": ...}; '
            "- for JSON on standard input.",
        ),
    ],
    state: Annotated[
        ConnectorFileState | None,
        typer.Option(help="The initial state. Default: the file's initial_state, or running."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the config of an existing connector.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a connector from a file."""
    found = read_connector(file)
    name, config = found.name, found.config
    if replace and state is not None:
        raise ConfigError("--replace keeps the current state. Leave --state out", "--state")
    if replace and found.state is not None:
        raise ConfigError("--replace keeps the current state. Remove initial_state", "initial_state", file)
    begins = state or found.state

    from connect.cli import tables

    with _worker(url) as worker:
        if replace:
            info = worker.ask("PUT", worker.path(name, "config"), config)
        else:
            body = {"name": name, "config": config}
            if begins is not None:
                body["initial_state"] = begins.upper()
            try:
                info = worker.ask("POST", "/connectors", body)
            except HeliographError as error:
                if str(error) != f"Connector {name} already exists":
                    raise
                raise HeliographError(f"{error}. Replace its config with --replace") from None
        if as_json:
            tables.show_json(info)
        else:
            print(f"{name}: {'stored' if replace else 'created'}")


@app.command()
def status(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a connector, its tasks, and why they failed."""
    from connect.cli import tables

    with _worker(url) as worker:
        answer = worker.ask("GET", worker.path(name, "status"))
        (tables.show_json if as_json else tables.show_status)(answer)


@app.command()
def pause(names: Names, url: Url = DEFAULT_URL) -> None:
    """Pause connectors. Their tasks stay, and wait."""
    _each(names, url, "PUT", "pause", "pausing")


@app.command()
def resume(names: Names, url: Url = DEFAULT_URL) -> None:
    """Resume paused or stopped connectors."""
    _each(names, url, "PUT", "resume", "resuming")


@app.command()
def stop(names: Names, url: Url = DEFAULT_URL) -> None:
    """Stop connectors. Their tasks are removed; configs and offsets stay."""
    _each(names, url, "PUT", "stop", "stopped")


@app.command()
def delete(names: Names, url: Url = DEFAULT_URL) -> None:
    """Delete connectors. Their offsets stay."""
    _each(names, url, "DELETE", None, "deleted")


@app.command()
def restart(
    name: Name,
    tasks: Annotated[bool, typer.Option("--tasks", help="Restart its tasks too.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Restart only what has failed.")] = False,
    task: Annotated[int | None, typer.Option(min=0, metavar="N", help="Restart only this task.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Restart a connector, its failed parts, or one task."""
    if task is not None and (tasks or failed):
        raise ConfigError("--task restarts one task. Leave --tasks and --failed out", "--task")

    from connect.cli import tables

    with _worker(url) as worker:
        if task is not None:
            worker.ask("POST", worker.path(name, "tasks", str(task), "restart"))
            if as_json:
                tables.show_json({"name": name, "restarted": True, "task": task})
            else:
                print(f"{name}: task {task} restarted")
            return
        query = f"includeTasks={str(tasks).lower()}&onlyFailed={str(failed).lower()}"
        planned = worker.ask("POST", f"{worker.path(name, 'restart')}?{query}")
        if as_json:
            tables.show_json({"name": name, "restarted": True} if planned is None else planned)
        elif planned is None:
            print(f"{name}: restarted")
        else:
            tables.show_status(planned)


@app.command()
def offsets(
    name: Name,
    reset: Annotated[bool, typer.Option("--reset", help="Delete all offsets of a stopped connector.")] = False,
    alter: Annotated[
        Path | None,
        typer.Option("--set", metavar="FILE", help="Set the offsets in a JSON file, which is as --json prints it."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show, set or reset the offsets of a connector."""
    if reset and alter is not None:
        raise ConfigError("--reset and --set cannot be combined", "--reset")
    body = None if alter is None else read_json(alter.read_bytes(), str(alter))

    from connect.cli import tables

    with _worker(url) as worker:
        path = worker.path(name, "offsets")
        if reset or body is not None:
            try:
                answer = worker.ask("DELETE", path) if reset else worker.ask("PATCH", path, body)
            except HeliographError as error:
                if _NOT_STOPPED not in str(error):
                    raise
                stop_it = f"heliograph connectors stop {name} --rest {worker.shown_url}"
                raise HeliographError(f"{name} is not stopped. Stop it first: {stop_it}") from None
            print(f"{name}: {answer['message']}")
            return
        answer = worker.ask("GET", path)
        if as_json:
            tables.show_json(answer)
        else:
            tables.show_offsets(answer["offsets"])


@app.command(short_help="Show who changed what and when.")
def audit(
    name: Name,
    top: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many entries.")] = 20,
    search: Annotated[str, typer.Option(metavar="TEXT", help="Only entries that contain this text.")] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show who changed what and when in the group of a connector, the newest first."""
    from urllib.parse import urlencode

    from connect.cli import tables

    with _worker(url) as worker:
        answer = worker.ask("GET", f"{worker.path(name, 'audit')}?{urlencode({'top': top, 'search': search})}")
        if as_json:
            tables.show_json(answer)
        elif not answer["enabled"]:
            print("Nothing is recorded: audit.enable is not set in the worker's file.")
        else:
            tables.show_audit(answer["entries"])


def _each(names: list[str], url: str, method: str, what: str | None, done: str) -> None:
    with _worker(url) as worker:
        for name in names:
            worker.ask(method, worker.path(name, *(() if what is None else (what,))))
            print(f"{name}: {done}")


def _worker(url: str) -> RestClient:
    from connect.cli.commands.rest_client import RestClient

    return RestClient(url)
