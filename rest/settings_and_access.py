"""Reads the REST server's settings from a worker's properties, and decides who may do what: the roles, the role that
each request needs, allowed hosts and origins."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from ssl import SSLContext
from typing import Final, Self
from urllib.parse import quote, unquote

from connect.core.config.config_def import Values, split_list
from connect.core.config.rest_settings import (
    HeaderRule,
    RestListener,
    has_role_lists,
    parse_header_rules,
    parse_listener,
    parse_principals,
)
from connect.core.herder_api import BadRequest, Forbidden, NotReady


class Role(IntEnum):
    """What a user may do; each role includes the ones before it.

    VIEW reads, without passwords. OPERATE also pauses, resumes, restarts and stops. ADMIN does everything.
    """

    NONE = 0
    VIEW = 1
    OPERATE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """A user: the name, for the log, and the role."""

    name: str
    role: Role

    def to_header(self, now_s: float) -> str:
        """Return the caller for a request that is forwarded to another worker now; each header is another one."""
        return f"{self.role.name} {quote(self.name)} {int(now_s * 1000)} {secrets.token_hex(16)}"


#: How old a forwarded request may be, and how much the clocks of two workers may differ.
FORWARDED_WITHIN_S: Final = 300.0


class ForwardedCallers:
    """The callers of forwarded requests whose signatures are verified, each request once. ``most`` bounds the memory;
    only workers of the group can fill it."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        #: Until when each nonce is kept, in the order of arrival.
        self._until_s: dict[str, float] = {}

    def caller(self, header: str, now_s: float) -> Caller:
        """Return the caller in a header of :meth:`Caller.to_header`. Raises BadRequest, Forbidden, NotReady."""
        try:
            role, name, sent_ms, nonce = header.split(" ")
            caller, sent_s = Caller(unquote(name), Role[role]), int(sent_ms) / 1000
        except (ValueError, LookupError):
            raise BadRequest("The user of the forwarded request cannot be read.") from None
        if abs(now_s - sent_s) > FORWARDED_WITHIN_S:
            raise Forbidden(
                f"The forwarded request is from another time than the last {FORWARDED_WITHIN_S:.0f} s. Set the clocks "
                "of the workers' machines."
            )
        while self._until_s and next(iter(self._until_s.values())) < now_s:
            del self._until_s[next(iter(self._until_s))]
        if nonce in self._until_s:
            raise Forbidden("The forwarded request has been handled before.")
        if len(self._until_s) >= self._most:
            raise NotReady("Other workers forward too many requests; try again in a few minutes.")
        # A sender's clock may be ahead.
        self._until_s[nonce] = now_s + 2 * FORWARDED_WITHIN_S
        return caller


