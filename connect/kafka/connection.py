"""One connection to one broker: opened by aiokafka, read by a buffered protocol of ours, many requests in flight.

aiokafka opens the socket, negotiates versions and authenticates; then its transport is given to
``BrokerProtocol``, because a stream reader costs about ten times the CPU a byte.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import aiokafka.errors
from aiokafka.conn import AIOKafkaConnection, create_conn

from connect.core.errors import ClusterUnreachable, PermanentError, RetriableError, SecurityError
from connect.kafka.framing import BrokerProtocol
from connect.kafka.framing import ConnectionLost as ConnectionLost
from connect.kafka.settings import ConnectionSettings, format_address

DEFAULT_MAX_FRAME_BYTES: Final = 200 * 1024 * 1024
_CLOSE_TIMEOUT_S: Final = 1.0
#: Above this many unsent bytes the transport tells writers to pause.
_WRITE_HIGH_WATER_BYTES: Final = 1024 * 1024
#: Java's ``socket.connection.setup.timeout.ms``: a frozen broker's kernel still accepts, so opening is bounded.
_OPEN_TIMEOUT_MS: Final = 10_000
_REQUEST_FRONT: Final = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_API_VERSIONS: Final = 18
_CORRELATION_IDS: Final = 2**31


class RequestTimedOut(RetriableError):
    """No answer in time. The connection is closed with it, since answers come in order."""


class UnsupportedVersion(PermanentError):
    """The broker and this client have no version of an API in common."""


class Connection:
    """A broker's connection as the rest of the program sees it; made by ``open``."""

    def __init__(
        self,
        settings: ConnectionSettings,
        protocol: BrokerProtocol,
        transport: asyncio.WriteTransport,
        versions: Mapping[int, tuple[int, int]],
        opened_by: object,
    ) -> None:
        self.versions = versions
        self.address = protocol.address
        #: Kafka's ``request.timeout.ms``; ``call`` keeps it by itself, who uses ``send`` does.
        self.request_timeout_ms = settings.request_timeout_ms
        self._protocol = protocol
        self._transport = transport
        client_id = settings.client_id.encode()
        self._client_id = struct.pack(">h", len(client_id)) + client_id
        self._correlation_id = 0
        self._muted_until_s = 0.0
        # A stream writer that is collected closes its transport, so what opened ours is kept as long as we are.
        self._opened_by = opened_by

    @classmethod
    async def open(
        cls,
        settings: ConnectionSettings,
        host: str,
        port: int,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> Self:
        """Connect, negotiate and authenticate.

        Raises:
            ClusterUnreachable: nothing (that speaks Kafka) answers at ``host:port`` in time.
            SecurityError: TLS or SASL failed.
        """
        opened = await _open_with_aiokafka(settings, host, port)
        writer, reader, versions = opened._writer, opened._reader, opened._versions
        transport: asyncio.WriteTransport = writer.transport
        protocol = BrokerProtocol(format_address(host, port), transport, max_frame_bytes)
        # No await between here and feed(), so no byte can go to the old reader unnoticed.
        transport.set_protocol(protocol)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        opened._read_task.cancel()
        opened._writer = opened._reader = None  # its close() and __del__ see nothing left to close
        if reader.at_eof() or reader.exception() is not None or transport.is_closing():
            protocol.drop("the broker closed it")
        protocol.feed(bytes(reader._buffer))
        return cls(settings, protocol, transport, versions, (opened, writer, reader))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._protocol.pending} in flight"
        return f"<Connection {self.address} {state}>"

    @property
    def closed(self) -> bool:
        return self._protocol.is_lost

    @property
    def in_flight(self) -> int:
        """Requests without an answer yet."""
        return self._protocol.pending

    @property
    def write_paused(self) -> bool:
        """Whether the socket takes less than is written; ``drained`` waits for it."""
        return not self._protocol.writable.is_set()

    @property
    def idle_s(self) -> float:
        """Seconds since the last answer, 0 while one is awaited."""
        if self._protocol.pending:
            return 0.0
        return asyncio.get_running_loop().time() - self._protocol.last_answer_s

    async def drained(self) -> None:
        """Wait until the socket takes more. Raises ConnectionLost where it never will."""
        await self._protocol.writable.wait()
        if self._protocol.is_lost:
            raise self._protocol.error()

    def mute(self, throttle_time_ms: int) -> None:
        """Hold the next calls for as long as the broker asked (KIP-219)."""
        if throttle_time_ms > 0:
            until_s = asyncio.get_running_loop().time() + throttle_time_ms / 1000
            self._muted_until_s = max(self._muted_until_s, until_s)

    async def unmuted(self) -> None:
        """Wait out a throttle. ``call`` does this by itself; who uses ``send`` calls it before."""
        waited_until_s = 0.0
        while waited_until_s < self._muted_until_s:  # which may move on meanwhile
            waited_until_s = self._muted_until_s
            await asyncio.sleep(waited_until_s - asyncio.get_running_loop().time())

    def version_of(self, request: Any, at_most: int | None = None) -> int:
        """The highest version of a request (class or instance of kafka.protocol) that both sides know.

        Raises:
            UnsupportedVersion: there is none, or none up to ``at_most``.
        """
        ours = request.max_version if at_most is None else min(request.max_version, at_most)
        lowest, highest = self.versions.get(request.API_KEY, (0, -1))
        version: int = min(ours, highest)
        if version < max(lowest, request.min_version):
            offered = f"offers {lowest} to {highest}" if highest >= 0 else "does not offer it"
            raise UnsupportedVersion(
                f"{self.address}: no common version of {request.name}: this client knows up to {ours}, "
                f"the broker {offered}; use a broker of another version"
            )
        return version

    async def call(
        self,
        request: Any,
        version: int | None = None,
        *,
        at_most: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send a request of kafka.protocol and return its decoded answer.

        Args:
            version: exactly this one; None takes the highest both know, up to ``at_most``.
            timeout_ms: how long to wait for the answer; None takes the connection's ``request.timeout.ms``.

        Raises:
            ConnectionLost, RequestTimedOut: try again, on another connection.
            UnsupportedVersion: see ``version_of``.
        """
        if version is None:
            version = self.version_of(request, at_most)
        body = request.encode(version=version)
        request.with_header()
        response_class = request.header.get_response_class()
        await self.unmuted()
        timeout_s = (self.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.send(
                    request.API_KEY,
                    version,
                    [body],
                    request.flexible_version_q(version),
                )
        except TimeoutError as error:
            self._protocol.drop(f"no answer to {request.name} within {timeout_s:g} s")
            raise RequestTimedOut(f"{self.address} did not answer {request.name} within {timeout_s:g} s") from error
        response = response_class.decode(answer)
        self.mute(getattr(response, "throttle_time_ms", 0) or 0)
        return response

    def send(
        self,
        api_key: int,
        version: int,
        buffers: Sequence[bytes | bytearray | memoryview],
        flexible: bool = True,
    ) -> asyncio.Future[memoryview]:
        """Write a request whose body is ``buffers`` and return its answer to come: the body behind the header.

        Requests may be sent before earlier ones are answered. ``flexible``: the version has tagged fields (KIP-482).
        The future fails with ConnectionLost; acks=0 requests, which are never answered, have no place here.
        """
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        # ApiVersions is answered with the oldest header, so that any client can read it (KIP-511).
        answer = self._protocol.expect(self._correlation_id, flexible and api_key != _API_VERSIONS)
        if not self._protocol.is_lost:
            tail = self._client_id + b"\0" if flexible else self._client_id
            size = _REQUEST_FRONT.size - 4 + len(tail) + sum(map(len, buffers))
            front = _REQUEST_FRONT.pack(size, api_key, version, self._correlation_id)
            self._transport.writelines([front + tail, *buffers])
        return answer

    async def close(self) -> None:
        """Cut the connection; what was written and not yet sent is dropped, what is pending fails."""
        self._protocol.drop("it was closed on this side")
        # A transport that was lost before it was ours tells nobody any more.
        await asyncio.wait({self._protocol.lost}, timeout=_CLOSE_TIMEOUT_S)


async def _open_with_aiokafka(settings: ConnectionSettings, host: str, port: int) -> AIOKafkaConnection:
    # max_idle_ms: its timer would close the transport under us; Cluster replaces idle connections instead.
    arguments = {**settings.create_conn_arguments(), "max_idle_ms": None}
    timeout_ms = min(settings.request_timeout_ms, _OPEN_TIMEOUT_MS)
    where = format_address(host, port)
    protocol = settings.security_protocol
    is_it_spoken = f"is security.protocol {protocol} what the listener speaks?"
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await create_conn(host, port, **arguments)
    except TimeoutError as error:
        raise ClusterUnreachable(f"{where} did not answer within {timeout_ms / 1000:g} s") from error
    except ssl.SSLError as error:
        raise _tls_failed(where, error) from error
    except aiokafka.errors.UnsupportedSaslMechanismError as error:
        raise SecurityError(
            f"{where} does not offer sasl.mechanism {settings.sasl_mechanism}; choose one that the listener has"
        ) from error
    except (
        aiokafka.errors.SaslAuthenticationFailed,
        aiokafka.errors.IllegalSaslStateError,
        ValueError,  # aiokafka's SCRAM: the server did not prove that it knows the password
        KeyError,  # ... or answered with an error attribute
    ) as error:
        raise SecurityError(
            f"{where} and this client could not authenticate with {protocol} {settings.sasl_mechanism}: "
            f"{_one_line(error)}; check sasl.mechanism and sasl.jaas.config"
        ) from error
    except ConnectionResetError as error:
        raise ClusterUnreachable(f"{where} broke the connection off; {is_it_spoken}") from error
    except OSError as error:
        raise ClusterUnreachable(f"{where} is not reachable: {_one_line(error)}") from error
    except aiokafka.errors.KafkaError as error:
        if isinstance(error.__cause__, ssl.SSLError):  # with TLS 1.3 a refused client certificate shows up this late
            raise _tls_failed(where, error.__cause__) from error
        raise ClusterUnreachable(f"{where} broke the connection off: {_one_line(error)}; {is_it_spoken}") from error


def _tls_failed(where: str, error: ssl.SSLError) -> SecurityError:
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    return SecurityError(
        f"TLS with {where} failed: {reason}; check that the listener speaks TLS, and ssl.truststore.*, "
        "ssl.keystore.* and ssl.endpoint.identification.algorithm"
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
