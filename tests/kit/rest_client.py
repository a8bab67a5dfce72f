"""A worker's REST API as a test asks it: once no rebalance is in the way, with errors as assertions."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from tests.kit.processes import wait_until

_TIMEOUT_S: Final = 100.0
_REBALANCE_DEADLINE_S: Final = 120.0
_CONFLICT: Final = 409
#: Java's words, under 500, for requests that it does not forward.
_REBALANCE: Final = "because a rebalance is expected"


class RestClient:
    """Asks one worker; a connection each time. ``url`` ends with a slash."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.netloc = parts.netloc
        self._address = (parts.hostname or "", parts.port)

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The parsed answer; an AssertionError where it is an error. Rebalances are waited out."""
        status, answer = self.asked(method, path, body, headers)
        assert status < 400, f"{method} {path} at {self.netloc}: {status}: {answer}"
        return answer

    def asked(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and parsed answer once no rebalance is in the way."""

        def answered() -> tuple[int, Any] | None:
            status, answer = self.try_once(method, path, body, headers)
            return None if status == _CONFLICT or _REBALANCE in str(answer) else (status, answer)

        answer = wait_until(answered, _REBALANCE_DEADLINE_S, f"{method} {path} meets no rebalance")
        assert answer is not None, "that is what was waited for"
        return answer

    def try_once(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and body of one request: parsed where it is JSON, None where there is none."""
        connection = http.client.HTTPConnection(*self._address, timeout=_TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = "json" in response.getheader("Content-Type", "")
            return response.status, json.loads(text) if text and is_json else text or None
        finally:
            connection.close()

    def statuses(self) -> dict[str, Any]:
        expanded = self.ask("GET", "/connectors?expand=status")
        return {name: parts["status"] for name, parts in expanded.items()}

    def owners(self) -> dict[str, str]:
        """Worker id of each connector (by name) and task (``name-0``) that is RUNNING."""
        found: dict[str, str] = {}
        for name, status in self.statuses().items():
            work = {name: status["connector"], **{f"{name}-{task['id']}": task for task in status["tasks"]}}
            found |= {part: state["worker_id"] for part, state in work.items() if state["state"] == "RUNNING"}
        return found
