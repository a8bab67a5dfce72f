"""The worker's end of all control links: the listener, the tokens of slices, and the renewal of their leases."""

from __future__ import annotations

import asyncio
import datetime
import hmac
import logging
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from connect.core.config.rest_settings import is_loopback
from connect.core.errors import ConfigError, RetriableError
from connect.kafka.acceptor import Acceptor, ConnectionLimits, Held, bind
from connect.kafka.concurrency import Scope
from connect.kafka.security.tls import as_file
from connect.kafka.threads import LeaseLoop
from connectors.control_link.code_version import running_code
from connectors.control_link.protocol import LINK_VERSION, Link, LinkAddress, LinkClosed, Message

log = logging.getLogger(__name__)

LISTENER_KEY: Final = "link.listener"
ADVERTISED_KEY: Final = "link.advertised.address"
_HELLO_TIMEOUT_S: Final = 10.0
#: A slice's hello has a few hundred bytes; a peer that sends more is refused.
_MAX_HELLO_BYTES: Final = 64 * 1024
#: Connections that may be open without a hello; a further one replaces the oldest.
_MOST_SILENT: Final = 256
#: Messages of a slice that may wait for a blocked main loop; no more are read then.
_MOST_WAITING: Final = 1024
_LOOK_S: Final = 0.05
#: Interval at which a slice's lease is renewed, and the least number of renewals within one lease.
_RENEW_S: Final = 1.0
_RENEWALS: Final = 4
_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "heliograph control link")])
#: A slice accepts only this certificate, so dates add no protection, and executors' clocks may be wrong.
_BEGIN: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END: Final = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


class SliceRefused(RetriableError):
    """A slice connected with a valid token and was refused."""


class SliceSilent(LinkClosed):
    """The link is open, and the slice sent nothing for the length of its lease."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Where to listen, and the address that slices get. ``host``: an address or a name of this machine, or a wildcard
    such as 0.0.0.0. ``port``: 0 for a free one. ``advertised``: host, or host:port, that executors can reach; empty for
    the listener's."""

    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""

    @classmethod
    def parse(cls, listener: str, advertised: str) -> LinkSettings:
        """Return settings from the values of both keys. Raises :class:`ConfigError` with the key of an invalid one."""
        host, port = _host_port(LISTENER_KEY, listener)
        if port is None:
            raise ConfigError(f"{LISTENER_KEY} = {listener} should be host:port, such as 0.0.0.0:7070", LISTENER_KEY)
        if advertised:
            _host_port(ADVERTISED_KEY, advertised)
        return cls(host, port, advertised)

    def reached_at(self, port: int) -> tuple[str, int]:
        """Return the host and port that slices get, once ``port`` is bound."""
        if not self.advertised:
            is_wildcard = self.host in ("*", "0.0.0.0", "::")
            return (socket.getfqdn() if is_wildcard else self.host), port
        host, advertised_port = _host_port(ADVERTISED_KEY, self.advertised)
        return host, advertised_port or port

    def with_free_port(self) -> LinkSettings:
        """Return the same with a port that is free: that of a mirror on this machine is not."""
        advertised = _host_port(ADVERTISED_KEY, self.advertised)[0] if self.advertised else ""
        return LinkSettings(self.host, 0, advertised)

    @property
    def leaves_the_machine(self) -> bool:
        """Whether the listener or the advertised address is not on loopback; then the link uses TLS."""
        reported, _ = self.reached_at(self.port)
        return not (is_loopback(self.host) and is_loopback(reported))


@dataclass(slots=True)
class Ticket:
    """The permission for one slice of one epoch to open one link. ``linked`` gets the link and its hello, or
    :class:`SliceRefused`. ``misused`` gets a message for operators if the token is used a second time, by another
    attempt of the same Spark task."""

    token: str = field(repr=False)
    slice: str
    epoch: int
    linked: asyncio.Future[tuple[ServedLink, Message]]
    misused: asyncio.Future[str]
    attempt: str = ""


