"""Declares the configs of a worker's REST server (Kafka's ``RestServerConfig``); parses listeners and headers, and
refuses listeners that would serve users of other machines without authentication."""

from __future__ import annotations

import csv
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.config.config_def import (
    AtLeast,
    ConfigDef,
    InvalidValue,
    OneOf,
    ValidList,
    Value,
    Values,
    flag,
    integer,
    invalid,
    split_list,
    strings,
    text,
)
from connect.core.config.validation import Valid, valid
from connect.core.errors import ConfigError

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
    """Parse ``http://host:port`` or ``https://host:port``. Raises InvalidValue if the text has another form."""
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
    """Parse ``response.http.headers.config``: rules ``[action] [name]:[value]``, optionally in double quotes. Raises
    InvalidValue if a rule is malformed; Java's message."""
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


@valid("User:name or Group:name, separated by semicolons")
def _principals(name: str, value: Value) -> None:
    assert isinstance(value, str)
    parse_principals(name, value)


def parse_principals(name: str, text: str) -> tuple[str, ...]:
    """Return the principals in ``text``, such as ``User:CN=ops,O=Example; Group:admins``; a semicolon separates them,
    as in the brokers' ``super.users``. Raises InvalidValue if one is neither a user nor a group."""
    found = tuple(each.strip() for each in text.split(";") if each.strip())
    for each in found:
        if re.fullmatch(r"(User|Group):.+", each) is None:
            raise invalid(name, each, "write a principal as User:name or Group:name, and a semicolon between two")
    return found


#: Java's extension for Basic authentication, and the system property that names its JAAS file.
BASIC_EXTENSION: Final = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
EXTENSIONS: Final = "rest.extension.classes"
CLIENT_AUTH: Final = "ssl.client.auth"
LOGIN_CONFIG: Final = "java.security.auth.login.config"
INSECURE: Final = "rest.insecure"
BASIC_FILE: Final = "rest.auth.basic.file"
JWKS_URL: Final = "rest.auth.jwt.jwks.url"
ROLE_LISTS: Final = {"admin": "rest.auth.admins", "operate": "rest.auth.operators", "view": "rest.auth.viewers"}
DEFAULT_ROLE: Final = "rest.auth.default.role"
_ISSUER: Final = "rest.auth.jwt.expected.issuer"
_AUDIENCE: Final = "rest.auth.jwt.expected.audience"

#: Who may use the REST API. Java has only ``rest.extension.classes``, with the file of ``LOGIN_CONFIG``.
_ACCESS: Final = ConfigDef.of(
    text(
        BASIC_FILE, None, "Properties file with lines user=password, for Basic authentication; read again when changed."
    ),
    text(LOGIN_CONFIG, None, "JAAS file of Java's BasicAuthSecurityRestExtension, with PropertyFileLoginModule."),
    text(JWKS_URL, None, "Public keys that sign bearer tokens (JWKS): an https URL, or file:///path."),
    integer(
        "rest.auth.jwt.jwks.refresh.ms",
        3_600_000,
        "Interval at which these keys are read again.",
        check=AtLeast(1000, 2**31 - 1),
    ),
    text(_ISSUER, None, "Issuer that a bearer token must have."),
    strings(_AUDIENCE, (), "Audiences, of which a bearer token must have one.", check=ValidList()),
    text("rest.auth.jwt.principal.claim", "sub", "Claim with the user's name."),
    text("rest.auth.jwt.groups.claim", "groups", "Claim with the user's groups; dots lead into nested claims."),
    *(text(key, "", f"Principals with the role {role}.", check=_principals) for role, key in ROLE_LISTS.items()),
    text(
        DEFAULT_ROLE,
        None,
        "Role of authenticated users that no list names: none, view, operate, admin. Null: none if there is a list, "
        "else admin, as in Java.",
        check=OneOf(("none", "view", "operate", "admin"), nullable=True),
    ),
    flag(INSECURE, False, "Serve users of other machines without authentication: all of them are admins."),
    strings(
        "rest.allowed.hosts",
        (),
        "Further host names in requests' Host header. Addresses, localhost, this machine's name and those of listeners "
        "are always allowed; * allows all.",
        check=ValidList(),
    ),
)

#: Keys that Java does not have.
OWN_REST: Final = _ACCESS | ConfigDef.of(
    integer(
        "rest.max.request.bytes",
        1 << 20,
        "Maximum size of a request body; larger requests get status 413. Requests between workers may have 10 MiB.",
        check=AtLeast(1024),
    ),
    integer(
        "rest.max.connections",
        512,
        "Open connections to the REST API. For a further one the connection is closed that has waited longest for its "
        "client.",
        check=AtLeast(8),
    ),
    integer("rest.max.connections.per.address", 128, "Open connections from one address, likewise.", check=AtLeast(4)),
    strings(
        "metrics.listeners",
        (),
        "Addresses of a server that has only /health and /metrics, without authentication, for probes and Prometheus.",
        check=_listeners(may_be_empty=True),
    ),
    flag("rest.ui.enable", True, "Whether the listeners of the REST API also serve the dashboard, at /ui."),
)

