"""A connector in a file: as properties, as a config in JSON, or as the body by which REST makes one."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from connect.core.errors import ConfigError
from connect.core.properties import load_properties

#: Of a body (Java's ``CreateConnectorRequest``).
_KEYS: Final = ("name", "config", "initial_state")


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """What a file says of a connector; ``state`` is None where it says nothing of it."""

    name: str
    config: dict[str, Any]
    state: State | None


def read_connector(file: str) -> ConnectorFile:
    """The connector in ``file``; ``-`` is JSON on standard input.

    Raises:
        ConfigError: It holds none, or keys that mean nothing.
    """
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
    """A document of JSON; ``file`` is named where it is none.

    Raises:
        ConfigError: It is none.
    """
    try:
        return json.loads(text)
    except UnicodeDecodeError:
        raise ConfigError("this is not JSON in UTF-8", file=file) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"this is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError):  # what JSON allows, and Python does not read
        raise ConfigError(
            "a number or the nesting in it is beyond reading; is it a connector's config?", file=file
        ) from None


def _state(body: dict[str, Any], file: str) -> State | None:
    unknown = [key for key in body if key not in _KEYS]
    if unknown:
        raise ConfigError(
            f"{unknown[0]} means nothing beside name and config; move it into config, or take it out",
            unknown[0],
            file,
        )
    state = body.get("initial_state")
    if state is None:
        return None
    if not isinstance(state, str) or state.lower() not in list(State):
        raise ConfigError(f"initial_state is {json.dumps(state)}; it can be RUNNING, PAUSED or STOPPED", file=file)
    return State(state.lower())