class ServedLink:
    """The worker's side of an open link, for the main loop; the lease thread owns its socket. The thread renews the
    slice's lease and receives its messages even while the main loop is busy."""

    def __init__(self, link: Link, leases: LeaseLoop) -> None:
        self.peer = link.peer
        self._link = link
        self._leases = leases
        #: When the slice last sent something, in monotonic time.
        self._heard_s = time.monotonic()
        self._said: deque[Message | LinkClosed] = deque()
        self._arrived = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._scope = Scope(f"link of {self.peer}")

    def listen(self) -> None:
        self._leases.call(lambda: self._scope.spawn(self._listen(), f"link of {self.peer}"))

    def renew(self, lease_s: float, holds: Callable[[], bool]) -> None:
        """Renew the slice's lease from now on, while the main loop runs and ``holds`` (called in the lease thread) says
        that this worker owns the task. If the slice sends nothing for ``lease_s``, :meth:`receive` raises
        :class:`SliceSilent`."""

        def begin() -> None:
            self._renewing = self._scope.spawn(self._renew(lease_s, holds), f"lease of {self.peer}")

        self._leases.call(begin)

    def let_lapse(self) -> None:
        """Stop renewing the slice's lease."""
        self._leases.call(lambda: self._renewing and self._renewing.cancel())

    def send(self, message: Message) -> None:
        self._leases.call(self._link.send, message)

    async def receive(self) -> Message:
        """Return the next message. Raises :class:`LinkClosed` at the end of the link, :class:`SliceSilent` once the
        slice has sent nothing for the length of its lease."""
        while not self._said:
            self._arrived.clear()
            await self._arrived.wait()
        said = self._said.popleft()
        if isinstance(said, LinkClosed):
            self._said.append(said)
            raise said
        return said

    def hang_up(self) -> None:
        """Close once all messages are sent, without waiting for that."""
        self._leases.call(self._close, self._link.end)

    def abort(self) -> None:
        """Close at once; messages that are not sent yet are lost."""
        self._leases.call(self._close, self._link.abort)

    # -- in the lease thread ---------------------------------------------------------------------------

    async def _renew(self, lease_s: float, holds: Callable[[], bool]) -> None:
        every_s = min(_RENEW_S, lease_s / _RENEWALS)
        while time.monotonic() - self._heard_s <= lease_s:
            if self._leases.may_renew and holds():
                self._link.send({"type": "lease"})
            await asyncio.sleep(every_s)
        self._hand_over(SliceSilent(f"nothing heard from the slice for {lease_s:.1f} s"))

    async def _listen(self) -> None:
        try:
            while True:
                message = await self._link.receive()
                self._heard_s = time.monotonic()
                self._hand_over(message)
                while len(self._said) >= _MOST_WAITING:
                    self._heard_s = time.monotonic()  # because the main loop is blocked, not the slice
                    await asyncio.sleep(_LOOK_S)
        except LinkClosed as closed:
            self._hand_over(closed)

    def _hand_over(self, said: Message | LinkClosed) -> None:
        self._said.append(said)
        self._leases.post(self._arrived.set)

    def _close(self, close: Callable[[], None]) -> None:
        self._scope.cancel()
        close()


