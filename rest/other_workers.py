"""Sends requests to other workers: users' requests that are forwarded (Kafka's ``RestClient``), and signed requests
between workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final
from urllib.parse import quote

import httpx
import orjson
from pydantic import ValidationError

from connect.core.errors import RetriableError
from connect.core.herder_api import UNSIGNED, Config, ConfigInfos, Forbidden, Sign
from rest import bodies
from rest.errors import JSON, RestError

log = logging.getLogger(__name__)

USER_AGENT: Final = "kafka-connect"
#: The first hop waits for the second, so reading may take more than twice the time limit of a request.
_TIMEOUT: Final = httpx.Timeout(connect=10.0, read=200.0, write=30.0, pool=10.0)
_LIMITS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=4.0)

#: Statuses of the leader that may pass: its key is newer than the one that signed; a rebalance is under way; it timed
#: out or gives no reason; it has read no key yet.
_PASSING: Final = (403, 409, 500, 503)
#: How Java says that it does not have a class.
_NO_CLASS: Final = "Failed to find any class"


class Unreachable(RestError, RetriableError):
    """Another worker did not answer."""


class RetriableRefusal(RestError, RetriableError):
    """The leader refuses for a reason that may pass soon."""


class WrongKey(RetriableRefusal, Forbidden):
    """The leader's key differs from the one that signed: after a key rotation, one worker has not read the new key."""


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """Another worker's answer, with a status from 200 to 299."""

    status: int
    body: bytes
    location: str | None


class Forwarder:
    """An HTTP client for other workers, without redirects and without proxies of the environment. ``client_tls``
    creates the context for workers with https URLs."""

    def __init__(self, client_tls: Callable[[], SSLContext] | None = None) -> None:
        #: This worker's advertised URL, once it is known.
        self.own_url: str | None = None
        self._client_tls = client_tls
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def send(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ForwardedAnswer:
        """Send a request; ``url`` is absolute, with an encoded path. Raises RestError if the other worker refuses, with
        its status and message, or advertises our own URL; Unreachable if it does not answer."""
        if self.own_url is not None and url.startswith(self.own_url):
            same = f"The worker that must answer this request advertises {self.own_url}, as this worker does."
            keys = "rest.advertised.host.name, or listeners, on each worker of the group"
            raise RestError(409, f"{same} Set {keys} to an address of its machine.")
        sent = {"accept": JSON, **({} if body is None else {"content-type": JSON}), **(headers or {})}
        try:
            client = self._client("https" if url.startswith("https:") else "http")
            response = await client.request(method, url, content=body, headers=sent)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            log.warning("Could not reach another worker, %s %s: %s", method, url.partition("?")[0], reason)
            raise Unreachable(500, f"IO Error trying to forward REST request: {reason}") from error
        if 200 <= response.status_code < 300:
            return ForwardedAnswer(response.status_code, response.content, response.headers.get("location"))
        if response.status_code >= 400:
            raise _refusal(response)
        raise RestError(500, f"Unexpected status code when handling forwarded request: {response.status_code}")

    def _client(self, scheme: str) -> httpx.AsyncClient:
        client = self._clients.get(scheme)
        if client is None:
            verify: SSLContext | bool = scheme == "https"  # http saves reading certificates
            if verify and self._client_tls is not None:
                verify = self._client_tls()
            client = self._clients[scheme] = httpx.AsyncClient(
                verify=verify,
                timeout=_TIMEOUT,
                limits=_LIMITS,
                headers={"user-agent": USER_AGENT},
                follow_redirects=False,
                trust_env=False,
            )
        return client

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()


def _refusal(response: httpx.Response) -> RestError:
    status = response.status_code
    try:
        body = orjson.loads(response.content)
        message = body["message"]
        return RestError(status, None if message is None else str(message), int(body["error_code"]))
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        host = response.request.url.netloc.decode("ascii", "replace")
        return RestError(status, f"The worker at {host} answered {status} without a reason.")


def join(url: str, path: str) -> str:
    """Return ``path`` below a worker's URL, which may end with a slash."""
    return url.rstrip("/") + path


class InternalClient:
    """Sends the requests between workers of a group; ``namespace`` is (source, target) of a dedicated mirror's group,
    the start of its paths."""

    def __init__(self, forwarder: Forwarder, namespace: Sequence[str] = ()) -> None:
        self._forwarder = forwarder
        self._prefix = "".join(f"/{quote(each, safe='')}" for each in namespace)

    async def post_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Mapping[str, str]], sign: Sign | None
    ) -> None:
        """Send a connector's task configs to the leader. ``sign`` is None below protocol version 2. Errors as
        :meth:`Forwarder.send`, or :class:`RetriableRefusal` if a retry may succeed."""
        body = orjson.dumps([dict(each) for each in configs])
        await self._send("POST", leader_url, connector, "tasks", body, sign)

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        """Ask the leader to fence a source connector's older tasks (KIP-618). Errors as :meth:`post_task_configs`."""
        await self._send("PUT", leader_url, connector, "fence", None, sign)

    async def validate(self, url: str, connector_class: str, config: Config) -> ConfigInfos | None:
        """Have the worker at ``url`` validate a connector's config; None if it does not have the class. Errors as
        :meth:`Forwarder.send`; Unreachable if it answers something else."""
        path = f"{self._prefix}/connector-plugins/{quote(connector_class, safe='')}/config/validate"
        try:
            answer = await self._forwarder.send("PUT", join(url, path), orjson.dumps(dict(config)))
        except RestError as error:
            if _NO_CLASS in (error.message or ""):
                return None
            raise
        try:
            return bodies.CONFIG_INFOS.validate_json(answer.body)
        except ValidationError:
            # Its text quotes the answer, which may have secrets of the config.
            said = f"The worker at {url} did not answer with a validation of the config. Check its version and log."
            raise Unreachable(500, said) from None

    async def has_class(self, url: str, connector_class: str) -> bool:
        """Return whether the worker at ``url`` has a class. Errors as :meth:`Forwarder.send`."""
        path = f"{self._prefix}/connector-plugins/{quote(connector_class, safe='')}/config"
        try:
            await self._forwarder.send("GET", join(url, path))
        except RestError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _send(
        self, method: str, leader_url: str, connector: str, what: str, body: bytes | None, sign: Sign | None
    ) -> None:
        path = f"{self._prefix}/connectors/{quote(connector, safe='')}/{what}"
        headers = {} if sign is None else sign(body or b"")
        try:
            await self._forwarder.send(method, join(leader_url, path), body, headers)
        except RestError as error:
            # Although we signed it: a former leader forwarded the request, which Java does without the signature.
            is_unsigned = sign is not None and error.message == UNSIGNED
            if isinstance(error, RetriableError) or not (is_unsigned or error.status in _PASSING):
                raise
            cls = WrongKey if error.status == 403 else RetriableRefusal
            raise cls(error.status, error.message, error.error_code) from error
