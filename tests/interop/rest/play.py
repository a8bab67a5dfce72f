"""Puts the requests of a session to a worker, over sockets of its own so that every byte of a path goes out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.interop.rest.answers import Answer, normalise
from tests.interop.rest.asks import NOTHING, Ask, Session, Until

_ANSWER_TIMEOUT_S: Final = 100.0
_REBALANCE_DEADLINE_S: Final = 240.0
_POLL_S: Final = 0.1
#: What workers say while a rebalance is under way; the request is right, and is put again.
_REBALANCING: Final = (
    "momentarily due to",
    "conflicting operation (e.g. worker rebalance)",
    "because a rebalance is expected",
)

#: Status, headers with small names, body.
Exchanged = tuple[int, dict[str, str], str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session is played; ``names`` stand for texts that differ by run, the longest texts first."""

    url: str
    names: Mapping[str, str]
    session_key: Callable[[], bytes]

    @property
    def netloc(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc


def play(session: Session, place: Place, patience_s: float) -> Iterator[tuple[str, Answer]]:
    """The answer to each request by its name, of status 0 if a condition did not come in ``patience_s``."""
    for ask in session.asks:
        yield ask.name, _answer(ask, place, patience_s)


def _answer(ask: Ask, place: Place, patience_s: float) -> Answer:
    if ask.before is None:
        return put_question(ask, place)
    found = await_until(ask.before, place, patience_s)
    if isinstance(found, str):
        return Answer(0, {}, found)
    if (ask.method, ask.path) == ("GET", ask.before.path):
        # What was asked until it was so; asked once more, it might have changed.
        return normalise(*found, place.names, ask.view)
    return put_question(ask, place)


def put_question(ask: Ask, place: Place) -> Answer:
    deadline = time.monotonic() + _REBALANCE_DEADLINE_S
    while True:
        status, headers, text = exchange(ask, place)
        if status not in (409, 500) or not any(part in text for part in _REBALANCING) or time.monotonic() > deadline:
            return normalise(status, headers, text, place.names, ask.view)
        time.sleep(_POLL_S)


def await_until(until: Until, place: Place, patience_s: float) -> Exchanged | str:
    """The answer that met the condition; a sentence where none did."""
    ask = Ask("until", "GET", until.path)
    wanted = json.loads(_filled(json.dumps(until.body), place))
    deadline = time.monotonic() + patience_s
    while True:
        status, headers, text = exchange(ask, place)
        if status == until.status and (wanted is None or _is_part(wanted, _json_or_none(text))):
            return status, headers, text
        if time.monotonic() > deadline:
            return f"GET {until.path} was not answered by {until.status} {wanted}, but by {status} {text[:500]}"
        time.sleep(_POLL_S)


def exchange(ask: Ask, place: Place) -> Exchanged:
    """One request on a connection of its own. Status 0: the other side closed the connection without an answer."""
    parts = urllib.parse.urlsplit(place.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_TIMEOUT_S) as connection:
        connection.sendall(_request(ask, place))
        response = http.client.HTTPResponse(connection, method=ask.method)
        try:
            response.begin()
            body = response.read()
        except (http.client.HTTPException, ConnectionError) as error:
            return 0, {}, f"no answer: {type(error).__name__}"
        headers = {name.lower(): value for name, value in response.getheaders()}
        response.close()
    return response.status, headers, body.decode("utf-8", "replace")


def _request(ask: Ask, place: Place) -> bytes:
    body = _body(ask.body, place)
    headers = {"Host": place.netloc, "Connection": "close", "Accept": "*/*", **ask.headers}
    if body is not None:
        headers["Content-Length"] = str(len(body))
        if ask.content_type is not None:
            headers["Content-Type"] = ask.content_type
    elif ask.method in ("POST", "PUT", "PATCH"):
        headers["Content-Length"] = "0"
    if ask.signed:
        headers |= _signature(body or b"", place.session_key())
    lines = [f"{ask.method} {_filled(ask.path, place)} HTTP/1.1", *(f"{key}: {headers[key]}" for key in headers)]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def _signature(body: bytes, key: bytes) -> dict[str, str]:
    mac = base64.b64encode(hmac.new(key, body, hashlib.sha256).digest()).decode()
    return {"X-Connect-Authorization": mac, "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}


def _body(body: Any, place: Place) -> bytes | None:
    if body is NOTHING:
        return None
    if isinstance(body, bytes):
        return body
    return _filled(json.dumps(body, ensure_ascii=False), place).encode()


def _filled(text: str, place: Place) -> str:
    for name, value in place.names.items():
        text = text.replace(name, value)
    return text


def _is_part(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, dict) and all(_is_part(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_is_part, wanted, found))
    return bool(wanted == found)


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
