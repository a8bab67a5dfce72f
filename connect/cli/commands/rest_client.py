"""A client of a worker's REST API for commands, and control of a flow's connectors with it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from connect.core.config.rest_settings import is_loopback
from connect.core.errors import ConfigError, HeliographError, RetriableError

#: A worker takes up to 90 s for an answer, twice that if it forwards the request.
_TIMEOUT: Final = httpx.Timeout(connect=10.0, read=200.0, write=30.0, pool=10.0)
#: How a worker answers if it does not have the path (Jersey's text), and a mirror at a path above its flows.
_NO_ROUTE: Final = ("HTTP 404 Not Found", "No replication flow found for source 'connectors'")

_USER: Final = "HELIOGRAPH_USER"
_PASSWORD: Final = "HELIOGRAPH_PASSWORD"
_TOKEN: Final = "HELIOGRAPH_TOKEN"
_CA_FILE: Final = "HELIOGRAPH_CA_FILE"
_CERTIFICATE_FILE: Final = "HELIOGRAPH_CERTIFICATE_FILE"


def _secret(name: str) -> str | None:
    """Return an environment variable, or the contents of the file that the variable ``{name}_FILE`` names."""
    file = os.environ.get(f"{name}_FILE")
    if file is None:
        return os.environ.get(name)
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", f"{name}_FILE") from None


def _authorization(url: httpx.URL) -> dict[str, str]:
    token, user, password = _secret(_TOKEN), os.environ.get(_USER), _secret(_PASSWORD)
    if not token and not (user and password):
        return {}
    if url.scheme == "http" and not is_loopback(url.host):
        raise ConfigError(f"{url} would send the password or the token unencrypted; use https", "--rest")
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Bearer {token}" if token else f"Basic {basic}"}


def _tls_context() -> ssl.SSLContext:
    """Return the context for https workers, with the files that the environment names."""
    try:
        context = ssl.create_default_context(cafile=os.environ.get(_CA_FILE))
        if certificate := os.environ.get(_CERTIFICATE_FILE):
            context.load_cert_chain(certificate)
    except OSError as error:
        raise ConfigError(f"a file of {_CA_FILE} or {_CERTIFICATE_FILE} cannot be used: {error}", _CA_FILE) from None
    return context


class WorkerRefused(HeliographError):
    """The worker answered with an error: its message, and the HTTP ``status``."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class WorkerUnreachable(RetriableError):
    """No worker answers at the URL."""


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"'{url}' is not a URL: {error}", "--rest") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"'{url}' is not a worker's URL, such as http://localhost:8083", "--rest")
    if parsed.userinfo:
        raise ConfigError(f"a URL that contains a password is seen by all users of this machine; set {_USER}", "--rest")
    return parsed


def flow_url(url: str, source: str, target: str) -> str:
    """Return the URL of a flow of the dedicated mirror at ``url``. Raises ConfigError as :class:`RestClient`."""
    _parsed(url)  # here, so that an error shows what was typed
    return f"{url.rstrip('/')}/{source}/{target}"


