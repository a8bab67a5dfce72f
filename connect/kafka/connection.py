"""A connection to a broker: opened by aiokafka, read by a buffered protocol, with many requests in flight.

aiokafka opens the socket, negotiates versions and authenticates. Then ``BrokerProtocol`` takes the transport over,
because a stream reader costs about ten times the CPU per byte. If the broker requires re-authentication (KIP-368), it
happens here between two requests, invisible to callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from connect.core.errors import HeliographError, NoAnswer, PermanentError
from connect.kafka.concurrency import Scope
from connect.kafka.framing_and_sasl import BrokerProtocol, OpeningConnection, Session, one_line, open_with_aiokafka
from connect.kafka.security.connection_settings import ConnectionSettings, format_address

_MOST_FRAME_BYTES: Final = 200 * 1024 * 1024
_CLOSE_TIMEOUT_S: Final = 1.0
#: How often a waiting request checks whether bytes move.
_LOOK_S: Final = 1.0
#: Larger responses are decoded in a thread: one about 10,000 partitions takes 50 ms.
_LARGE_ANSWER_BYTES: Final = 16 * 1024
#: With more unsent bytes the transport makes writers pause.
_WRITE_HIGH_WATER_BYTES: Final = 1024 * 1024
_REQUEST_FRONT: Final = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_INT: Final = struct.Struct("@i")
_API_VERSIONS: Final = 18
_SASL_AUTHENTICATE: Final = 36
_CORRELATION_IDS: Final = 2**31


class RequestTimedOut(NoAnswer):
    """No response, and no byte moved for the timeout. The connection is closed, because responses arrive in order."""


class UnsupportedVersion(PermanentError):
    """The broker and this client share no version of an API."""


class _Request(NamedTuple):
    api_key: int
    version: int
    buffers: Sequence[bytes | bytearray | memoryview]
    flexible: bool
    answer: asyncio.Future[memoryview]


class Connection:
    """A connection to a broker; created by ``open``."""

    def __init__(
        self,
        settings: ConnectionSettings,
        protocol: BrokerProtocol,
        transport: asyncio.WriteTransport,
        versions: Mapping[int, tuple[int, int]],
        opened_by: tuple[OpeningConnection, object, object],
    ) -> None:
        self.versions = versions
        self.address = protocol.address
        #: Kafka's ``request.timeout.ms``; ``call`` applies it, users of ``send`` apply it through ``answer``.
        self.request_timeout_ms = settings.request_timeout_ms
        self._protocol = protocol
        self._transport = transport
        client_id = settings.client_id.encode()
        self._client_id = struct.pack(">h", len(client_id)) + client_id
        self._correlation_id = 0
        self._muted_until_s = self._throttled_s = 0.0
        self._written_bytes = self._sent_bytes = 0
        self._sent_s = 0.0
        # A garbage-collected stream writer closes its transport, so the opener's objects live as long as this one.
        self._opened_by = opened_by
        self.reauthentications = 0
        self._session = Session(opened_by[0], settings.sasl_mechanism, versions.get(_SASL_AUTHENTICATE, (0, 0))[1])
        self._session.begin(asyncio.get_running_loop().time(), opened_by[0].session_lifetime_ms)
        self._scope = Scope(f"connection to {self.address}")
        self._reauthenticating: asyncio.Task[None] | None = None
        self._waiting: list[_Request] = []  # until a re-authentication ends

    @classmethod
    async def open(cls, settings: ConnectionSettings, host: str, port: int) -> Self:
        """Connect, negotiate and authenticate. Raises ClusterUnreachable if no Kafka listener answers at ``host:port``
        in time, and SecurityError if TLS or SASL failed."""
        opened = await open_with_aiokafka(settings, host, port)
        writer, reader, versions = opened._writer, opened._reader, opened._versions
        transport: asyncio.WriteTransport = writer.transport
        protocol = BrokerProtocol(format_address(host, port), transport, _MOST_FRAME_BYTES)
        # No await between here and feed(), so no byte can reach the old reader unnoticed.
        transport.set_protocol(protocol)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        _set_buffers(transport.get_extra_info("socket"), settings)
        opened._read_task.cancel()
        opened._writer = opened._reader = None  # so its close() and __del__ close nothing
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
        return self._protocol.pending + len(self._waiting)

    @property
    def is_receiving(self) -> bool:
        return self._protocol.is_receiving

    @property
    def waited_s(self) -> float:
        """Seconds until the last response began to arrive, counted from when its request was first in line."""
        return self._protocol.waited_s

    @property
    def write_paused(self) -> bool:
        return self._protocol.is_write_paused

    @property
    def idle_s(self) -> float:
        """Seconds since the last response; 0 while a request is in flight."""
        if self.in_flight:
            return 0.0
        return asyncio.get_running_loop().time() - self._protocol.last_answer_s

    @property
    def answered_s(self) -> float | None:
        """When the broker last answered a request, in the loop's time."""
        return self._protocol.last_answer_s if self._protocol.has_answered else None

    @property
    def stalled_s(self) -> float:
        """Seconds that the oldest unanswered request has waited without a byte moving in either direction. Sent bytes
        are noticed only when this is read, so read it about every second."""
        now_s = asyncio.get_running_loop().time()
        sent_bytes = self._written_bytes - _unsent_bytes(self._transport)
        if sent_bytes > self._sent_bytes:
            self._sent_bytes, self._sent_s = sent_bytes, now_s
        if not self._protocol.pending:
            return 0.0
        # A broker answers nothing that it gets while it delays the connection.
        since_s = max(self._protocol.head_since_s, self._protocol.last_byte_s, self._sent_s, self._muted_until_s)
        return max(now_s - since_s, 0.0)

    async def answer(self, sent: asyncio.Future[memoryview], what: str, timeout_s: float) -> memoryview:
        """Wait for the response to a request of ``send`` as long as bytes move, because a slow link is not a dead one.
        Raises ConnectionLost, after which another connection may answer, and RequestTimedOut if no byte moved for
        ``timeout_s``."""
        began_s = asyncio.get_running_loop().time()
        try:
            while not sent.done():
                waited_s = min(self.stalled_s, asyncio.get_running_loop().time() - began_s)
                if waited_s >= timeout_s:
                    self._protocol.drop(f"no answer to {what} within {timeout_s:g} s")
                    raise RequestTimedOut(
                        f"{self.address} did not answer {what} within {timeout_s:g} s", (self.address,)
                    )
                await asyncio.wait((sent,), timeout=min(timeout_s - waited_s, _LOOK_S))
            return sent.result()
        finally:
            sent.cancel()

    def mute(self, throttle_time_ms: int) -> None:
        """Delay the next calls for as long as the broker asked (KIP-219)."""
        now_s = asyncio.get_running_loop().time()
        begins_s, ends_s = max(now_s, self._muted_until_s), now_s + throttle_time_ms / 1000
        if ends_s > begins_s:
            self._throttled_s += ends_s - begins_s
            self._muted_until_s = ends_s

    @property
    def is_muted(self) -> bool:
        return asyncio.get_running_loop().time() < self._muted_until_s

    def take_throttled_ms(self) -> int:
        """Return how long the broker has delayed this connection since the last call."""
        left_s = max(self._muted_until_s - asyncio.get_running_loop().time(), 0.0)
        throttled_s, self._throttled_s = self._throttled_s - left_s, left_s
        return round(throttled_s * 1000)

    async def unmuted(self) -> None:
        """Wait until a throttle has ended. ``call`` includes this; callers of ``send`` call it first."""
        waited_until_s = 0.0
        while waited_until_s < self._muted_until_s:  # may grow in the meantime
            waited_until_s = self._muted_until_s
            await asyncio.sleep(waited_until_s - asyncio.get_running_loop().time())

    def version_of(self, request: Any, at_most: int | None = None) -> int:
        """Return the highest version of a request (class or instance of kafka.protocol) that both sides support. Raises
        UnsupportedVersion if there is none, or none up to ``at_most``."""
        ours = request.max_version if at_most is None else min(request.max_version, at_most)
        lowest, highest = self.versions.get(request.API_KEY, (0, -1))
        version: int = min(ours, highest)
        if version < max(lowest, request.min_version):
            offered = f"offers {lowest} to {highest}" if highest >= 0 else "does not offer it"
            raise UnsupportedVersion(
                f"{self.address}: no common version of {request.name}: this client supports up to {ours}, "
                f"the broker {offered}; use a broker of another version"
            )
        return version

    async def call(
        self, request: Any, version: int | None = None, *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        """Send a request of kafka.protocol and return its decoded response. ``version``: exactly this one; None means
        the highest that both sides support, up to ``at_most``. ``timeout_ms``: how long to wait while no byte moves;
        None means the connection's ``request.timeout.ms``. Raises ConnectionLost or RequestTimedOut, after which
        another connection may answer, and UnsupportedVersion as ``version_of``."""
        if version is None:
            version = self.version_of(request, at_most)
        body = request.encode(version=version)
        request.with_header()
        response_class = request.header.get_response_class()
        await self.unmuted()
        timeout_s = (self.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        sent = self.send(request.API_KEY, version, [body], request.flexible_version_q(version))
        answer = await self.answer(sent, request.name, timeout_s)
        if len(answer) > _LARGE_ANSWER_BYTES:
            response = await asyncio.to_thread(response_class.decode, answer)
        else:
            response = response_class.decode(answer)
        self.mute(getattr(response, "throttle_time_ms", 0) or 0)
        return response

    def send(
        self, api_key: int, version: int, buffers: Sequence[bytes | bytearray | memoryview], flexible: bool = True
    ) -> asyncio.Future[memoryview]:
        """Write a request with the body ``buffers`` and return the future of its response: the body after the header.
        Earlier requests may still be in flight. ``flexible``: the version has tagged fields (KIP-482). The future fails
        with ConnectionLost. Requests with acks=0 are not supported, because they are never answered."""
        loop = asyncio.get_running_loop()
        request = _Request(api_key, version, buffers, flexible, loop.create_future())
        if self._reauthenticating is None and not self._protocol.is_lost and self._session.is_due(loop.time()):
            name = f"re-authenticate with {self.address}"
            self._reauthenticating = self._scope.spawn(self._reauthenticate(), name)
        if self._reauthenticating is None:
            self._write(request)
        else:
            self._waiting.append(request)
        return request.answer

    def _write(self, request: _Request) -> None:
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        # ApiVersions is answered with the oldest header, so that any client can read it (KIP-511).
        tagged_header = request.flexible and request.api_key != _API_VERSIONS
        self._protocol.expect(self._correlation_id, tagged_header, request.answer)
        if not self._protocol.is_lost:
            tail = self._client_id + b"\0" if request.flexible else self._client_id
            size = _REQUEST_FRONT.size - 4 + len(tail) + sum(map(len, request.buffers))
            front = _REQUEST_FRONT.pack(size, request.api_key, request.version, self._correlation_id)
            self._transport.writelines([front + tail, *request.buffers])
            self._written_bytes += size + 4

    async def _reauthenticate(self) -> None:
        """Re-authenticate, then write the requests that have arrived; drop the connection if that fails."""
        try:
            async with asyncio.timeout(self.request_timeout_ms / 1000):
                lifetime_ms = await self._session.prove(self._exchange)
            self._session.begin(asyncio.get_running_loop().time(), lifetime_ms)
            self.reauthentications += 1
        except TimeoutError:
            self._protocol.drop("re-authentication timed out")
        except HeliographError as error:
            self._protocol.drop(one_line(error))
        except BaseException:
            self._protocol.drop("re-authentication was cancelled")
            raise
        finally:
            self._reauthenticating = None
            waiting, self._waiting = self._waiting, []
            for request in waiting:
                if not request.answer.done():  # the caller may have stopped waiting
                    self._write(request)

    async def _exchange(self, request: Any, version: int) -> Any:
        body = request.encode(version=version)
        request.with_header()
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._write(_Request(request.API_KEY, version, [body], request.flexible_version_q(version), answer))
        return request.header.get_response_class().decode(await answer)

    async def close(self) -> None:
        """Close the connection; unsent bytes are dropped and pending requests fail."""
        self._protocol.drop("it was closed by this client")
        await self._scope.close()
        # A transport lost before BrokerProtocol took it over never calls connection_lost.
        await asyncio.wait({self._protocol.lost}, timeout=_CLOSE_TIMEOUT_S)


def _unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Return how many written bytes the peer has not acknowledged, as far as known. CPython's TLS transport does not
    count its socket's transport, which only private attributes expose."""
    unsent_bytes = transport.get_write_buffer_size()
    if (tls := getattr(transport, "_ssl_protocol", None)) is not None and tls._transport is not None:
        unsent_bytes += tls._transport.get_write_buffer_size()
    if (connected := transport.get_extra_info("socket")) is not None:
        # On Linux this is SIOCOUTQ for sockets; other systems raise, as do all once the socket is closed.
        with contextlib.suppress(OSError, ValueError):
            unsent_bytes += _INT.unpack(fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))[0]
    return unsent_bytes


def _set_buffers(connected: socket.socket, settings: ConnectionSettings) -> None:
    for option, size in (
        (socket.SO_SNDBUF, settings.send_buffer_bytes),
        (socket.SO_RCVBUF, settings.receive_buffer_bytes),
    ):
        if size is not None:
            connected.setsockopt(socket.SOL_SOCKET, option, size)