#: The user of a worker without authentication.
ANYONE: Final = Caller("anonymous", Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each principal, such as ``User:ann`` or ``Group:ops``, and of principals that are not named."""

    members: Mapping[str, Role] = field(default_factory=dict)
    default: Role = Role.ADMIN

    def caller(self, user: str, groups: Iterable[str] = ()) -> Caller:
        """Return the user with the highest role that the user or one of the groups has."""
        names = (f"User:{user}", *(f"Group:{each}" for each in groups))
        found = [self.members[name] for name in names if name in self.members]
        return Caller(user, max(found, default=self.default))


_READS: Final = ("GET", "HEAD")
_OPERATIONS: Final = (("PUT", "pause"), ("PUT", "resume"), ("PUT", "stop"), ("POST", "restart"))


def needed_role(method: str, path: str) -> Role:
    """Return the role that a request needs; NONE: no authentication.

    ``path`` begins below a flow's. Signed requests between workers need no role, because the herder verifies their
    signature; neither do preflights, which browsers send without credentials. What is not known needs ADMIN.
    """
    match method, path.split("/")[1:]:
        case ("POST", ["connectors", _, "tasks"]) | ("PUT", ["connectors", _, "fence"]) | ("OPTIONS", _):
            return Role.NONE
        case (verb, _) if verb in _READS:
            return Role.VIEW
        case (verb, ["connectors", _, word]) if (verb, word) in _OPERATIONS:
            return Role.OPERATE
        case "POST", ["connectors", _, "tasks", _, "restart"]:
            return Role.OPERATE
    return Role.ADMIN


def changes_something(method: str, path: str) -> bool:
    """Return whether a user's request changes something; ``path`` begins below a flow's."""
    return method not in (*_READS, "OPTIONS") and not path.startswith("/connector-plugins/")


def below_flow(path: str) -> str:
    """Return the path below a flow's, ``/{source}/{target}``; the path itself if it has none."""
    segments = path.split("/", 3)
    return path if len(segments) < 3 else f"/{segments[3] if len(segments) > 3 else ''}"


#: What the segment behind one of these names.
_NAMED: Final = {"connectors": "{connector}", "tasks": "{task}", "connector-plugins": "{plugin}", "loggers": "{logger}"}


def route_of(path: str, *, has_flow: bool) -> str:
    """Return a path with names replaced, such as ``/connectors/{connector}/status``, so that there are few of them."""
    below = below_flow(path) if has_flow and not path.startswith(("/ui", "/metrics", "/health")) else path
    parts = below.split("/")
    found = [_NAMED.get(before, part) if part else part for before, part in zip(["", *parts], parts, strict=False)]
    if found[1:2] == ["ui"]:
        found = found[:3]
    return ("/{source}/{target}" if below is not path else "") + "/".join(found[:6])


def is_allowed_host(host: str | None, names: frozenset[str]) -> bool:
    """Return whether a Host header names this worker. A page whose name was bound again to this worker's address sends
    that name (DNS rebinding), so addresses are always allowed; no browser omits the header."""
    if host is None or "*" in names:
        return True
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".") in names
    return True


def is_own_origin(origin: str, host: str | None) -> bool:
    """Return whether a page of ``origin`` is of this worker; a proxy may have removed TLS, so schemes may differ."""
    return origin.partition("://")[2].lower() == (host or "").lower() != ""


#: A principal in several lists has the highest role.
_ROLES: Final = (
    ("rest.auth.viewers", Role.VIEW),
    ("rest.auth.operators", Role.OPERATE),
    ("rest.auth.admins", Role.ADMIN),
)


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """Which bearer tokens are accepted.

    Args:
        url: Of the JWKS, https or file.
        refresh_ms: How long its keys are used before they are read again.
        issuer, audiences: What a token must have; of the audiences one.
        principal_claim, groups_claim: The claims with the user's name and groups.
    """

    url: str
    refresh_ms: int
    issuer: str
    audiences: tuple[str, ...]
    principal_claim: str = "sub"
    groups_claim: str = "groups"


@dataclass(frozen=True, slots=True)
class RestAccess:
    """Who may use the API.

    Args:
        basic_file: Users and passwords.
        login_config: Java's JAAS file, which names such a file.
        jwt: None: no bearer tokens.
        roles: Of users.
        insecure: Whether users need no authentication, and any Host is allowed.
        allowed_hosts: Further names of this worker.
    """

    basic_file: str | None = None
    login_config: str | None = None
    jwt: JwtSettings | None = None
    roles: Roles = field(default_factory=Roles)
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Values) -> Self:
        default = values["rest.auth.default.role"]
        if default is None:
            default = "none" if has_role_lists(values) else "admin"
        members = {principal: role for key, role in _ROLES for principal in parse_principals(key, values.string(key))}
        return cls(
            basic_file=_text(values["rest.auth.basic.file"]),
            login_config=_text(values["java.security.auth.login.config"]),
            jwt=_jwt(values),
            roles=Roles(members, Role[str(default).upper()]),
            insecure=values.boolean("rest.insecure"),
            allowed_hosts=values.strings("rest.allowed.hosts"),
        )


