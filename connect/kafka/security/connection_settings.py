"""Converts a Java client's properties into arguments of the Python clients.

A :class:`ConnectionSettings` is plain data with every file already read, so it can be sent to another machine over the
control link. That form includes the secrets, ``repr`` does not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any, Final, Self

from connect.core.config.client_settings import REFUSED_SECURITY
from connect.core.config.config_def import trim
from connect.core.config.security_settings import SECURITY, JaasError, parse_jaas
from connect.core.errors import ConfigError
from connect.kafka.security import renewal
from connect.kafka.security.oauth import OAuthSettings, is_source, oauth_settings, source_settings
from connect.kafka.security.tls import TlsSettings

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
#: As Kafka's ``Utils.HOST_PORT_PATTERN``: an optional scheme is ignored, IPv6 addresses are in brackets.
_HOST_PORT: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]*)]?:([0-9]+)")
_STORE: Final = re.compile(r"(^|\.)ssl\.(truststore|keystore)\.")
_BOOTSTRAP: Final = "bootstrap.servers"
_JAAS: Final = "sasl.jaas.config"
#: Classes of Kafka and Strimzi that log in as this package does.
_LOGINS: Final = frozenset(
    {
        "OAuthBearerLoginCallbackHandler",
        "OAuthBearerUnsecuredLoginCallbackHandler",
        "JaasClientOauthLoginCallbackHandler",
        "DefaultJwtRetriever",
        "ClientCredentialsJwtRetriever",
    }
)
_KAFKA: Final = "org.apache.kafka.common.security."
#: What Java uses without these settings, written out.
_DEFAULTS: Final = frozenset(
    {
        f"{_KAFKA}ssl.DefaultSslEngineFactory",
        "SunJSSE",
        f"{_KAFKA}authenticator.SaslClientCallbackHandler",
        f"{_KAFKA}kerberos.KerberosClientCallbackHandler",
        f"{_KAFKA}oauthbearer.internals.OAuthBearerSaslClientCallbackHandler",
        f"{_KAFKA}authenticator.DefaultLogin",
        f"{_KAFKA}kerberos.KerberosLogin",
        f"{_KAFKA}oauthbearer.internals.OAuthBearerRefreshingLogin",
    }
)


@dataclass(frozen=True)
class ConnectionSettings:
    """The settings of connections to one cluster. ``tls`` is set if and only if the protocol includes TLS.

    Args:
        bootstrap: (host, port) pairs; IPv6 hosts without brackets.
        client_id: The client id that brokers see; quotas apply to it.
        security_protocol, sasl_mechanism: Of ``SECURITY_PROTOCOLS`` and ``SASL_MECHANISMS``; None without SASL.
        username, password: For PLAIN and SCRAM.
        kerberos_service_name: The service part of the brokers' principal, for GSSAPI.
        connections_max_idle_ms: When an unused connection is closed.
        send_buffer_bytes, receive_buffer_bytes: Of sockets; None leaves them to the system, which adapts them to rate
            and distance.
        files: The name of the files with the credentials, by which this process renews them; empty: none.
    """

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    kerberos_service_name: str | None = None
    oauth: OAuthSettings | None = None
    tls: TlsSettings | None = None
    request_timeout_ms: int = 40_000
    connections_max_idle_ms: int = 540_000
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    files: str = ""

    def with_client_id(self, client_id: str) -> Self:
        return replace(self, client_id=client_id)

    def to_wire(self) -> dict[str, Any]:
        """Return a JSON-compatible form with the newest secrets: for the control link only."""
        now = self._renewed()
        wire = {each.name: getattr(now, each.name) for each in fields(self)}
        wire["bootstrap"] = [list(address) for address in self.bootstrap]
        wire["tls"] = None if self.tls is None else self.tls.to_wire()
        wire["oauth"] = None if now.oauth is None else now.oauth.to_wire()
        return wire

    def _renewed(self) -> Self:
        found = renewal.newest(self)
        return replace(self, username=found.username, password=found.password, oauth=found.oauth)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        bootstrap = tuple((host, port) for host, port in wire["bootstrap"])
        tls = None if wire["tls"] is None else TlsSettings.from_wire(wire["tls"])
        oauth = None if wire["oauth"] is None else OAuthSettings.from_wire(wire["oauth"])
        return cls(**{**wire, "bootstrap": bootstrap, "tls": tls, "oauth": oauth})

    @classmethod
    def renewed_wire(cls, wire: dict[str, Any]) -> dict[str, Any]:
        """Return the form of :meth:`to_wire` with the newest contents of its files."""
        has_files = wire.get("files") or (wire.get("tls") or {}).get("files")
        return cls.from_wire(wire).to_wire() if has_files else wire

    def create_conn_arguments(self) -> dict[str, Any]:
        """Return keyword arguments of ``aiokafka.conn.create_conn``, without host and port."""
        return {
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "max_idle_ms": self.connections_max_idle_ms,
            **self._security(),
        }

    def aiokafka_arguments(self) -> dict[str, Any]:
        """Return keyword arguments of ``AIOKafkaConsumer`` and ``AIOKafkaProducer``."""
        return {
            "bootstrap_servers": [format_address(host, port) for host, port in self.bootstrap],
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "connections_max_idle_ms": self.connections_max_idle_ms,
            **self._security(),
        }

    def _security(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "security_protocol": self.security_protocol,
            "ssl_context": None if self.tls is None else self.tls.ssl_context(),
            "sasl_mechanism": self.sasl_mechanism or "PLAIN",
        }
        now = self._renewed()
        if now.username is not None and now.password is not None:
            arguments["sasl_plain_username"] = now.username
            arguments["sasl_plain_password"] = renewal.NewestPassword.of(now.password, self._newest_user)
        if self.kerberos_service_name is not None:
            arguments["sasl_kerberos_service_name"] = self.kerberos_service_name
        if self.sasl_mechanism is not None:
            # Imported late: a worker reads its settings before it starts Spark, which must not wait for aiokafka. With
            # every mechanism, because the import changes what aiokafka does.
            from connect.kafka.security.aiokafka_sasl import TokensOfAiokafka

            if (oauth := now.oauth) is not None:
                arguments["sasl_oauth_token_provider"] = TokensOfAiokafka(lambda: self._renewed().oauth or oauth)
        return arguments

    def _newest_user(self) -> tuple[str, str]:
        now = self._renewed()
        return now.username or "", now.password or ""


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connection_settings(properties: Mapping[str, str], *, client_id: str, where: str) -> ConnectionSettings:
    """Return the settings in the keys of a Java client, others are ignored; reads key stores. The caller handles
    ``client.id`` in ``properties``. ``where`` is the owner of the settings for messages, such as ``cluster us``. Raises
    ConfigError if a key is missing, invalid or contradicts another, or the library for a mechanism is missing."""
    # Java trims every value, passwords included.
    plain = {key: trim(str(value)) for key, value in properties.items()}
    made = _settings(plain, client_id, where, lambda: _tls(properties, where))
    if made.sasl_mechanism is None:
        return made

    def read(credentials: Mapping[str, str], where: str) -> ConnectionSettings:
        return _settings({**plain, **credentials}, client_id, where, lambda: None)

    credentials = {key: value for key, value in properties.items() if key.startswith("sasl.") or key == _BOOTSTRAP}
    return replace(made, files=renewal.watch(credentials, where, read))


def _settings(
    properties: Mapping[str, str], client_id: str, where: str, tls: Callable[[], TlsSettings | None]
) -> ConnectionSettings:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise ConfigError(
            f"{where}: security.protocol is '{protocol}'; it can be {', '.join(SECURITY_PROTOCOLS)}",
            "security.protocol",
        )
    _refuse_unsupported(properties, protocol, where)
    sasl = _sasl(properties, where) if protocol.startswith("SASL") else {}
    return ConnectionSettings(
        bootstrap=parse_bootstrap(properties.get(_BOOTSTRAP), where),
        client_id=client_id,
        security_protocol=protocol,
        tls=tls() if protocol.endswith("SSL") else None,
        request_timeout_ms=_milliseconds(properties, "request.timeout.ms", 40_000, where),
        connections_max_idle_ms=_milliseconds(properties, "connections.max.idle.ms", 540_000, where),
        send_buffer_bytes=_buffer_bytes(properties, "send.buffer.bytes", where),
        receive_buffer_bytes=_buffer_bytes(properties, "receive.buffer.bytes", where),
        **sasl,
    )


def _refuse_unsupported(properties: Mapping[str, str], protocol: str, where: str) -> None:
    for key in sorted(REFUSED_SECURITY & properties.keys()):
        is_used = protocol.startswith("SASL") if key.startswith("sasl.") else protocol.endswith("SSL")
        value, default = properties[key], str(SECURITY.settings[key].default)
        if not is_used or value.lower() in ("", default.lower()) or value in _DEFAULTS:
            continue
        # A source of tokens does the work of its mechanism's handler: each Java client of MSK has the two settings.
        if key != "sasl.client.callback.handler.class" or source_settings(properties, {}) is None:
            raise ConfigError(
                f"{where}: {key} is not supported; docs/security.md has the ways to log in. Remove it", key
            )
    for key in ("sasl.login.callback.handler.class", "sasl.oauthbearer.jwt.retriever.class"):
        name = properties.get(key, "") if protocol.startswith("SASL") else ""
        if name and name.rpartition(".")[2] not in _LOGINS and not is_source(name):
            raise ConfigError(
                f"{where}: {key} is {name}, which is not installed. Remove it, or install a package that offers it by "
                "the entry point heliograph.token_sources",
                key,
            )


async def open_stores(properties: Mapping[str, str]) -> None:
    """Open the key stores and trust stores that ``properties`` name under any prefix, so that
    :func:`connection_settings` does not block the event loop for a tenth of a second. Raises nothing."""
    if any(_STORE.search(key) for key in properties):
        await asyncio.to_thread(_open_stores, properties)


def _open_stores(properties: Mapping[str, str]) -> None:
    from connect.kafka.security.tls_stores import open_stores

    open_stores(properties)


def parse_bootstrap(value: str | None, where: str) -> tuple[tuple[str, int], ...]:
    """Return the addresses of ``bootstrap.servers`` without duplicates, as Kafka's ``ClientUtils`` parses them."""
    if value is None or not value.strip():
        raise ConfigError(
            f"{where}: {_BOOTSTRAP} is missing; set it to host:port, or a comma-separated list", _BOOTSTRAP
        )
    addresses: dict[tuple[str, int], None] = {}
    for part in value.split(","):
        match = _HOST_PORT.fullmatch(part.strip())
        if match is None or not match.group(1) or not 0 < int(match.group(2)) < 65536:
            raise ConfigError(f"{where}: '{part.strip()}' in {_BOOTSTRAP} is not host:port", _BOOTSTRAP)
        addresses[match.group(1), int(match.group(2))] = None
    return tuple(addresses)