class LinkServer:
    """Accepts links with a valid token and passes each to its ticket. ``leases`` is the thread that owns the sockets,
    ``code`` what slices must run, as :func:`connectors.control_link.code_version.running_code` names it."""

    def __init__(self, settings: LinkSettings, leases: LeaseLoop, code: str = "") -> None:
        self._settings = settings
        self._leases = leases
        self._code = code or running_code()
        self._acceptor: Acceptor | None = None
        #: Connections before their hello; a slice says hello at once.
        self._limits = ConnectionLimits(_MOST_SILENT, _MOST_SILENT)
        self._certificate = ""
        self._tickets: dict[str, Ticket] = {}

    async def start(self) -> None:
        """Listen. Raises :class:`ConfigError` if that is not possible."""
        settings, context = self._settings, None
        if settings.leaves_the_machine:
            context, self._certificate = server_tls()
        try:
            self._acceptor = await self._leases.run(self._listen(context))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            place = f"{settings.host}:{settings.port}"
            raise ConfigError(f"{LISTENER_KEY} = {place}: cannot listen there: {reason}", LISTENER_KEY) from error
        if context is not None:
            log.info("slices reach this worker at %s, over TLS", self.address)

    async def _listen(self, context: ssl.SSLContext | None) -> Acceptor:
        bound = await bind("" if self._settings.host == "*" else self._settings.host, self._settings.port)
        return Acceptor(bound, self._limits, partial(self._accepted, context), "control link")

    @property
    def address(self) -> LinkAddress:
        assert self._acceptor is not None, "the link server has not been started"
        host, port = self._settings.reached_at(self._acceptor.port)
        return LinkAddress(host, port, self._certificate)

    def expect(self, slice_: str, epoch: int) -> Ticket:
        """Return a new ticket for a slice, valid for one link until :meth:`forget`."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(secrets.token_urlsafe(24), slice_, epoch, loop.create_future(), loop.create_future())
        # Retrieve the exception even if its waiter has stopped, else asyncio logs it.
        ticket.linked.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tickets[ticket.token] = ticket
        return ticket

    def payload(self, ticket: Ticket) -> dict[str, Any]:
        """Return what a slice needs to connect with ``ticket``."""
        address = {name: getattr(self.address, name) for name in ("host", "port", "certificate")}
        return {**address, "token": ticket.token, "slice": ticket.slice, "epoch": ticket.epoch}

    def forget(self, ticket: Ticket) -> None:
        """Refuse a ticket's token from now on, as an unknown one."""
        self._tickets.pop(ticket.token, None)
        for future in (ticket.linked, ticket.misused):
            future.cancel()

    async def stop(self) -> None:
        for ticket in list(self._tickets.values()):
            self.forget(ticket)
        if self._acceptor is not None:
            await self._leases.run(self._acceptor.close())

    async def _accepted(self, context: ssl.SSLContext | None, connection: socket.socket, held: Held) -> None:
        """Read a peer's hello in the lease thread; the main loop, which has the tickets, decides on it."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        async with asyncio.timeout(_HELLO_TIMEOUT_S):
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), connection, ssl=context
            )
        link = Link(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                hello = await link.receive(_MAX_HELLO_BYTES)
        except (TimeoutError, LinkClosed):
            link.abort()
            return
        except asyncio.CancelledError:
            link.abort()
            raise
        finally:
            self._limits.leave(held)
        self._leases.post(self._said_hello, ServedLink(link, self._leases), hello)

    def _said_hello(self, link: ServedLink, hello: Message) -> None:
        ticket, stale = self._ticket(str(hello.get("token", ""))), self._staleness(hello)
        refusal = self._refusal(hello, ticket, stale)
        if not refusal and ticket is not None:
            ticket.attempt = str(hello.get("attempt"))
            link.listen()
            ticket.linked.set_result((link, hello))
            return
        log.warning("a slice from %s was refused: %s", link.peer, refusal)
        link.send({"type": "refused", "reason": refusal, "stale": bool(stale)})
        link.hang_up()

    def _ticket(self, token: str) -> Ticket | None:
        """Find a token's ticket in constant time, so that the time taken reveals nothing about other tokens."""
        same = [one for known, one in self._tickets.items() if hmac.compare_digest(known.encode(), token.encode())]
        return same[0] if same else None

    def _refusal(self, hello: Message, ticket: Ticket | None, stale: str) -> str:
        """Return why this hello does not open a link, empty if it does; the waiter of the ticket gets it at once."""
        if ticket is None:
            return "its token is unknown: it belongs to an epoch that is over, or to another worker"
        if ticket.linked.done():
            again = f"{ticket.slice}: the token of epoch {ticket.epoch} was used a second time, by attempt "
            again += f"{hello.get('attempt')} after attempt {ticket.attempt} of the Spark task; the epoch ends"
            if not ticket.misused.done():
                ticket.misused.set_result(again)
            return again
        refusal = stale or _mismatch(hello, ticket)
        if refusal:
            ticket.linked.set_exception(SliceRefused(refusal))
        return refusal

    def _staleness(self, hello: Message) -> str:
        """Return the refusal of a slice that runs other code than this worker; empty if it runs the same."""
        if hello.get("version") == LINK_VERSION and hello.get("code") == self._code:
            return ""
        return (
            f"it runs {hello.get('code')} (version {hello.get('version')} of the link), from {hello.get('from')} on "
            f"{hello.get('host')}, but this worker needs {self._code} (version {LINK_VERSION}); restart this worker "
            f"if it was upgraded meanwhile, or the executors if they are older"
        )


def _mismatch(hello: Message, ticket: Ticket) -> str:
    if (hello.get("slice"), hello.get("epoch")) != (ticket.slice, ticket.epoch):
        return (
            f"it says that it is epoch {hello.get('epoch')} of {hello.get('slice')}, but its token belongs to "
            f"epoch {ticket.epoch} of {ticket.slice}"
        )
    attempt = hello.get("attempt")
    if not (isinstance(attempt, str) and attempt):
        return f"it does not say which attempt of its Spark task it is: {attempt!r}"
    return ""


def _host_port(key: str, text: str) -> tuple[str, int | None]:
    """Parse ``host``, ``host:port`` or ``[v6]:port``. Raises :class:`ConfigError`."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = text.strip(), ""
    host = host.strip("[]")
    if not host or (port and not (port.isdigit() and int(port) < 65536)):
        raise ConfigError(f"{key} = {text} should be host:port, such as 0.0.0.0:7070", key)
    return host, int(port) if port else None


def server_tls() -> tuple[ssl.SSLContext, str]:
    """Return a context to listen with, and the PEM of its new certificate, which is public. No file keeps the key. TLS
    1.3 only, because both ends are ours."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        # Required for a self-signed authority by strict verification (Python 3.13's default).
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_signing_usage(), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with as_file((pem + secret).decode()) as path:
        context.load_cert_chain(path)
    return context, pem.decode()


def _signing_usage() -> x509.KeyUsage:
    others = ("crl_sign", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=True, **unused)
