"""The settings of a worker's REST server (Kafka's ``RestServerConfig``), and how its listeners and headers read."""

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

_LISTENER: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
_ACTIONS: Final = ("set", "add", "setDate", "addDate")


@dataclass(frozen=True, slots=True)
class RestListener:
    """Where a server listens; an empty host is every interface, port 0 any free one."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_listener(text: str) -> RestListener:
    """``http://host:port`` or ``https://host:port``.

    Raises:
        InvalidValue: It is none.
    """
    match = _LISTENER.fullmatch(text.lower())
    if match is None:
        raise InvalidValue(f"Listener doesn't have the right format (protocol://hostname:port): {text}")
    scheme, host, port = match.group(1), match.group(2), int(match.group(3))
    if scheme not in ("http", "https"):
        raise InvalidValue(f'Listener protocol must be either "http" or "https": {text}')
    if not 0 <= port <= 65535:
        raise InvalidValue(f"The port of a listener is between 0 and 65535: {text}")
    return RestListener(scheme, host, port)


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """What to do with a header of every answer: action (set, add, setDate, addDate), name and value."""

    action: str
    name: str
    value: str


def parse_header_rules(text: str) -> tuple[HeaderRule, ...]:
    """The rules of ``response.http.headers.config``: ``[action] [name]:[value]``, each perhaps in double quotes.

    Raises:
        InvalidValue: One of them is malformed; Java's sentence.
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


@dataclass(frozen=True, slots=True)
class _Listeners:
    may_be_empty: bool

    def __call__(self, name: str, value: Value) -> None:
        if value is None and self.may_be_empty:
            return
        ValidList(may_be_empty=self.may_be_empty)(name, value)
        assert isinstance(value, tuple)
        for each in value:
            parse_listener(each)

    def __str__(self) -> str:
        return "URLs such as http://localhost:8083,https://localhost:8443"


@dataclass(frozen=True, slots=True)
class _Headers:
    def __call__(self, name: str, value: Value) -> None:
        assert isinstance(value, str)
        if value:
            parse_header_rules(value)

    def __str__(self) -> str:
        return "rules [action] [header name]:[header value], in double quotes where they hold commas"


@dataclass(frozen=True, slots=True)
class _Scheme:
    def __call__(self, name: str, value: Value) -> None:
        if isinstance(value, str) and value.lower() not in ("http", "https"):
            raise invalid(name, value, "it must be http or https")

    def __str__(self) -> str:
        return "[http, https]"


#: Keys that Java does not have.
OWN_REST: Final = ConfigDef.of(
    Setting(
        "rest.max.request.bytes",
        Type.INT,
        1 << 20,
        "Longest body of a request; a longer one is answered 413. Requests between workers may have 10 MiB.",
        AtLeast(1024),
    ),
)

#: Of a server that only other workers talk to.
REST_INTERNAL: Final = OWN_REST | ConfigDef.of(
    Setting(
        "listeners",
        Type.LIST,
        ("http://localhost:8083",),
        "Where the REST API listens; http://:8083 is port 8083 of all interfaces. It asks for no password.",
        _Listeners(may_be_empty=False),
    ),
    _text("rest.advertised.host.name", None, "Host under which other workers reach this one."),
    Setting("rest.advertised.port", Type.INT, None, "Port under which other workers reach this one."),
    Setting("rest.advertised.listener", Type.STRING, None, "Listener that other workers use.", _Scheme()),
    _text(
        "access.control.allow.origin",
        "",
        "Origins that browsers may call from, as regular expressions; * for any, empty for its own.",
    ),
    _text("access.control.allow.methods", "", "Methods for such calls; empty for GET, POST and HEAD."),
    Setting("response.http.headers.config", Type.STRING, "", "Headers of every answer.", _Headers()),
    Setting(
        "ssl.client.auth",
        Type.STRING,
        "none",
        "Whether clients of https listeners show a certificate.",
        OneOf(("required", "requested", "none")),
    ),
)

#: Of a server for users as well.
REST: Final = REST_INTERNAL | ConfigDef.of(
    Setting("rest.extension.classes", Type.LIST, (), "Java classes that extend the REST API.", ValidList()),
    Setting(
        "admin.listeners",
        Type.LIST,
        None,
        "Where the loggers are served; null with the rest, empty nowhere.",
        _Listeners(may_be_empty=True),
    ),
)