def _milliseconds(properties: Mapping[str, str], key: str, default: int, where: str) -> int:
    return _number(properties, key, default, 0, f"{where}: {key}", "a number of milliseconds")


def _buffer_bytes(properties: Mapping[str, str], key: str, where: str) -> int | None:
    expected = "a number of bytes, or -1 for the system's default"
    value = _number(properties, key, -1, -1, f"{where}: {key}", expected)
    return value if value > 0 else None


def _number(properties: Mapping[str, str], key: str, default: int, least: int, what: str, expected: str) -> int:
    text = properties.get(key, str(default))
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"{what} is '{text}', not {expected}", key)
    return value


def _tls(properties: Mapping[str, str], where: str) -> TlsSettings:
    # Imported late, because opening stores needs libraries that take a quarter of a second to load.
    from connect.kafka.security.tls_stores import tls_settings

    return tls_settings(properties, where)


def _sasl(properties: Mapping[str, str], where: str) -> dict[str, Any]:
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism == "OAUTHBEARER" or mechanism not in SASL_MECHANISMS:
        # Looked for among installed packages, which takes a few milliseconds.
        options = {} if _JAAS not in properties else _jaas_options(properties, mechanism, where)
        source = source_settings(properties, options)
        if source is not None:
            return {"sasl_mechanism": "OAUTHBEARER", "oauth": source}
    if mechanism not in SASL_MECHANISMS:
        known = ", ".join(SASL_MECHANISMS)
        raise ConfigError(f"{where}: sasl.mechanism '{mechanism}' is unknown; it can be {known}", "sasl.mechanism")
    options = _jaas_options(properties, mechanism, where)
    if mechanism == "GSSAPI":
        return {"sasl_mechanism": mechanism, "kerberos_service_name": _kerberos_service(properties, options, where)}
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "oauth": oauth_settings(properties, options, where)}
    if options.get("tokenauth", "false").lower() == "true":
        raise ConfigError(f"{where}: tokenauth in {_JAAS} (delegation tokens) is not supported yet", _JAAS)
    for option in ("username", "password"):
        if option not in options:
            raise ConfigError(f"{where}: {_JAAS} has no {option} for {mechanism}", _JAAS)
    return {"sasl_mechanism": mechanism, "username": options["username"], "password": options["password"]}


def _jaas_options(properties: Mapping[str, str], mechanism: str, where: str) -> dict[str, str]:
    line = properties.get(_JAAS)
    if line is None:
        if mechanism == "GSSAPI":
            return {}
        raise ConfigError(f"{where}: {_JAAS} is missing for sasl.mechanism {mechanism}", _JAAS)
    try:
        return parse_jaas(line).options
    except JaasError as error:
        raise ConfigError(f"{where}: {_JAAS} {error}", _JAAS) from None


def _kerberos_service(properties: Mapping[str, str], options: Mapping[str, str], where: str) -> str:
    """Return the service from either key that Java reads. Tickets come from the machine's credential cache or
    ``KRB5_CLIENT_KTNAME``."""
    service = properties.get("sasl.kerberos.service.name") or options.get("serviceName")
    if service is None:
        raise ConfigError(
            f"{where}: sasl.kerberos.service.name is missing for sasl.mechanism GSSAPI", "sasl.kerberos.service.name"
        )
    if find_spec("gssapi") is None:
        raise ConfigError(
            f"{where}: sasl.mechanism GSSAPI needs the Python package gssapi, which is not installed", "sasl.mechanism"
        )
    return service
