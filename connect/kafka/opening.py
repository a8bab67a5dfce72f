"""A connection opened, versions negotiated and SASL done by aiokafka; what went wrong with that as one line each."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Final

import aiokafka.errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslAuthenticateRequest

from connect.core.errors import ClusterUnreachable, SecurityError
from connect.kafka.settings import ConnectionSettings, format_address
from connect.kafka.tls import TlsSettings

#: Java's ``socket.connection.setup.timeout.ms``: a frozen broker's kernel still accepts, so opening is bounded.
_OPEN_TIMEOUT_MS: Final = 10_000
#: OpenSSL's ``X509_V_ERR_*``.
_HAS_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_NAME_MISMATCH: Final = frozenset({62, 63, 64})  # host name, mail address, IP address
#: What Java's brokers say of a client's certificate, or of its absence.
_ABOUT_OUR_CERTIFICATE: Final = (
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_UNKNOWN_CA",
    "ALERT_ACCESS_DENIED",
)
_ABOUT_VERSIONS: Final = ("PROTOCOL_VERSION", "HANDSHAKE_FAILURE", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS")
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


class OpeningConnection(AIOKafkaConnection):  # type: ignore[misc]  # the library ships no marker for its types
    """aiokafka's connection, which does not keep for how long the broker trusts what was proven."""

    session_lifetime_ms = 0

    def send(self, request: Any, expect_response: bool = True) -> Any:
        answer = super().send(request, expect_response)
        return self._noted(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    async def _noted(self, answer: Awaitable[Any]) -> Any:
        answered = await answer
        self.session_lifetime_ms = getattr(answered, "session_lifetime_ms", 0)
        return answered

    def close(self, reason: Any = None, exc: Any = None) -> Any:
        # Who was refused needs no farewell in TLS, which would go on after whoever waits for the refusal has left.
        if self._writer is not None:
            self._writer.transport.abort()
        return super().close(reason, exc)

    def authenticator(self) -> Any:
        """One side of a new SASL exchange, as aiokafka makes it to open a connection."""
        if self._sasl_mechanism == "GSSAPI":
            return self.authenticator_gssapi()
        if self._sasl_mechanism == "OAUTHBEARER":
            return self.authenticator_oauth()
        return self.authenticator_plain() if self._sasl_mechanism == "PLAIN" else self.authenticator_scram()


async def open_with_aiokafka(settings: ConnectionSettings, host: str, port: int) -> OpeningConnection:
    """A connection on which requests may be sent.

    Raises:
        ClusterUnreachable: nothing (that speaks Kafka) answers at ``host:port`` in time.
        SecurityError: TLS or SASL failed.
    """
    # max_idle_ms: its timer would close the transport under us; Cluster replaces idle connections instead.
    arguments = {**settings.create_conn_arguments(), "max_idle_ms": None}
    timeout_ms = min(settings.request_timeout_ms, _OPEN_TIMEOUT_MS)
    where = format_address(host, port)
    is_it_spoken = f"is security.protocol {settings.security_protocol} what the listener speaks?"
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            opened = OpeningConnection(host, port, **arguments)
            await opened.connect()
            return opened
    except TimeoutError as error:
        raise ClusterUnreachable(f"{where} did not answer within {timeout_ms / 1000:g} s", (where,)) from error
    except ssl.SSLError as error:
        raise _tls_failed(where, settings, error) from error
    except (aiokafka.errors.SaslAuthenticationFailed, aiokafka.errors.KafkaError, ValueError, KeyError) as error:
        # With TLS 1.3 a refused client certificate shows up this late.
        if isinstance(error.__cause__, ssl.SSLError):
            raise _tls_failed(where, settings, error.__cause__) from error
        refused = _sasl_failed(where, settings, error)
        if refused is not None:
            raise refused from error
        raise ClusterUnreachable(
            f"{where} broke the connection off: {one_line(error)}; {is_it_spoken}", (where,)
        ) from error
    except ConnectionResetError as error:
        raise ClusterUnreachable(f"{where} broke the connection off; {is_it_spoken}", (where,)) from error
    except OSError as error:
        raise ClusterUnreachable(f"{where} is not reachable: {one_line(error)}", (where,)) from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _sasl_failed(where: str, settings: ConnectionSettings, error: Exception) -> SecurityError | None:
    if isinstance(error, aiokafka.errors.UnsupportedSaslMechanismError):
        return SecurityError(
            f"{where} does not offer sasl.mechanism {settings.sasl_mechanism}; choose one that the listener has"
        )
    if settings.sasl_mechanism is None:
        return None
    failed = f"{where} and this client could not authenticate with {settings.security_protocol}"
    failed += f" {settings.sasl_mechanism}"
    if isinstance(error, aiokafka.errors.IllegalSaslStateError):
        return SecurityError(
            f"{failed}: the listener wants no SASL; set security.protocol to what it speaks, or dial another one"
        )
    # ValueError: SCRAM's server did not prove that it knows the password. KeyError: it answered with an error.
    if isinstance(error, (aiokafka.errors.SaslAuthenticationFailed, ValueError, KeyError)):
        return SecurityError(f"{failed}: {one_line(error)}; check sasl.mechanism and sasl.jaas.config")
    return None


def _tls_failed(where: str, settings: ConnectionSettings, error: ssl.SSLError) -> SecurityError:
    host = where.rpartition(":")[0]
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    return SecurityError(f"TLS with {where} failed: {reason}; {_advice(host, settings.tls, error)}")


def _advice(host: str, tls: TlsSettings | None, error: ssl.SSLError) -> str:
    """Whose fault it is, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_HAS_EXPIRED, _NOT_YET_VALID):
            return "a certificate that the broker presents is not valid today; renew it at the broker"
        if error.verify_code in _NAME_MISMATCH:
            return (
                f"the broker's certificate does not name {host}; dial a name that it bears, or leave "
                "ssl.endpoint.identification.algorithm empty for no check"
            )
        return "nobody whom we trust has signed the broker's certificate; check ssl.truststore.*"
    reason = error.reason or ""
    if any(word in reason for word in _ABOUT_OUR_CERTIFICATE):
        return _about_ours(tls)
    if any(word in reason for word in _NO_TLS):
        return "the listener does not speak TLS; check security.protocol and the port"
    if any(word in reason for word in _ABOUT_VERSIONS):
        return "broker and client have no version of TLS or cipher in common; check ssl.enabled.protocols"
    return (
        "check that the listener speaks TLS, and ssl.truststore.*, ssl.keystore.* and "
        "ssl.endpoint.identification.algorithm"
    )


def _about_ours(tls: TlsSettings | None) -> str:
    if tls is None or tls.certificate_chain_pem is None:
        return "the broker wants a certificate of ours; set ssl.keystore.*"
    ended = tls.certificate_ends()
    if ended < datetime.now(UTC):
        return f"our certificate in ssl.keystore.* has expired ({ended:%Y-%m-%d %H:%M} UTC); renew it"
    return "the broker does not accept our certificate in ssl.keystore.*; use one that its trust store knows"
