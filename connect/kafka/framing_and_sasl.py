"""Opens and authenticates a connection to a broker, and splits its byte stream into responses.

* Framing is the hot part of a connection. The body of a response is a writable view of a buffer that is never reused,
  so the caller may keep it and change it in place.
* aiokafka opens the connection, negotiates versions and authenticates; each of its errors becomes one line.
* The SASL session is renewed before it expires (KIP-368), because a broker with ``connections.max.reauth.ms`` closes a
  connection on the first request that it reads after the session has ended. The exchange runs on the connection itself:
  requests already sent are answered first, later requests wait, and their order does not change.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import aiokafka.errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslAuthenticateRequest as AiokafkaSaslAuthenticateRequest
from kafka.errors import for_code
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from connect.core.errors import ClusterUnreachable, NoAnswer, RetriableError, SecurityError
from connect.kafka.security.connection_settings import ConnectionSettings, format_address
from connect.kafka.security.tls import TlsSettings
from connect.wire.fetch_produce import read_tags

_SCRATCH_BYTES: Final = 64 * 1024
_SIZE: Final = struct.Struct(">i")


class ConnectionLost(NoAnswer):
    """The connection was lost before the response arrived; it is unknown whether the request was carried out."""


class _Pending(NamedTuple):
    correlation_id: int
    tagged_header: bool
    answer: asyncio.Future[memoryview]


class BrokerProtocol(asyncio.BufferedProtocol):
    """Splits the byte stream into frames and passes each response to its waiting request. Small frames share reads
    through one scratch buffer. A frame that is incomplete there gets its own buffer, which receives the rest
    directly."""

    def __init__(self, address: str, transport: asyncio.WriteTransport, max_frame_bytes: int) -> None:
        self.address = address
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        self.last_answer_s = self.last_byte_s = self.head_since_s = asyncio.get_running_loop().time()
        self.has_answered = False
        #: How long the last response took to begin to arrive, counted from when its request was first in line.
        self.waited_s = 0.0
        self._began_s = 0.0
        self.is_write_paused = False
        self._transport = transport
        self._max_frame_bytes = max_frame_bytes
        self._pending: deque[_Pending] = deque()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._reason = ""

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def is_receiving(self) -> bool:
        """Whether part of a response has arrived."""
        return self._frame is not None

    def expect(self, correlation_id: int, tagged_header: bool, answer: asyncio.Future[memoryview]) -> None:
        """Register ``answer`` for the next response; responses arrive in the order of their requests."""
        if self.is_lost:
            self._fail(answer)
        else:
            if not self._pending:
                self.head_since_s = asyncio.get_running_loop().time()
            self._pending.append(_Pending(correlation_id, tagged_header, answer))

    def drop(self, reason: str) -> None:
        """Close the connection, drop unsent bytes and fail pending requests with ``reason``."""
        if not self.is_lost:
            self._lose(reason)
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._scratch[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_lost:
            return
        self.last_byte_s = asyncio.get_running_loop().time()
        if self._frame is None:
            self._filled += nbytes
            self._cut_scratch()
            return
        self._frame_filled += nbytes
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            self._answered(frame)

    def feed(self, data: bytes | bytearray) -> None:
        """Accept bytes that arrived before the transport was taken over."""
        remaining = memoryview(data)
        while remaining:
            buffer = self.get_buffer(len(remaining))
            step = min(len(buffer), len(remaining))
            buffer[:step] = remaining[:step]
            self.buffer_updated(step)
            remaining = remaining[step:]

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False

    def eof_received(self) -> None:
        self._lose("the broker closed it")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc else "it was closed")
        if not self.lost.done():
            self.lost.set_result(None)

    def _cut_scratch(self) -> None:
        at, end = 0, self._filled
        while end - at >= 4 and not self.is_lost:
            size = _SIZE.unpack_from(self._scratch, at)[0]
            if not 4 <= size <= self._max_frame_bytes:
                self.drop(f"it sent a response of {size} bytes, which no Kafka listener does (is the port right?)")
                return
            at += 4
            self._began_s = self.last_byte_s
            frame = memoryview(bytearray(size))
            have = min(size, end - at)
            frame[:have] = self._scratch[at : at + have]
            at += have
            if have < size:
                self._frame, self._frame_filled = frame, have
            else:
                self._answered(frame)
        self._scratch[: end - at] = self._scratch[at:end]
        self._filled = end - at

    def _answered(self, frame: memoryview) -> None:
        correlation_id = _SIZE.unpack_from(frame, 0)[0]
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self.drop(f"it answered request {correlation_id}, which is not the next one")
            return
        try:
            body = frame[read_tags(frame, 4)[1] if self._pending[0].tagged_header else 4 :]
        except (IndexError, ValueError):
            self.drop(f"it sent a response of {len(frame)} bytes whose header cannot be read")
            return
        answer = self._pending.popleft().answer
        self.waited_s = max(0.0, self._began_s - self.head_since_s)
        self.last_answer_s = self.head_since_s = asyncio.get_running_loop().time()
        self.has_answered = True
        if not answer.done():  # the caller may have stopped waiting
            answer.set_result(body)

    def _lose(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._reason = reason
        self.is_write_paused = False
        pending, self._pending = self._pending, deque()
        for _, _, answer in pending:
            self._fail(answer)

    def error(self) -> ConnectionLost:
        return ConnectionLost(f"connection to {self.address} lost: {self._reason}", (self.address,))

    def _fail(self, answer: asyncio.Future[memoryview]) -> None:
        if not answer.done():
            answer.set_exception(self.error())
            answer.exception()  # marks it as retrieved: a pipelining caller may read only the first failure


#: Java's ``socket.connection.setup.timeout.ms``. Limits opening, because a frozen broker's kernel still accepts.
_OPEN_TIMEOUT_MS: Final = 10_000
#: OpenSSL's ``X509_V_ERR_*``.
_HAS_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_NAME_MISMATCH: Final = frozenset({62, 63, 64})  # host name, mail address, IP address
#: TLS alerts of Java's brokers about a missing or rejected client certificate.
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
    """aiokafka's connection, extended to keep the lifetime of the SASL session."""

    session_lifetime_ms = 0

    def send(self, request: Any, expect_response: bool = True) -> Any:
        answer = super().send(request, expect_response)
        return self._noted(answer) if isinstance(request, AiokafkaSaslAuthenticateRequest) else answer

    async def _noted(self, answer: Awaitable[Any]) -> Any:
        answered = await answer
        self.session_lifetime_ms = getattr(answered, "session_lifetime_ms", 0)
        return answered

    def close(self, reason: Any = None, exc: Any = None) -> Any:
        # A rejected client sends no TLS close_notify, because that would outlast the caller that waits for the error.
        if self._writer is not None:
            self._writer.transport.abort()
        return super().close(reason, exc)

    def authenticator(self) -> Any:
        """Return the client side of a new SASL exchange, as aiokafka creates it for opening a connection."""
        if self._sasl_mechanism == "GSSAPI":
            return self.authenticator_gssapi()
        if self._sasl_mechanism == "OAUTHBEARER":
            return self.authenticator_oauth()
        return self.authenticator_plain() if self._sasl_mechanism == "PLAIN" else self.authenticator_scram()


