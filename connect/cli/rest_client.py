"""A worker's REST API, as a command asks it."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from connect.core.errors import ConfigError, HeliographError, RetriableError

#: A worker takes up to 90 s for an answer, and once more where it passes the request on.
_TIMEOUT: Final = httpx.Timeout(connect=10.0, read=200.0, write=30.0, pool=10.0)
#: What a worker answers if it has no such path (Jersey's text), and a mirror above its flows.
_NO_ROUTE: Final = ("HTTP 404 Not Found", "No replication flow found for source 'connectors'")


class WorkerRefused(HeliographError):
    """The worker answered with an error; its message is the text, ``status`` that of HTTP."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class WorkerUnreachable(RetriableError):
    """No worker answers at the URL."""


class RestClient:
    """One worker, or one flow of a dedicated mirror (``http://host:port/us/eu``).

    Raises:
        ConfigError: ``url`` is no http or https URL.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"'{url}' is no URL: {error}", "--url") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"'{url}' is no URL of a worker, such as http://localhost:8083", "--url")
        #: Without user and password.
        self.shown_url = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT, headers={"accept": "application/json"})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _: TracebackType | None
    ) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer, None where it has none.

        Raises:
            WorkerRefused: The worker says no.
            WorkerUnreachable: It does not answer, or what answers is no worker.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            response = self._client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise WorkerUnreachable(
                f"no worker answers at {self.shown_url}: {str(error) or type(error).__name__}; --url says where one is"
            ) from None
        if response.is_success and not response.content:
            return None
        try:
            answer = response.json()
            if response.is_success:
                return answer
            message = str(answer["message"])
            if message.startswith(_NO_ROUTE):
                message = (
                    f"{self.shown_url} has no connectors; a mirror has those of each flow below that, such as "
                    f"{self.shown_url}/us/eu for the flow us->eu: name that address"
                )
            raise WorkerRefused(message, response.status_code)
        except (ValueError, LookupError, TypeError):
            raise WorkerUnreachable(
                f"what answers at {self.shown_url} is no Connect worker, or one that is still starting "
                f"(status {response.status_code}); --url says where one is"
            ) from None


def connector_path(name: str, *rest: str) -> str:
    """The path of a connector; its name may hold any character."""
    return "/".join(("/connectors", quote(name, safe=""), *rest))
