"""Reads the REST server's settings from a worker's properties."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, Self

from connect.core.config.config_def import Values, split_list
from connect.core.config.rest_settings import HeaderRule, RestListener, parse_header_rules, parse_listener

#: Prefixes of the TLS keys of https listeners; once one key has the prefix, keys without it are ignored.
HTTPS_PREFIX: Final = "listeners.https."
ADMIN_HTTPS_PREFIX: Final = "admin.listeners.https."


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