class RestClient:
    """One worker, or one flow of a dedicated mirror (``http://host:port/us/eu``), with the user of the environment.
    Raises ConfigError if ``url`` is not an http or https URL, or contains a user, or if a
    file that the environment names cannot be read."""

    def __init__(self, url: str) -> None:
        parsed = _parsed(url)
        self.shown_url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=url,
            timeout=_TIMEOUT,
            headers={"accept": "application/json", **_authorization(parsed)},
            verify=_tls_context(),
            # A proxy of the environment would get the password of this machine's worker, unencrypted.
            trust_env=not is_loopback(parsed.host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @staticmethod
    def path(name: str, *rest: str) -> str:
        """Return the path of a connector, whose name may have any character."""
        return "/".join(("/connectors", quote(name, safe=""), *rest))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the answer, None if it is empty. Raises WorkerRefused if the worker
        answers with an error; WorkerUnreachable if it does not answer, or if the answer is not a worker's."""
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            response = self._client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            why = str(error).rstrip(".") or type(error).__name__
            raise WorkerUnreachable(f"no worker answers at {self.shown_url}: {why}. Check the URL") from None
        if response.is_success and not response.content:
            return None
        try:
            answer = response.json()
            if response.is_success:
                return answer
            message = str(answer["message"])
            if message.startswith(_NO_ROUTE):
                use = f"A dedicated mirror has those of each flow below its URL: use {self.shown_url}/us/eu for us->eu"
                message = f"{self.shown_url} has no connectors. {use}"
            raise WorkerRefused(message, response.status_code)
        except (ValueError, LookupError, TypeError):
            raise self._stranger(response.status_code) from None

    def connectors(self, *expand: str) -> dict[str, dict[str, Any]]:
        """Return what a worker says of each connector: ``info`` always, ``status`` if it is in ``expand`` and known.
        Raises WorkerRefused, WorkerUnreachable, as :meth:`ask`."""
        known = self.ask("GET", f"/connectors?{'&'.join(f'expand={each}' for each in ('info', *expand))}")
        try:
            for one in known.values():
                one["info"]["config"].get("")
                if "status" in one:
                    one["status"]["type"], one["status"]["connector"]["state"], list(one["status"]["tasks"])
        except (LookupError, TypeError, AttributeError):
            raise self._stranger(_OK) from None
        return dict(known)

    def _stranger(self, status: int) -> WorkerUnreachable:
        text = f"{self.shown_url} is not a Connect worker, or it is still starting (status {status}). Check the URL"
        return WorkerUnreachable(text)


_OK: Final = 200
_NOT_FOUND: Final = 404
SOURCE_CLASSES: Final = ("MirrorSourceConnector", "MirrorSource")
_CHECKPOINT_CLASSES: Final = ("MirrorCheckpointConnector", "MirrorCheckpoint")


class RestControl:
    """The source connector of a flow, and its checkpoint connectors, which would move groups. Its methods raise the
    errors of :meth:`RestClient.ask`."""

    def __init__(self, worker: RestClient, name: str, checkpoints: Sequence[str] = ()) -> None:
        self._worker = worker
        #: The name on its workers.
        self.name = name
        self._names = (name, *checkpoints)
        #: The command that starts them again.
        self.start_command = f"heliograph connectors resume {' '.join(self._names)} --rest {worker.shown_url}"

    async def state(self) -> str:
        """Return the connector's state; STOPPING instead of STOPPED while tasks still run."""
        status = await self._ask("GET", "status")
        running = [task["state"] for task in status["tasks"] if task["state"] != "UNASSIGNED"]
        state = str(status["connector"]["state"])
        return "STOPPING" if state == "STOPPED" and running else state

    async def stop(self) -> None:
        for name in self._names:
            await self._ask("PUT", "stop", name)

    async def resume(self) -> None:
        for name in self._names:
            await self._ask("PUT", "resume", name)

    async def _ask(self, method: str, what: str, name: str = "") -> Any:
        return await asyncio.to_thread(self._worker.ask, method, RestClient.path(name or self.name, what))


def find_control(closing: ExitStack, urls: Sequence[str], source: str, target: str, name: str) -> RestControl | None:
    """Return the enabled connector of a flow at one of ``urls``, each of a Connect worker or a dedicated mirror; of
    several the one called ``name``, else the first; None if there is none. Its connections are closed with ``closing``.
    Raises the first error of :meth:`RestClient.ask` if none of the URLs answers as a worker."""
    failed: dict[str, HeliographError] = {}
    for url in urls:
        for place in (flow_url(url, source, target), url):
            worker = closing.enter_context(RestClient(place))
            try:
                known = worker.connectors()
            except (WorkerRefused, WorkerUnreachable) as error:
                is_other = isinstance(error, WorkerRefused) and error.status == _NOT_FOUND
                if not is_other:
                    failed.setdefault(url, error)
                elif place == url:  # because such a worker answers, and runs other flows
                    failed.pop(url, None)
                continue
            failed.pop(url, None)
            configs = {known_name: one["info"]["config"] for known_name, one in known.items()}
            of_flow = {each: class_of(config) for each, config in configs.items() if is_of(config, source, target)}
            checkpoints = sorted(one for one, kind in of_flow.items() if kind in _CHECKPOINT_CLASSES)
            for known_name in sorted(of_flow, key=lambda one: (one != name, one)):
                if of_flow[known_name] in SOURCE_CLASSES:
                    return RestControl(worker, known_name, checkpoints)
    if failed and failed.keys() == set(urls):
        raise next(iter(failed.values()))
    return None


def class_of(config: Mapping[str, str]) -> str:
    """Return the class of a connector without its package."""
    return config.get("connector.class", "").strip().rpartition(".")[2]


def is_of(config: Mapping[str, str], source: str, target: str) -> bool:
    """Whether a connector is of the flow and enabled. A mirror's worker for heartbeats only has a disabled one."""
    ends = (config.get("source.cluster.alias"), config.get("target.cluster.alias"))
    return ends == (source, target) and config.get("enabled", "true").strip().lower() != "false"