#: A server for requests of other workers only.
REST_INTERNAL: Final = OWN_REST | ConfigDef.of(
    strings(
        "listeners",
        ("http://localhost:8083",),
        "Addresses of the REST API; http://:8083 is port 8083 of all interfaces. Those that other machines reach need "
        "authentication.",
        check=_listeners(may_be_empty=False),
    ),
    text("rest.advertised.host.name", None, "Host at which other workers connect to this worker."),
    integer("rest.advertised.port", None, "Port at which other workers connect to this worker."),
    text("rest.advertised.listener", None, "Scheme of the listener for other workers.", check=_scheme),
    text(
        "access.control.allow.origin",
        "",
        "Origins of allowed cross-origin requests, as regular expressions; * allows all, empty none.",
    ),
    text("access.control.allow.methods", "", "Methods of cross-origin requests; empty: GET, POST and HEAD."),
    text("response.http.headers.config", "", "Headers of every response.", check=_headers),
    text(
        CLIENT_AUTH,
        "none",
        "Whether clients of https listeners must present a certificate, which authenticates them.",
        check=OneOf(("required", "requested", "none")),
    ),
)

#: A server for users and other workers.
REST: Final = REST_INTERNAL | ConfigDef.of(
    strings(
        EXTENSIONS,
        (),
        "Java classes that extend the REST API; BasicAuthSecurityRestExtension is replaced by Basic authentication.",
        check=ValidList(),
    ),
    strings(
        "admin.listeners",
        None,
        "Addresses of the endpoints for loggers; null: same as listeners; empty: no endpoints for loggers.",
        check=_listeners(may_be_empty=True),
    ),
)


def tls_keys(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the TLS keys of listeners without ``prefix``; if any key has it, keys without it are ignored (KIP-208)."""
    own = {key.removeprefix(prefix): value.strip() for key, value in props.items() if key.startswith(prefix)}
    return own or {key: value.strip() for key, value in props.items() if key.startswith("ssl.")}


#: Prefixes of the TLS keys of https listeners.
HTTPS_PREFIX: Final = "listeners.https."
ADMIN_HTTPS_PREFIX: Final = "admin.listeners.https."


def check_access(values: Values, props: Mapping[str, str]) -> None:
    """Check who may use the REST API for users. Raises ConfigError if a listener that other machines reach has no
    authentication, an authenticator lacks a key, or ``rest.extension.classes`` names a class that cannot be loaded."""
    _check_authenticators(values, split_list(props.get(EXTENSIONS, "")))
    if values.boolean(INSECURE):
        return
    by_all = any(values[key] for key in (BASIC_FILE, LOGIN_CONFIG, JWKS_URL))
    for key, prefix in (("listeners", HTTPS_PREFIX), ("admin.listeners", ADMIN_HTTPS_PREFIX)):
        found = values.get(key) or ()
        assert isinstance(found, tuple)
        by_certificate = asks_for_certificates(props, prefix)
        for listener in map(parse_listener, found):
            if not (is_loopback(listener.host) or by_all or (by_certificate and listener.scheme == "https")):
                raise ConfigError(
                    f"{key} = {listener} serves other machines without authentication, and every client could create "
                    f"connectors. Set {BASIC_FILE} or another of rest.auth.*, or ssl.client.auth = required for https "
                    f"(docs/security/rest.md); or set {INSECURE} = true to serve them all the same",
                    key,
                )


def asks_for_certificates(props: Mapping[str, str], prefix: str) -> bool:
    """Return whether the https listeners with the TLS keys of ``prefix`` ask clients for certificates."""
    return tls_keys(props, prefix).get(CLIENT_AUTH, "none").lower() != "none"


def _check_authenticators(values: Values, extensions: Iterable[str]) -> None:
    for each in extensions:
        if each != BASIC_EXTENSION:
            raise ConfigError(
                f"rest.extension.classes names {each}, a Java class, which cannot be loaded here; without it the REST "
                "API may be unprotected. Remove it and use rest.auth.* (docs/security/rest.md)",
                EXTENSIONS,
            )
        if values[LOGIN_CONFIG] is None:
            raise ConfigError(
                f"rest.extension.classes needs {LOGIN_CONFIG} in this file: the JAAS file that Java's command line has "
                f"as -D{LOGIN_CONFIG}",
                LOGIN_CONFIG,
            )
    jwt = {key: values[key] for key in (JWKS_URL, _ISSUER, _AUDIENCE)}
    if any(jwt.values()):
        for key, value in jwt.items():
            if not value:
                raise ConfigError(f"{key} is missing; bearer tokens need {', '.join(jwt)}", key)
        if values[DEFAULT_ROLE] is None and not has_role_lists(values):
            raise ConfigError(
                f"{ROLE_LISTS['admin']} is missing: with bearer tokens, name principals in "
                f"{', '.join(ROLE_LISTS.values())}, or set {DEFAULT_ROLE}",
                ROLE_LISTS["admin"],
            )
        url = str(jwt[JWKS_URL])
        if re.match(r"https://|file:///|http://(localhost|127\.\d+\.\d+\.\d+|\[::1\])[:/]", url) is None:
            raise ConfigError(f"{JWKS_URL} must begin with https:// or file:///", JWKS_URL)


def has_role_lists(values: Values) -> bool:
    return any(parse_principals(key, values.string(key)) for key in ROLE_LISTS.values())


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def serves_others(listeners: Iterable[RestListener]) -> bool:
    """Return whether other machines reach one of ``listeners``."""
    return not all(is_loopback(each.host) for each in listeners)
