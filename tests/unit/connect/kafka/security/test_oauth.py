"""Tokens: unsecured ones made here, and those that an endpoint gives."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import ConfigError, RetriableError, SecurityError
from connect.kafka.security.aiokafka_sasl import TokensOfAiokafka
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connect.kafka.security.oauth import OAuthSettings, Tokens, tokens_of

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SECRET = "hidden secret"


def settings(jaas: str, **properties: str) -> ConnectionSettings:
    named = {f"sasl.oauthbearer.{key.replace('_', '.')}": value for key, value in properties.items()}
    given = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": jaas,
        **named,
    }
    return connection_settings(given, client_id="x", where="cluster us")


def provider(made: ConnectionSettings) -> Tokens:
    found = made.create_conn_arguments()["sasl_oauth_token_provider"]
    assert isinstance(found, TokensOfAiokafka)
    return tokens_of(found._settings())


def part(token: str, index: int) -> dict[str, object]:
    text = token.split(".")[index]
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


async def test_an_unsecured_token_has_the_claims_of_the_line() -> None:
    made = settings(
        f'{MODULE} unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="1.5" '
        'unsecuredLoginLifetimeSeconds="60";'
    )
    token = provider(ConnectionSettings.from_wire(made.to_wire())).token()
    assert part(token, 0) == {"alg": "none"}
    claims = part(token, 1)
    issued, ends = claims.pop("iat"), claims.pop("exp")
    assert isinstance(issued, int)
    assert ends == issued + 60
    assert claims == {"sub": "alice", "n": 1.5}
    assert token.endswith(".")
    again = made.aiokafka_arguments()["sasl_oauth_token_provider"]
    assert isinstance(again, TokensOfAiokafka)
    assert await again.token() == token, "kept until most of its life is over"


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    handler.log_message = lambda *_: None  # type: ignore[method-assign]
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, name="token endpoint").start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()


class Endpoint(BaseHTTPRequestHandler):
    """Knows one client."""

    asked = 0

    def do_POST(self) -> None:
        Endpoint.asked += 1
        form = self.rfile.read(int(self.headers["Content-Length"]))
        client = base64.b64encode(f"me:{SECRET}".encode()).decode()
        known = self.headers["Authorization"] == f"Basic {client}"
        reported = (
            {"access_token": base64.urlsafe_b64encode(form).decode(), "expires_in": 3600} if known else {"error": "no"}
        )
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps(reported).encode())


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving(Endpoint) as url:
        yield url


def asked_with(token: str) -> str:
    return base64.urlsafe_b64decode(token).decode()


def of(endpoint: str, secret: str) -> OAuthSettings:
    return OAuthSettings(endpoint=endpoint, client_id="me", client_secret=secret, scope="copy")


def test_an_endpoint_gives_a_token_that_is_kept(endpoint: str) -> None:
    made = settings(f'{MODULE} clientId="me" clientSecret="{SECRET}" scope="copy";', token_endpoint_url=endpoint)
    assert made.oauth == of(endpoint, SECRET)
    assert SECRET not in repr(made)
    before = Endpoint.asked
    assert asked_with(provider(made).token()) == "grant_type=client_credentials&scope=copy"
    assert provider(made).token()
    assert Endpoint.asked == before + 1


def test_the_options_of_strimzis_login_lead_to_the_same_endpoint(endpoint: str) -> None:
    made = settings(
        f'{MODULE} oauth.client.id="me" oauth.client.secret="{SECRET}" oauth.token.endpoint.uri="{endpoint}" '
        'oauth.audience="kafka" oauth.http.retries="2";'
    )
    assert SECRET not in repr(made)
    again = ConnectionSettings.from_wire(made.to_wire())
    assert asked_with(provider(again).token()) == "grant_type=client_credentials&audience=kafka"


def test_a_token_that_is_given_and_one_of_a_file(tmp_path: Path) -> None:
    made = settings(f'{MODULE} oauth.access.token="given";')
    assert "given" not in repr(made)
    assert provider(made).token() == "given"
    file = tmp_path / "token"
    in_file = settings(f'{MODULE} oauth.access.token.location="{file}";')
    with pytest.raises(RetriableError, match=r"token file .*/token cannot be read: No such file"):
        provider(in_file).token()
    file.write_text("written\n")
    assert provider(in_file).token() == "written"


def test_who_is_refused_is_told_which_keys_to_look_at(endpoint: str) -> None:
    with pytest.raises(SecurityError, match=r"refuses client id me: HTTP 401; check sasl\.oauthbearer") as caught:
        Tokens(of(endpoint, "guess")).token()
    assert "guess" not in str(caught.value)


def test_an_endpoint_that_does_not_answer_is_asked_again(unused_tcp_port: int) -> None:
    with pytest.raises(RetriableError, match=r"returned no token: .*; check sasl\.oauthbearer\.token\.endpoint\.url"):
        Tokens(of(f"http://127.0.0.1:{unused_tcp_port}/", SECRET)).token()


ENDPOINT_KEY = "sasl.oauthbearer.token.endpoint.url"
NO_ENDPOINTS = ("file:///x", "http://login.example/", "http://127.0.0.1.example/", "https://[x", "https://me:hush@x")


@pytest.mark.parametrize(
    ("jaas", "properties", "key"),
    [
        (f"{MODULE};", {}, ENDPOINT_KEY),
        *((f"{MODULE};", {"token_endpoint_url": url}, ENDPOINT_KEY) for url in NO_ENDPOINTS),
        (f"{MODULE};", {"token_endpoint_url": "https://x"}, "sasl.oauthbearer.client.credentials.client.id"),
        (f'{MODULE} unsecuredLoginNumberClaim_sub="x";', {}, "sasl.jaas.config"),
        (f'{MODULE} oauth.client.id="me";', {}, "sasl.jaas.config"),
        (f'{MODULE} oauth.refresh.token="x";', {}, "sasl.jaas.config"),
    ],
)
def test_what_is_missing_is_named(jaas: str, properties: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(jaas, **properties)
    assert caught.value.key == key
    assert "hush" not in str(caught.value)


def test_http_needs_the_option_that_allows_it() -> None:
    insecure = f'{MODULE} clientId="me" clientSecret="{SECRET}" insecureTokenEndpoint="true";'
    made = settings(insecure, token_endpoint_url="http://login.example/")
    assert made.oauth is not None
    assert made.oauth.endpoint == "http://login.example/"


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """Give the URL of an endpoint with one answer, and the paths that it is asked for."""
    asked: list[str] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # a client that has read enough closes it
                self.wfile.write(body)

        do_GET = do_POST

    with serving(Answering) as url:
        yield url, asked


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_with_the_secret(status: int) -> None:
    with (
        answering(status, b"", Location="/elsewhere") as (url, asked),
        pytest.raises(SecurityError, match=r"redirects, which is not followed") as caught,
    ):
        Tokens(of(url, SECRET)).token()
    assert asked == ["/token"]
    assert SECRET not in str(caught.value)


def test_a_token_is_used_while_it_is_valid_and_its_endpoint_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = SimpleNamespace(now_s=1000.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr("connect.kafka.security.oauth.time", clock)
    with answering(200, b'{"access_token": "x", "expires_in": 1000}') as (url, asked):
        tokens = Tokens(of(url, SECRET))
        assert tokens.token() == "x"
    for clock.now_s in (1850.0, 1900.0, 1949.0):
        assert tokens.token() == "x"
    clock.now_s = 1961.0
    with pytest.raises(RetriableError, match="returned no token"):
        tokens.token()
    assert len(asked) == 1


NO_TOKENS = (b'"x\\u0001host=evil"', b'"two words"', b'["x"]')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"access_token": "x", "more": "' + b"x" * 2**21 + b'"}', "larger than 1048576 bytes"),
        *((b'{"access_token": "x", "expires_in": %s}' % life, "not a positive number") for life in (b"-1", b"NaN")),
        (b'{"access_token": "x", "expires_in": null}', "could not convert"),
        *((b'{"access_token": %s}' % token, "something that is not a token") for token in NO_TOKENS),
        *((body, "returned no token") for body in (b'["x"]', b"<html>")),
    ],
)
def test_an_answer_without_a_usable_token_is_an_error(body: bytes, said: str) -> None:
    with answering(200, body) as (url, _), pytest.raises(RetriableError, match=said):
        Tokens(of(url, SECRET)).token()


@pytest.mark.parametrize(("given", "kept_s"), [("1e999", 86_400), ("1e12", 86_400), ("0.001", 1), ("60", 60)])
def test_a_lifetime_is_limited(given: str, kept_s: float) -> None:
    with answering(200, b'{"access_token": "x", "expires_in": %s}' % given.encode()) as (url, _):
        assert Tokens(of(url, SECRET))._new() == ("x", kept_s)


def test_an_answer_that_drips_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connect.kafka.security.oauth._TIMEOUT_S", 0.2)
    released = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not released.wait(0.05):
                    self.wfile.write(b" ")

    with serving(Dripping) as url:
        try:
            with pytest.raises(RetriableError, match="took longer"):
                Tokens(of(url, SECRET)).token()
        finally:
            released.set()
