"""Secrets in every setting that can hold one, and all that others on the machine, in the group or at Spark can see."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connect.core.config.client_settings import REFUSED_SECURITY
from connect.core.config.security_settings import SECRETS
from connect.embedded.brokers import KafkaCluster
from tests.kit.copies import await_records, send
from tests.kit.leaks import seen_of_processes
from tests.kit.mirror import SMALL, Mirror, with_rest
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]

TOPIC, RECORDS = "planted", 1000
DEADLINE_S = 600.0
JAAS = "sasl.jaas.config"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
#: Each client of the flow from us to eu, and of the one that is not let in.
CLIENTS = [f"{alias}.{kind}" for alias in ("us", "shut", "eu") for kind in ("", "producer.", "consumer.", "admin.")]
CLIENTS += ["", "us->eu.producer.override.", "us->eu.source.consumer.", "us->eu.target.admin.", "listeners.https."]
OF_SPARK = ("spark.authenticate.secret", "spark.ssl.keyPassword", "spark.hadoop.fs.s3a.secret.key")
OTHERS = ("us->eu.transforms.x.password", "us->eu.value.converter.basic.auth.user.info")


QUERY = "SELECT upper(string(value)) AS value FROM records"


class Planted:
    """Settings with secrets: of the file, each by a reference to a variable; of REST, as they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.secrets: dict[bytes, str] = {}
        self.properties: dict[str, str] = {}
        names = [name for name in SECRETS if name not in REFUSED_SECURITY]
        for client in CLIENTS:
            for name in names:
                self.plant(client + name)
        for key in (*OF_SPARK, *OTHERS):
            self.plant(key)
        self.literal = {
            key: self.secret(key).decode()
            for key in (*(f"producer.override.{name}" for name in names), "transforms.x.password", "x.api.key")
        }

    def secret(self, key: str) -> bytes:
        secret = f"planted-{len(self.secrets)}-Zq7".encode()
        self.secrets[secret] = key
        return secret

    def plant(self, key: str) -> None:
        number = len(self.secrets)
        secret = self.secret(key).decode()
        self._monkeypatch.setenv(f"PLANTED_{number}", secret)
        reference = f"${{env:PLANTED_{number}}}"
        if not key.endswith(JAAS):
            self.properties[key] = reference
        elif "us->eu" in key:
            self.properties[key] = f'{OAUTH} clientId="me" clientSecret="{reference}";'
        else:
            self.properties[key] = f'{PLAIN} username="me" password="{reference}";'


def seen(mirror: Mirror, folders: Sequence[Path], rest: str) -> Iterator[tuple[str, bytes]]:
    yield from seen_of_processes(mirror)
    for file in (file for folder in folders for file in folder.rglob("*")):
        with contextlib.suppress(OSError):
            if file.is_file() and file != mirror.log_file:
                yield f"file {file}", file.read_bytes()
    for path in ("/", "/health", "/metrics", *(f"/{flow}{each}" for flow in ("us/eu", "shut/eu") for each in PATHS)):
        yield f"REST {path}", answer(rest + path)


PATHS = (
    "/connectors?expand=info&expand=status",
    "/connectors/MirrorSourceConnector/config",
    "/connectors/MirrorSourceConnector/status",
    "/connectors/MirrorSourceConnector/tasks",
    "/connectors/MirrorSourceConnector/offsets",
    "/connectors/MirrorSourceConnector/lag",
    "/connectors/MirrorSourceConnector/audit?top=1000",
    "/connector-plugins",
    "/admin/loggers",
)


def answer(url: str, user: str = "vera:v-pass", config: dict[str, str] | None = None) -> bytes:
    """Return the answer to a user's request; with a ``config`` to a PUT."""
    headers = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}", "Content-Type": "application/json"}
    data = None if config is None else json.dumps(config).encode()
    request = urllib.request.Request(url, data, headers, method="GET" if config is None else "PUT")
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return bytes(found.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.read()


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The mirror's temporary folder; its name is short, as the paths of Spark's sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="hp-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def test_a_planted_secret_is_seen_nowhere(
    us: KafkaCluster, eu: KafkaCluster, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(make_topics(us.bootstrap, {TOPIC: 2}))
    asyncio.run(send(us.bootstrap, TOPIC, (b"%d" % number for number in range(RECORDS)), [0, 1]))
    (events := tmp_path / "events").mkdir()
    users = tmp_path.parent / f"{tmp_path.name}.users"
    users.write_text("ann=a-pass\nvera=v-pass\n")
    users.chmod(0o600)
    planted, rest = Planted(monkeypatch), with_rest()
    properties = {
        **SMALL,
        **rest,
        **planted.properties,
        "clusters": "us, shut, eu",
        "config.providers": "env",
        "config.providers.env.class": "env",
        "us.bootstrap.servers": us.bootstrap,
        "eu.bootstrap.servers": eu.bootstrap,
        # Its listener does not use SASL: what it says of that is in the log, a trace and a status.
        "shut.bootstrap.servers": us.bootstrap,
        "shut.security.protocol": "SASL_PLAINTEXT",
        "shut.sasl.mechanism": "PLAIN",
        "us->eu.enabled": "true",
        "shut->eu.enabled": "true",
        "us->eu.topics": TOPIC,
        "us->eu.transform.sql": QUERY,
        "audit.enable": "true",
        "rest.auth.basic.file": str(users),
        "rest.auth.admins": "User:ann",
        "rest.auth.viewers": "User:vera",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    program = str(Path(sys.executable).parent / "connect-mirror-maker")
    with Mirror(properties, tmp_path, [program, "--log-level", "DEBUG"]) as mirror:
        mirror.start()
        await_records(mirror, eu.bootstrap, f"us.{TOPIC}", RECORDS, DEADLINE_S)
        mirror.await_line(0, ("shut", "does not use SASL"), DEADLINE_S)
        path = f"{rest['listeners']}/us/eu/connectors/MirrorHeartbeatConnector/config"
        config = json.loads(answer(path))
        replaced = answer(path, "ann:a-pass", {**config, **planted.literal})
        assert planted.literal["x.api.key"].encode() in replaced, replaced
        assert json.loads(answer(path))["x.api.key"] == "[hidden]"
        found = list(seen(mirror, (tmp_path, scratch), rest["listeners"]))
        places = {place.partition(" of ")[0] for place, _ in found}
        assert {"the log", "arguments", "environment", "an open file"} <= places
        assert any(place.startswith(f"file {events}") for place, _ in found), "Spark has a log of events"
        references = [place for place, content in found if b"${env:PLANTED_" in content]
        assert any(place.startswith("REST") for place in references), "REST shows references"
        plans = [content for place, content in found if place.startswith(f"file {events}") and b"upper(" in content]
        assert plans, "the plan of the query is in Spark's log of events"
        for place, content in found:
            assert [key for secret, key in planted.secrets.items() if secret in content] == [], place
        assert mirror.stop() == 0
    assert not any(secret in mirror.log_file.read_bytes() for secret in planted.secrets)
