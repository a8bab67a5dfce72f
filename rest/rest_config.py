"""Reads the REST server's settings from a worker's properties."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Final, Self

from connect.core.config import rest_settings
from connect.core.config.config_def import Values, split_list
from connect.core.config.rest_settings import HeaderRule, RestListener, parse_listener
from connect.core.herder_api import HerderApi
from rest.access import Role, Roles

#: A principal in several lists has the highest role.
_ROLES: Final = {"rest.auth.viewers": Role.VIEW, "rest.auth.operators": Role.OPERATE, "rest.auth.admins": Role.ADMIN}


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """Which bearer tokens are accepted: the ``url`` of the JWKS, https or file; how long its keys are used before they
    are read again; what a token must have, of the audiences one; the claims with the user's name and groups."""

    url: str
    refresh_ms: int
    issuer: str
    audiences: tuple[str, ...]
    principal_claim: str = "sub"
    groups_claim: str = "groups"


@dataclass(frozen=True, slots=True)
class RestAccess:
    """Who may use the API: users and passwords of ``basic_file``, or of the file that Java's JAAS file ``login_config``
    names; ``allowed_hosts`` are further names of this worker."""

    basic_file: str | None = None
    login_config: str | None = None
    jwt: JwtSettings | None = None
    roles: Roles = field(default_factory=Roles)
    allowed_hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Values) -> Self:
        default = values["rest.auth.default.role"]
        if default is None:
            default = "none" if rest_settings.has_role_lists(values) else "admin"
        parse = rest_settings.parse_principals
        members = {name: role for key, role in _ROLES.items() for name in parse(key, values.string(key))}
        return cls(
            basic_file=_text(values["rest.auth.basic.file"]),
            login_config=_text(values["java.security.auth.login.config"]),
            jwt=_jwt(values),
            roles=Roles(members, Role[str(default).upper()]),
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
        admin_listeners: Listeners of the loggers; None: those of the API, empty: none.
        advertised_host, advertised_port, advertised_scheme: Advertised to other workers instead of the first
            listener's.
        allowed_origins, allowed_methods: For cross-origin requests; no origins: browsers allow none.
        max_request_bytes: Longest body of a user's request.
        max_connections, max_connections_per_address: Of the main and the admin listeners together.
        metrics_listeners: Listeners with only health and metrics.
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
            header_rules=rest_settings.parse_header_rules(values.string("response.http.headers.config")),
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
    """TLS contexts for the listeners whose keys have a prefix, and for requests to other workers; each function is
    called only if there is one."""

    server: Callable[[str], SSLContext]
    client: Callable[[], SSLContext]


#: (source, target) to the herder of that flow; a Connect worker has ("", "").
Flows = Mapping[tuple[str, str], HerderApi]
#: Returns the body of ``GET /metrics``, in the Prometheus text format.
Metrics = Callable[[], Awaitable[bytes]]
