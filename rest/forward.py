"""Requests to other workers: those of users passed on (Kafka's ``RestClient``), and the signed ones between workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final
from urllib.parse import quote

import httpx
import orjson

from connect.core.errors import RetriableError
from connect.core.herding import Forbidden
from connect.core.signing import UNSIGNED
from rest.errors import JSON, RestError

log = logging.getLogger(__name__)

USER_AGENT: Final = "kafka-connect"
#: The first hop waits for the second: twice the time of a request, and some.
_TIMEOUT: Final = httpx.Timeout(connect=10.0, read=200.0, write=30.0, pool=10.0)
_LIMITS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=4.0)

#: Makes the headers that sign a body (KIP-507); an absent body is signed as nothing.
Sign = Callable[[bytes], Mapping[str, str]]


#: Of the leader: it has a key that is newer than the one that signed; a round is under way; it was not done in time, or
#: does not say why it was not; it has read no key yet.
_PASSING: Final = (403, 409, 500, 503)


class Unreachable(RestError, RetriableError):
    """Another worker cannot be asked."""


class Passing(RestError, RetriableError):
    """The leader refuses for what may have passed a moment later."""


class WrongKey(Passing, Forbidden):
    """The leader has another key than the one that signed: just after a new one, it or we have yet to read it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What another worker answered, with a status from 200 to 299."""

    status: int
    body: bytes
    location: str | None


class Forwarder:
    """An HTTP client for other workers. It follows no redirect and takes no proxy from the environment.

    ``client_tls`` makes the context for workers whose URLs are https.
    """

    def __init__(self, client_tls: Callable[[], SSLContext] | None = None) -> None:
        #: Where others reach this worker, once that is known.
        self.own_url: str | None = None
        self._client_tls = client_tls
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; ``url`` is whole, its path encoded.

        Raises:
            RestError: The other worker refuses, with its status and message; or it has our own address.
            Unreachable: It cannot be asked.
        """
        if self.own_url is not None and url.startswith(self.own_url):
            raise RestError(
                409,
                f"The worker that has to answer this request advertises {self.own_url}, as this worker does. Set "
                "rest.advertised.host.name, or listeners, on each worker of the group to an address of its machine.",
            )
        content = {} if body is None else {"content-type": JSON}
        try:
            client = self._client("https" if url.startswith("https:") else "http")
            response = await client.request(
                method, url, content=body, headers={"accept": JSON, **content, **(headers or {})}
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            log.warning("cannot ask another worker, %s %s: %s", method, url.partition("?")[0], reason)
            raise Unreachable(500, f"IO Error trying to forward REST request: {reason}") from error
        if 200 <= response.status_code < 300:
            return Answer(response.status_code, response.content, response.headers.get("location"))
        if response.status_code >= 400:
            raise _refusal(response)
        raise RestError(500, f"Unexpected status code when handling forwarded request: {response.status_code}")

    def _client(self, scheme: str) -> httpx.AsyncClient:
        client = self._clients.get(scheme)
        if client is None:
            client = self._clients[scheme] = httpx.AsyncClient(
                verify=self._verify(scheme),
                timeout=_TIMEOUT,
                limits=_LIMITS,
                headers={"user-agent": USER_AGENT},
                follow_redirects=False,
                trust_env=False,
            )
        return client

    def _verify(self, scheme: str) -> SSLContext | bool:
        if scheme == "http":
            return False  # saves the reading of certificates that nobody shows
        return True if self._client_tls is None else self._client_tls()

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()


def _refusal(response: httpx.Response) -> RestError:
    status = response.status_code
    try:
        body = orjson.loads(response.content)
        return RestError(status, body["message"], int(body["error_code"]))
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        host = response.request.url.netloc.decode("ascii", "replace")
        return RestError(status, f"The worker at {host} answered {status} without saying why.")


def join(url: str, path: str) -> str:
    """``path`` below a worker's URL, which may end in a slash or not."""
    return url.rstrip("/") + path


class InternalClient:
    """The signed requests between the workers of a group.

    Args:
        forwarder: Sends them.
        namespace: Of a dedicated mirror's group, (source, target): its paths begin with both.
    """

    def __init__(self, forwarder: Forwarder, namespace: Sequence[str] = ()) -> None:
        self._forwarder = forwarder
        self._prefix = "".join(f"/{quote(each, safe='')}" for each in namespace)

    async def post_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Mapping[str, str]], sign: Sign | None
    ) -> None:
        """Hand a connector's task configs to the leader. ``sign`` None: below protocol version 2.

        Raises:
            RestError: See :meth:`Forwarder.send`; :class:`Passing` where the same may be granted a moment later.
        """
        body = orjson.dumps([dict(each) for each in configs])
        await self._send("POST", leader_url, connector, "tasks", body, sign)

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        """Ask the leader to fence off a source connector's older tasks (KIP-618).

        Raises:
            RestError: See :meth:`Forwarder.send`; :class:`Passing` where the same may be granted a moment later.
        """
        await self._send("PUT", leader_url, connector, "fence", None, sign)

    async def _send(
        self, method: str, leader_url: str, connector: str, what: str, body: bytes | None, sign: Sign | None
    ) -> None:
        path = f"{self._prefix}/connectors/{quote(connector, safe='')}/{what}"
        headers = {} if sign is None else sign(body or b"")
        try:
            await self._forwarder.send(method, join(leader_url, path), body, headers)
        except RestError as error:
            # We have signed it: a worker that no longer leads has passed it on, which Java does without the signature.
            is_astray = sign is not None and error.message == UNSIGNED
            if isinstance(error, RetriableError) or not (is_astray or error.status in _PASSING):
                raise
            cls = WrongKey if error.status == 403 else Passing
            raise cls(error.status, error.message, error.error_code) from error
