"""Who may do what: the rules, and a server whose users have passwords, tokens and certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from joserfc import jwk, jwt

from connect.core.config.config_def import ConfigDef
from connect.core.config.rest_settings import REST, check_access
from connect.core.config.security_settings import hidden
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError
from connect.core.herder_api import BadRequest, Forbidden, ForwardedRequest, NotLeader, NotReady
from rest import access
from rest.authentication import Authenticator, PasswordFile, file_of_login_config
from rest.rest_config import RestSettings, RestTls
from tests.kit.certificates import Party, make_party
from tests.kit.members import until
from tests.kit.raw_http import Raw, ask
from tests.kit.rest_herder import DictHerder
from tests.kit.work import WORKER
from tests.unit.rest.conftest import running_server

ISSUER = "https://issuer.example"
LISTS = {
    "rest.auth.admins": "User:ann; Group:root; User:CN=ann",
    "rest.auth.operators": "User:otto; User:CN=otto",
    "rest.auth.viewers": "User:vera; User:CN=vera",
}


ROLES = {
    access.Role.VIEW: ("GET /connectors/a/config", "HEAD /metrics", "GET /admin/loggers"),
    access.Role.OPERATE: (
        *("PUT /connectors/a/pause", "PUT /connectors/a/resume", "PUT /connectors/a/stop"),
        *("POST /connectors/a/restart", "POST /connectors/a/tasks/0/restart"),
    ),
    access.Role.ADMIN: (
        *("POST /connectors", "PUT /connectors/a/config", "PATCH /connectors/a/config", "DELETE /connectors/a"),
        *("PATCH /connectors/a/offsets", "DELETE /connectors/a/offsets", "PUT /connectors/a/tasks"),
        *("PUT /connector-plugins/X/config/validate", "PUT /admin/loggers/connect"),
        *("BREW /connectors/a/pause", "PUT /connectors/a/paus%65"),
    ),
    access.Role.NONE: ("POST /connectors/a/tasks", "PUT /connectors/a/fence"),
}


@pytest.mark.parametrize(("line", "role"), [(line, role) for role, lines in ROLES.items() for line in lines])
def test_the_role_that_a_request_needs(line: str, role: access.Role) -> None:
    method, path = line.split()
    assert access.needed_role(method, path) is role


def test_a_flow_is_no_part_of_the_rules() -> None:
    assert access.below_flow("/us/eu/connectors/a/tasks") == "/connectors/a/tasks"
    assert (access.below_flow("/health"), access.below_flow("/us/eu")) == ("/health", "/")


def test_hosts_and_origins() -> None:
    names = frozenset({"localhost", "worker.example"})
    for host in (None, "localhost:8083", "Worker.Example.", "10.0.0.1:8083", "[::1]:8083"):
        assert access.is_allowed_host(host, names), host
    for host in ("evil.example", "evil.example:8083", "localhost.evil.example", "", "[evil]:1"):
        assert not access.is_allowed_host(host, names), host
    assert access.is_allowed_host("evil.example", frozenset({"*"}))
    assert access.is_own_origin("https://w:8083", "w:8083")
    assert (
        not access.is_own_origin("null", "w")
        and not access.is_own_origin("http://w.evil", "w")
        and not access.is_own_origin("null", None)
    )


JWT = {"jwks.url": "https://i/keys", "expected.issuer": "i", "expected.audience": "a"}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"listeners": "http://:8083"}, "listeners = http://:8083 serves other machines .* rest.insecure = true"),
        ({"listeners": "http://10.0.0.1:8083"}, "serves other machines"),
        ({"admin.listeners": "http://:8084"}, "admin.listeners = http://:8084 serves"),
        ({"listeners": "https://:8443", "ssl.client.auth": "required"}, ""),
        ({"listeners": "http://:8083", "ssl.client.auth": "required"}, "serves other machines"),
        ({"listeners": "https://:1", "ssl.client.auth": "required", "listeners.https.ssl.key.password": "x"}, "serves"),
        ({"listeners": "http://:8083", "rest.insecure": "true"}, ""),
        ({"listeners": "http://:8083", "rest.auth.basic.file": "users"}, ""),
        ({"metrics.listeners": "http://:9404"}, ""),
        ({"rest.extension.classes": "com.example.Auth"}, "Java class"),
        ({"rest.auth.jwt.jwks.url": "https://i/keys"}, "rest.auth.jwt.expected.issuer is missing"),
        ({f"rest.auth.jwt.{key}": value for key, value in JWT.items()}, "rest.auth.admins is missing"),
        ({"rest.auth.admins": "ann"}, "write a principal as User:name"),
    ],
)
def test_a_worker_that_would_serve_everyone_is_refused(changes: dict[str, str], refused: str) -> None:
    if not refused:
        WorkerConfig.parse({**WORKER, **changes})
        return
    with pytest.raises(ConfigError, match=refused):
        WorkerConfig.parse({**WORKER, **changes})


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def users_file(folder: Path, text: str = "ann=a-pass\notto=o-pass\nvera=v-pass\nzoe=z-pass\n") -> str:
    file = folder / "users.properties"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


@asynccontextmanager
async def serving(properties: dict[str, str], tls: RestTls | None = None) -> AsyncIterator[tuple[int, DictHerder]]:
    values = REST.parse({"listeners": "http://127.0.0.1:0", **properties})
    check_access(values, properties)
    herder = DictHerder()
    herder.add("a", **{"sasl.jaas.config": "hunter2", "db.password": "${env:DB}", "topic": "t"})
    async with running_server(RestSettings.of(values), herder, tls=tls) as server:
        yield server.ports[0], herder


async def statuses(port: int, headers: dict[str, str]) -> tuple[int, int, int]:
    """Of a read, an operation and a change."""
    asks = (("GET", "/connectors"), ("PUT", "/connectors/a/pause"), ("DELETE", "/connectors/b"))
    read, operated, changed = [(await ask(port, *each, headers=headers)).status for each in asks]
    return read, operated, changed


async def test_users_with_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest.authentication._WRONG_PASSWORD_S", 0)
    monkeypatch.setattr("rest.authentication._LOOK_AGAIN_S", 0)
    file = users_file(tmp_path)
    async with serving({"rest.auth.basic.file": file, **LISTS}) as (port, herder):
        odd = ({"Authorization": value} for value in ("Basic ?", "Bearer x"))
        for headers in ({}, basic("ann", "wrong"), basic("eve", "x"), *odd):
            answer = await ask(port, "GET", "/connectors", headers=headers)
            assert (answer.status, answer.json["message"]) == (401, "User cannot access the resource.")
            assert answer.header("www-authenticate") == 'Basic realm="Kafka Connect"'
        assert not herder.done
        assert await statuses(port, basic("vera", "v-pass")) == (200, 403, 403)
        assert await statuses(port, basic("otto", "o-pass")) == (200, 202, 403)
        assert await statuses(port, basic("ann", "a-pass")) == (200, 202, 404)
        assert await statuses(port, basic("zoe", "z-pass")) == (403, 403, 403)
        # Requests between workers carry a signature, which the herder verifies.
        assert (await ask(port, "PUT", "/connectors/a/fence")).status not in (401, 403)
        users_file(tmp_path, "ann=new\n")
        assert (await ask(port, "GET", "/connectors", headers=basic("ann", "a-pass"))).status == 401
        assert (await ask(port, "GET", "/connectors", headers=basic("ann", "new"))).status == 200


async def test_wrong_passwords_do_not_hold_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest.authentication._WRONG_PASSWORD_S", 30)
    verify, wrong = PasswordFile.verify, asyncio.Semaphore(0)

    async def counted(file: PasswordFile, user: str, password: str) -> bool:
        if password == "x":
            wrong.release()
        return await verify(file, user, password)

    monkeypatch.setattr(PasswordFile, "verify", counted)
    settings = {"rest.auth.basic.file": users_file(tmp_path), "rest.max.connections.per.address": "4"}
    async with serving(settings) as (port, _):
        request = f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('ann', 'x')['Authorization']}\r\n\r\n"
        with contextlib.ExitStack() as closing:
            for _ in range(4):
                one = closing.enter_context(socket.create_connection(("127.0.0.1", port)))
                # The second one is not read before the answer to the first.
                one.sendall(request.encode() * 2)
            async with asyncio.timeout(60):
                for _ in range(4):
                    await wrong.acquire()
                assert (await ask(port, "GET", "/health", headers=basic("ann", "a-pass"))).status == 200


@pytest.mark.parametrize(
    "key",
    ["value.converter.basic.auth.user.info", "aws.secret.access.key", "s3.secret.key", "db.passwd", "client.api.key"],
)
def test_keys_that_hold_secrets(key: str) -> None:
    assert hidden({key: "x", "message.key": "y"}, ConfigDef()) == {key: "[hidden]", "message.key": "y"}


async def test_only_an_admin_sees_passwords(tmp_path: Path) -> None:
    async with serving({"rest.auth.basic.file": users_file(tmp_path), **LISTS}) as (port, _):
        for path in ("/connectors/a", "/connectors/a/config", "/connectors/a/tasks", "/connectors?expand=info"):
            seen: Raw = await ask(port, "GET", path, headers=basic("otto", "o-pass"))
            assert seen.status == 200 and b"hunter2" not in seen.body, path
        config = (await ask(port, "GET", "/connectors/a/config", headers=basic("vera", "v-pass"))).json
        assert (config["sasl.jaas.config"], config["db.password"], config["topic"]) == ("[hidden]", "${env:DB}", "t")
        assert b"hunter2" in (await ask(port, "GET", "/connectors/a", headers=basic("ann", "a-pass"))).body


async def test_each_request_is_logged_with_user_and_status(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rest.asgi_entry")
    async with serving({"rest.auth.basic.file": users_file(tmp_path), **LISTS}) as (port, _):
        for method, user in (("GET", "vera"), ("PUT", "vera"), ("PUT", "otto")):
            await ask(port, method, "/connectors/a/pause", headers=basic(user, f"{user[0]}-pass"))
        await ask(port, "PUT", "/connectors/a/pause")
        await ask(port, "PUT", "/" + "a" * 9_000)
    assert max(len(each.message) for each in caplog.records) < 400
    lines = [(each.levelname, each.message.split(" in ")[0]) for each in caplog.records if " ms" in each.message]
    assert lines == [
        ("DEBUG", "127.0.0.1 vera GET /connectors/a/pause: 405"),
        ("INFO", "127.0.0.1 vera PUT /connectors/a/pause: 403"),
        ("INFO", "127.0.0.1 otto PUT /connectors/a/pause: 202"),
        ("INFO", "127.0.0.1 - PUT /connectors/a/pause: 401"),
        ("INFO", f"127.0.0.1 - PUT /{'a' * 295}...: 401"),
    ]


async def test_javas_extension_and_its_login_file(tmp_path: Path) -> None:
    login = tmp_path / "jaas.conf"
    module = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
    login.write_text(
        f'Other {{ x.Y required; }};\nKafkaConnect {{\n {module} required\n file="{users_file(tmp_path)}";\n}};\n'
    )
    extension = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
    java = {"rest.extension.classes": extension, "java.security.auth.login.config": str(login)}
    async with serving(java) as (port, _):
        assert (await ask(port, "GET", "/connectors")).status == 401
        assert await statuses(port, basic("zoe", "z-pass")) == (200, 202, 404)
    login.write_text("KafkaClient { x.Y required; };")
    with pytest.raises(ConfigError, match="no entry KafkaConnect"):
        file_of_login_config(str(login))
    with pytest.raises(ConfigError, match=r"needs java\.security.auth.login.config"):
        WorkerConfig.parse({**WORKER, "rest.extension.classes": extension})


@pytest.mark.parametrize(
    ("lines", "message"), [("# none\n", "has no users"), ("ann=a\nzoe=\n", "has no password for zoe")]
)
def test_a_file_without_users_or_passwords_lets_no_one_in(tmp_path: Path, lines: str, message: str) -> None:
    settings = RestSettings.of(REST.parse({"rest.auth.basic.file": users_file(tmp_path, lines)}))
    with pytest.raises(ConfigError, match=message):
        Authenticator(settings.access, by_certificate=False)


class Issuer:
    """Serves a JWKS, and counts how often it is asked."""

    def __init__(self) -> None:
        self.key = jwk.RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
        self.asked = 0
        self.status = 200
        self.answers = Event()
        self.answers.set()

    @contextmanager
    def url(self) -> Iterator[str]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.answers.wait(60)
                body = json.dumps({"keys": [issuer.key.as_dict(private=False)]}).encode()
                self.send_response(issuer.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/keys"
        finally:
            server.shutdown()
            server.server_close()

    def token(self, sub: str, key: Any = None, **claims: Any) -> dict[str, str]:
        found = {"iss": ISSUER, "aud": ["connect", "x"], "exp": int(time.time()) + 600, "sub": sub, **claims}
        given = {name: value for name, value in found.items() if value is not None}
        key = key or self.key
        text = jwt.encode({"alg": "RS256", "kid": key.kid or "1"}, given, key)
        return {"Authorization": f"Bearer {text}"}


def of_issuer(url: str) -> dict[str, str]:
    return {
        **LISTS,
        "rest.auth.jwt.jwks.url": url,
        "rest.auth.jwt.expected.issuer": ISSUER,
        "rest.auth.jwt.expected.audience": "connect",
        "rest.auth.jwt.groups.claim": "realm.roles",
    }


async def test_bearer_tokens() -> None:
    issuer = Issuer()
    with issuer.url() as url:
        async with serving(of_issuer(url)) as (port, _):
            assert await statuses(port, issuer.token("vera")) == (200, 403, 403)
            assert await statuses(port, issuer.token("x", realm={"roles": ["root"]})) == (200, 202, 404)
            for odd in ("none", 5, {"root": 1}, [["root"]]):
                assert await statuses(port, issuer.token("x", realm={"roles": odd})) == (403, 403, 403)
            claims = {"iss": ISSUER, "aud": "connect", "exp": int(time.time()) + 600, "sub": "ann"}
            confused = f"{_part({'alg': 'HS256', 'kid': '1'})}.{_part(claims)}"
            mac = hmac.digest(issuer.key.as_pem(private=False), confused.encode(), "sha256")
            confused += "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
            other = jwk.RSAKey.generate_key(2048, {"kid": "1"})
            bad = {
                "another issuer": issuer.token("ann", iss="https://evil.example"),
                "another audience": issuer.token("ann", aud="y"),
                "no audience": issuer.token("ann", aud=None),
                "expired": issuer.token("ann", exp=int(time.time()) - 120),
                "no end": issuer.token("ann", exp=None),
                "not yet": issuer.token("ann", nbf=int(time.time()) + 600),
                "no user": issuer.token(""),
                "signed by another key": issuer.token("ann", other),
                "signed by HMAC with the public key": {"Authorization": f"Bearer {confused}"},
                "no signature": {"Authorization": f"Bearer {_part({'alg': 'none'})}.{_part({'sub': 'ann'})}."},
                "nested": {"Authorization": f"Bearer {_part('[' * 3000)}.x.y"},
                "huge": {"Authorization": "Bearer " + "a" * 20_000},
                "no token": {"Authorization": "Bearer "},
            }
            for what, headers in bad.items():
                answer = await ask(port, "GET", "/connectors", headers=headers)
                assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer"), what
            assert issuer.asked == 1


def _part(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


async def test_keys_are_read_again_and_redirects_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    issuer = Issuer()
    with issuer.url() as url:
        issuer.status = 302
        async with serving(of_issuer(url)) as (port, _):
            assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 503
            assert issuer.asked == 1
            issuer.status = 200
            monkeypatch.setattr("rest.authentication._JWKS_AGAIN_S", 0)
            assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200
            issuer.key = jwk.RSAKey.generate_key(2048, {"kid": "2", "use": "sig"})
            assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200
            # While it does not answer, the keys remain.
            issuer.status = 500
            assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [issuer.key.as_dict(private=False)]}))
    async with serving(of_issuer(keys.as_uri())) as (port, _):
        assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200


async def test_keys_that_are_to_be_used_for_weeks_are_read_again_before_they_count_as_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = Issuer()
    with issuer.url() as url:
        async with serving({**of_issuer(url), "rest.auth.jwt.jwks.refresh.ms": "2147483647"}) as (port, _):
            for later_s in (0, 25 * 3600):
                later = SimpleNamespace(monotonic=lambda later_s=later_s: time.monotonic() + later_s)
                monkeypatch.setattr("rest.authentication.time", later)
                assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200


@pytest.mark.parametrize(
    ("later_s", "wait_s"), [(0, 60), (2 * 3600, 0.01)], ids=["known keys", "keys to be read again"]
)
async def test_an_issuer_that_hangs_holds_up_no_token_whose_key_is_known(
    monkeypatch: pytest.MonkeyPatch, later_s: int, wait_s: float
) -> None:
    monkeypatch.setattr("rest.authentication._JWKS_AGAIN_S", 0)
    monkeypatch.setattr("rest.authentication._JWKS_WAIT_S", wait_s)
    monkeypatch.setattr("rest.authentication._JWKS_TIMEOUT_S", 60)
    issuer, unknown = Issuer(), jwk.RSAKey.generate_key(2048, {"kid": "2", "use": "sig"})
    with issuer.url() as url:
        async with serving(of_issuer(url)) as (port, _):
            assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200
            issuer.answers.clear()
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s)
            monkeypatch.setattr("rest.authentication.time", later)
            headers = issuer.token("ann", unknown)
            stranger = asyncio.ensure_future(ask(port, "GET", "/connectors", headers=headers))
            await until(lambda: issuer.asked == 2, "the issuer is asked for the unknown key")
            async with asyncio.timeout(20):
                assert (await ask(port, "GET", "/connectors", headers=issuer.token("ann"))).status == 200
            assert not stranger.done()
            issuer.answers.set()
            assert (await stranger).status == 401


async def test_client_certificates(tmp_path: Path) -> None:
    authority, stranger = make_party("authority", None), make_party("stranger", None)
    server = make_party("worker", authority, "127.0.0.1")

    def server_context(prefix: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_pem(tmp_path, server))
        context.load_verify_locations(cadata=authority.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def context_of(name: str, issuer: Party) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=authority.pem)
        if name:
            context.load_cert_chain(_pem(tmp_path, make_party(name, issuer, name)))
        return context

    async def status(method: str, path: str, name: str, issuer: Party) -> int:
        async with httpx.AsyncClient(verify=context_of(name, issuer), trust_env=False) as client:
            return (await client.request(method, f"https://127.0.0.1:{port}{path}")).status_code

    properties = {**LISTS, "listeners": "https://127.0.0.1:0", "ssl.client.auth": "requested"}
    tls = RestTls(server_context, lambda: ssl.create_default_context(cadata=authority.pem))
    async with serving(properties, tls) as (port, _):
        assert await status("GET", "/connectors", "", authority) == 401
        assert await status("GET", "/connectors", "vera", authority) == 200
        assert await status("PUT", "/connectors/a/pause", "vera", authority) == 403
        assert await status("PUT", "/connectors/a/pause", "otto", authority) == 202
        assert await status("DELETE", "/connectors/b", "ann", authority) == 404
        assert await status("GET", "/connectors", "eve", authority) == 403
        with pytest.raises(httpx.TransportError):
            await status("GET", "/connectors", "ann", stranger)


def _pem(folder: Path, party: Party) -> Path:
    file = folder / "party.pem"
    file.write_text(party.key_pem() + party.pem)
    return file


async def test_pages_of_other_sites_and_other_names() -> None:
    async with serving({"access.control.allow.origin": "https://ui[.]example"}) as (port, herder):
        for origin in ("https://evil.example", "null", "https://ui.example.evil"):
            refused = await ask(port, "POST", "/connectors/a/restart", headers={"Origin": origin})
            assert refused.status == 403, origin
        rebound = await ask(port, "GET", "/connectors", headers={"Host": "evil.example"})
        assert rebound.status == 403 and not herder.done
        for origin in ("https://ui.example", f"http://127.0.0.1:{port}"):
            assert (await ask(port, "POST", "/connectors/a/restart", headers={"Origin": origin})).status == 204


async def test_health_and_metrics_have_a_listener_of_their_own(tmp_path: Path) -> None:
    properties = {"rest.auth.basic.file": users_file(tmp_path), "metrics.listeners": "http://127.0.0.1:0"}
    values = REST.parse({"listeners": "http://127.0.0.1:0", **properties})
    async with running_server(RestSettings.of(values), DictHerder()) as server:
        (port,) = server.metrics_ports
        assert (await ask(port, "GET", "/health")).json["status"] == "healthy"
        assert (await ask(port, "GET", "/metrics")).status == 200
        for line in ("GET /connectors", "GET /", "PUT /connectors/a/pause", "GET /admin/loggers"):
            method, path = line.split()
            assert (await ask(port, method, path)).status == 404
        assert (await ask(server.ports[0], "GET", "/health")).status == 401


async def test_a_forwarded_request_is_signed_for_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"rest.auth.basic.file": users_file(tmp_path), **LISTS}
    async with serving(properties) as (port, herder), serving(properties) as (other, leader):
        monkeypatch.setattr("rest.request_handling.is_loopback", lambda host: False)
        herder.refusals["delete_connector"] = NotLeader("Only the leader", f"http://127.0.0.1:{other}/")
        # The password stays here: the leader believes the group's signature.
        answer = await ask(port, "DELETE", "/connectors/a?x=%26", headers=basic("ann", "a-pass"))
        assert answer.status == 204 and not leader.configs
        target = "/connectors/b?forward=true"

        def signed(at_s: float = 0.0, to: int = other) -> dict[str, str]:
            user = access.Caller("ann", access.Role.ADMIN).to_header(time.time() + at_s)
            request = ForwardedRequest("DELETE", f"http://127.0.0.1:{to}{target}", user, b"")
            return {"X-Heliograph-Forwarded": user, **leader.sign_forwarded(request)}

        async def status(headers: Mapping[str, str], path: str = target, body: bytes | None = None) -> int:
            return (await ask(other, "DELETE", path, body, headers=headers)).status

        headers = signed()
        by_eve = {**headers, "X-Heliograph-Forwarded": headers["X-Heliograph-Forwarded"].replace("ann", "eve")}
        assert await status({**headers, "X-Connect-Authorization": "AAAA"}) == 403
        assert await status(headers, "/connectors/c?forward=true") == await status(by_eve) == 403
        assert await status({"X-Heliograph-Forwarded": headers["X-Heliograph-Forwarded"]}) == 401
        assert await status(headers, body=b"x") == await status(signed(to=port)) == 403
        assert await status(signed(-301)) == await status(signed(301)) == 403
        assert await status(headers) == await status(signed(-290)) == await status(signed(290)) == 404
        assert await status(headers) == 403


def test_a_forwarded_request_counts_once_while_it_may_come_again() -> None:
    callers, ann = access.ForwardedCallers(most=2), access.Caller("ann of a/b", access.Role.VIEW)
    first = ann.to_header(1000.0)
    assert callers.caller(first, 1000.0 - access.FORWARDED_WITHIN_S) == ann
    for now_s in (1000.0, 1000.0 + access.FORWARDED_WITHIN_S):
        with pytest.raises(Forbidden):
            callers.caller(first, now_s)
    callers.caller(ann.to_header(1001.0), 1001.0)
    with pytest.raises(NotReady):
        callers.caller(ann.to_header(1002.0), 1002.0)
    callers.caller(ann.to_header(2000.0), 2000.0)
    for odd in ("ADMIN ann", "ADMIN ann x y", "ROOT ann 2000000 a", ""):
        with pytest.raises(BadRequest):
            callers.caller(odd, 2000.0)