async def open_with_aiokafka(settings: ConnectionSettings, host: str, port: int) -> OpeningConnection:
    """Return a connection that is ready for requests. Raises ClusterUnreachable if no Kafka listener answers at
    ``host:port`` in time, and SecurityError if TLS or SASL failed."""
    if settings.tls is not None:
        await asyncio.to_thread(settings.tls.ssl_context)  # because the machine's certificates take 20 ms to load
    # max_idle_ms: its timer would close the transport; Cluster replaces idle connections instead.
    arguments = {**settings.create_conn_arguments(), "max_idle_ms": None}
    timeout_ms = min(settings.request_timeout_ms, _OPEN_TIMEOUT_MS)
    where = format_address(host, port)
    is_it_spoken = f"check that the listener uses security.protocol {settings.security_protocol}"
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
        # With TLS 1.3 the rejection of a client certificate arrives this late.
        if isinstance(error.__cause__, ssl.SSLError):
            raise _tls_failed(where, settings, error.__cause__) from error
        refused = _sasl_failed(where, settings, error)
        if refused is not None:
            raise refused from error
        raise ClusterUnreachable(
            f"{where} closed the connection: {one_line(error)}; {is_it_spoken}", (where,)
        ) from error
    except ConnectionResetError as error:
        raise ClusterUnreachable(f"{where} closed the connection; {is_it_spoken}", (where,)) from error
    except OSError as error:
        raise ClusterUnreachable(f"{where} is not reachable: {one_line(error)}", (where,)) from error
    except Exception as error:
        # Not imported, because the package may not be installed.
        if not type(error).__module__.startswith("gssapi."):
            raise
        raise SecurityError(
            f"{where}: authentication failed with {settings.security_protocol} GSSAPI: {one_line(error)}; check the "
            "credential cache or KRB5_CLIENT_KTNAME, and sasl.kerberos.service.name"
        ) from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _sasl_failed(where: str, settings: ConnectionSettings, error: Exception) -> SecurityError | None:
    if isinstance(error, aiokafka.errors.UnsupportedSaslMechanismError):
        return SecurityError(
            f"{where} does not offer sasl.mechanism {settings.sasl_mechanism}; choose one that the listener offers"
        )
    if settings.sasl_mechanism is None:
        return None
    failed = f"{where}: authentication failed with {settings.security_protocol} {settings.sasl_mechanism}"
    if isinstance(error, aiokafka.errors.IllegalSaslStateError):
        return SecurityError(
            f"{failed}: the listener does not use SASL; change security.protocol, or connect to another listener"
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
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_HAS_EXPIRED, _NOT_YET_VALID):
            return "a certificate of the broker is not valid today; renew it on the broker"
        if error.verify_code in _NAME_MISMATCH:
            return (
                f"the broker's certificate does not name {host}; connect to a name in the certificate, or set "
                "ssl.endpoint.identification.algorithm to an empty value to skip this check"
            )
        return "no trusted CA has signed the broker's certificate; check ssl.truststore.*"
    reason = error.reason or ""
    if any(word in reason for word in _ABOUT_OUR_CERTIFICATE):
        return _about_ours(tls)
    if any(word in reason for word in _NO_TLS):
        return "the listener does not use TLS; check security.protocol and the port"
    if any(word in reason for word in _ABOUT_VERSIONS):
        return "broker and client share no TLS version or cipher; check ssl.enabled.protocols"
    return (
        "check that the listener uses TLS, and ssl.truststore.*, ssl.keystore.* and "
        "ssl.endpoint.identification.algorithm"
    )