def _jwt(values: Values) -> JwtSettings | None:
    url = _text(values["rest.auth.jwt.jwks.url"])
    if url is None:
        return None
    return JwtSettings(
        url,
        values.integer("rest.auth.jwt.jwks.refresh.ms"),
        values.string("rest.auth.jwt.expected.issuer"),
        values.strings("rest.auth.jwt.expected.audience"),
        values.string("rest.auth.jwt.principal.claim"),
        values.string("rest.auth.jwt.groups.claim"),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


@dataclass(frozen=True, slots=True)
class RestSettings:
    """The parsed settings of :data:`connect.core.config.rest_settings.REST`.

    Args:
        listeners: Listeners of the API.
        admin_listeners: Listeners of the loggers; None: those of the API, empty: none.
        advertised_host, advertised_port, advertised_scheme: Advertised to other workers instead of the first
            listener's.
        allowed_origins, allowed_methods: For cross-origin requests; no origins: browsers allow none.
        header_rules: For every answer of the main listeners.
        topic_tracking, topic_tracking_reset: ``topic.tracking.*``.
        max_request_bytes: Longest body of a user's request.
        access: Who may use the API.
        max_connections, max_connections_per_address: Of the main and the admin listeners together.
        metrics_listeners: Listeners with only health and metrics.
        has_ui: Whether the dashboard is served.
    """

    listeners: tuple[RestListener, ...] = (RestListener("http", "localhost", 8083),)
    admin_listeners: tuple[RestListener, ...] | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None
    advertised_scheme: str | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ()
    header_rules: tuple[HeaderRule, ...] = ()
    topic_tracking: bool = True
    topic_tracking_reset: bool = True
    max_request_bytes: int = 1 << 20
    access: RestAccess = field(default_factory=RestAccess)
    max_connections: int = 512
    max_connections_per_address: int = 128
    metrics_listeners: tuple[RestListener, ...] = ()
    has_ui: bool = True

    @classmethod
    def of(cls, values: Values) -> Self:
        """Return the settings in parsed worker properties; ``REST_INTERNAL`` has only some of them."""
        admin = values.get("admin.listeners", None)
        scheme = values.string_or_null("rest.advertised.listener")
        return cls(
            listeners=tuple(map(parse_listener, values.strings("listeners"))),
            admin_listeners=tuple(map(parse_listener, admin)) if isinstance(admin, tuple) else None,
            advertised_host=values.string_or_null("rest.advertised.host.name") or None,
            advertised_port=values.integer_or_null("rest.advertised.port"),
            advertised_scheme=scheme and scheme.lower(),
            allowed_origins=split_list(values.string("access.control.allow.origin")),
            allowed_methods=split_list(values.string("access.control.allow.methods")),
            header_rules=parse_header_rules(values.string("response.http.headers.config")),
            topic_tracking=values.get("topic.tracking.enable", True) is True,
            topic_tracking_reset=values.get("topic.tracking.allow.reset", True) is True,
            max_request_bytes=values.integer("rest.max.request.bytes"),
            access=RestAccess.of(values),
            max_connections=values.integer("rest.max.connections"),
            max_connections_per_address=values.integer("rest.max.connections.per.address"),
            metrics_listeners=tuple(map(parse_listener, values.strings("metrics.listeners"))),
            has_ui=values.boolean("rest.ui.enable"),
        )


@dataclass(frozen=True, slots=True)
class RestTls:
    """TLS for https listeners and https workers; each function is called only if there is one.

    Args:
        server: The context for the listeners whose keys have this prefix.
        client: The context for requests to other workers.
    """

    server: Callable[[str], SSLContext]
    client: Callable[[], SSLContext]


#: Returns the body of ``GET /metrics``, in the Prometheus text format.
Metrics = Callable[[], Awaitable[bytes]]
