"""Declares the configs of a worker's REST server (Kafka's ``RestServerConfig``); parses its listeners and headers."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import Final

from connect.core.config.config_def import (
    AtLeast,
    ConfigDef,
    InvalidValue,
    OneOf,
    Setting,
    Type,
    ValidList,
    Value,
    invalid,
)
from connect.core.config.config_def import text as _text
from connect.core.config.validation import Valid, valid

_LISTENER: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
_ACTIONS: Final = ("set", "add", "setDate", "addDate")


@dataclass(frozen=True, slots=True)
class RestListener:
    """An address to listen on. An empty host means all interfaces, port 0 any free port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_listener(text: str) -> RestListener:
    """Parse ``http://host:port`` or ``https://host:port``.

    Raises:
        InvalidValue: The text has another form.
    """
    match = _LISTENER.fullmatch(text.lower())
    if match is None:
        raise InvalidValue(f"Listener doesn't have the right format (protocol://hostname:port): {text}")
    scheme, host, port = match.group(1), match.group(2), int(match.group(3))
    if scheme not in ("http", "https"):
        raise InvalidValue(f'Listener protocol must be either "http" or "https": {text}')
    if not 0 <= port <= 65535:
        raise InvalidValue(f"The port of a listener must be between 0 and 65535: {text}")
    return RestListener(scheme, host, port)


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """An action (set, add, setDate, addDate) on a header of every response."""

    action: str
    name: str
    value: str


def parse_header_rules(text: str) -> tuple[HeaderRule, ...]:
    """Parse ``response.http.headers.config``: rules ``[action] [name]:[value]``, optionally in double quotes.

    Raises:
        InvalidValue: A rule is malformed; Java's message.
    """
    rows = csv.reader([text.strip()], skipinitialspace=True)
    return tuple(_header_rule(each.strip()) for row in rows for each in row)


def _header_rule(text: str) -> HeaderRule:
    action, _, header = text.partition(" ")
    header = header.strip()
    if not header:
        raise InvalidValue(
            f"Invalid format of header config '{text}'. Expected: '[action] [header name]:[header value]'"
        )
    known = {each.lower(): each for each in _ACTIONS}
    if action.lower() not in known:
        raise InvalidValue(f"Invalid header config action: '{action}'. Expected one of [{', '.join(_ACTIONS)}]")
    name, *values = header.rstrip(":").split(":")
    if len(values) != 1:
        raise InvalidValue(
            f"Invalid format of header name and header value pair '{header}'. Expected: '[header name]:[header value]'"
        )
    if not name.strip() or re.search(r"\s", name.strip()):
        raise InvalidValue(f"Invalid header name '{name}'. The '[header name]' cannot contain whitespace")
    return HeaderRule(known[action.lower()], name.strip(), values[0].strip())


def _listeners(*, may_be_empty: bool) -> Valid:
    def check(name: str, value: Value) -> None:
        if value is None and may_be_empty:
            return
        ValidList(may_be_empty=may_be_empty)(name, value)
        assert isinstance(value, tuple)
        for each in value:
            parse_listener(each)

    return Valid("URLs such as http://localhost:8083,https://localhost:8443", check)


@valid("rules [action] [header name]:[header value], in double quotes if they contain commas")
def _headers(name: str, value: Value) -> None:
    assert isinstance(value, str)
    if value:
        parse_header_rules(value)


@valid("[http, https]")
def _scheme(name: str, value: Value) -> None:
    if isinstance(value, str) and value.lower() not in ("http", "https"):
        raise invalid(name, value, "it must be http or https")


#: Keys that Java does not have.
OWN_REST: Final = ConfigDef.of(
    Setting(
        "rest.max.request.bytes",
        Type.INT,
        1 << 20,
        "Maximum size of a request body; larger requests get status 413. Requests between workers may have 10 MiB.",
        AtLeast(1024),
    ),
)

#: A server for requests of other workers only.
REST_INTERNAL: Final = OWN_REST | ConfigDef.of(
    Setting(
        "listeners",
        Type.LIST,
        ("http://localhost:8083",),
        "Addresses of the REST API; http://:8083 is port 8083 of all interfaces. The REST API has no authentication.",
        _listeners(may_be_empty=False),
    ),
    _text("rest.advertised.host.name", None, "Host at which other workers connect to this worker."),
    Setting("rest.advertised.port", Type.INT, None, "Port at which other workers connect to this worker."),
    Setting("rest.advertised.listener", Type.STRING, None, "Scheme of the listener for other workers.", _scheme),
    _text(
        "access.control.allow.origin",
        "",
        "Origins of allowed cross-origin requests, as regular expressions; * allows all, empty none.",
    ),
    _text("access.control.allow.methods", "", "Methods of cross-origin requests; empty: GET, POST and HEAD."),
    Setting("response.http.headers.config", Type.STRING, "", "Headers of every response.", _headers),
    Setting(
        "ssl.client.auth",
        Type.STRING,
        "none",
        "Whether clients of https listeners must present a certificate.",
        OneOf(("required", "requested", "none")),
    ),
)

#: A server for users and other workers.
REST: Final = REST_INTERNAL | ConfigDef.of(
    Setting("rest.extension.classes", Type.LIST, (), "Java classes that extend the REST API.", ValidList()),
    Setting(
        "admin.listeners",
        Type.LIST,
        None,
        "Addresses of the endpoints for loggers; null: same as listeners; empty: no endpoints for loggers.",
        _listeners(may_be_empty=True),
    ),
)