def _about_ours(tls: TlsSettings | None) -> str:
    if tls is None or tls.certificate_chain_pem is None:
        return "the broker requires a client certificate; set ssl.keystore.*"
    ended = tls.certificate_ends()
    if ended < datetime.now(UTC):
        return f"the client certificate in ssl.keystore.* has expired ({ended:%Y-%m-%d %H:%M} UTC); renew it"
    return "the broker rejects the client certificate in ssl.keystore.*; use one that its trust store accepts"


_HANDSHAKE_VERSION: Final = 1
#: From this version of SaslAuthenticate, a broker returns the lifetime of the session.
_LIFETIME_FROM: Final = 1
#: Java's share of a session's lifetime, random so that connections do not renew at once (``SaslClientAuthenticator``).
_SHARE: Final = (0.85, 0.95)
#: Requests sent before the end must also be read before it, after a long poll or many batches.
_MARGIN_MS: Final = 10_000
#: A broker accepts no second exchange within a second (``KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``).
_LEAST_MS: Final = 1_100

#: Sends a request ahead of the waiting ones; returns its decoded response.
Exchange = Callable[[Any, int], Awaitable[Any]]


class ReauthenticationFailed(RetriableError):
    """The broker rejected credentials that it had accepted before; a new connection shows why."""


class Session:
    """The SASL session of a connection: when to re-authenticate and how. ``now_s`` is the loop's time."""

    def __init__(self, opened: OpeningConnection, mechanism: str | None, authenticate_at_most: int) -> None:
        self._opened = opened
        self._mechanism = mechanism
        self._version = min(authenticate_at_most, SaslAuthenticateRequest.max_version)
        self._due_s: float | None = None

    def begin(self, now_s: float, lifetime_ms: int) -> None:
        """Start a session of ``lifetime_ms``; 0 means no limit."""
        self._due_s = now_s + due_after_ms(lifetime_ms, random.uniform(*_SHARE)) / 1000 if lifetime_ms > 0 else None

    def is_due(self, now_s: float) -> bool:
        return self._due_s is not None and now_s >= self._due_s

    async def prove(self, exchange: Exchange) -> int:
        """Re-authenticate and return the lifetime of the new session. Raises ReauthenticationFailed if the broker
        rejected this client, or did not prove its identity."""
        try:
            return await self._prove(exchange)
        except (SecurityError, aiokafka.errors.KafkaError, ValueError, KeyError, AssertionError) as error:
            raise ReauthenticationFailed(
                f"re-authentication with {self._mechanism} failed: {one_line(error)}"
            ) from error

    async def _prove(self, exchange: Exchange) -> int:
        handshake = await exchange(SaslHandshakeRequest(mechanism=self._mechanism), _HANDSHAKE_VERSION)
        _check(handshake.error_code, "SaslHandshake")
        authenticator = self._opened.authenticator()
        lifetime_ms, proof = 0, None
        while (step := await authenticator.step(proof)) is not None:
            answer = await exchange(SaslAuthenticateRequest(auth_bytes=step[0]), self._version)
            _check(answer.error_code, answer.error_message or "SaslAuthenticate")
            proof = answer.auth_bytes
            lifetime_ms = answer.session_lifetime_ms if self._version >= _LIFETIME_FROM else 0
        return lifetime_ms


def due_after_ms(lifetime_ms: int, share: float) -> float:
    """Return when to re-authenticate, in ms after the session's start: at ``share`` of its lifetime, or earlier if
    that is too late for requests in flight, but not before half of it."""
    return max(min(lifetime_ms * share, max(lifetime_ms - _MARGIN_MS, lifetime_ms / 2)), _LEAST_MS)


def _check(code: int, what: str) -> None:
    if code:
        raise SecurityError(f"{what}: {for_code(code).__name__}")
