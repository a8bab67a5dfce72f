"""Two real workers of a group whose users have passwords, tokens and certificates, over TLS, and a hostile caller."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwk, jwt

from connect.embedded import cluster_config
from tests.kit import numbers
from tests.kit.brokers import KafkaCluster
from tests.kit.certificates import Party, make_party
from tests.kit.processes import soonest_s, wait_until
from tests.kit.topics import make_topics
from tests.kit.workers import PROGRAMS, OurWorker, worker_properties

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ISSUER = "https://issuer.example"
SOCKETS = 2000


def pem_file(folder: Path, name: str, party: Party) -> str:
    file = folder / f"{name}.pem"
    file.write_text(party.key_pem() + party.pem)
    file.chmod(0o600)
    return str(file)


def test_users_of_a_group_and_a_hostile_caller(us: KafkaCluster, tmp_path: Path) -> None:
    authority, stranger = make_party("authority", None), make_party("stranger", None)
    ca = tmp_path / "ca.pem"
    ca.write_text(authority.pem)
    users = tmp_path / "users.properties"
    users.write_text("ann=a-pass\nvera=v-pass\n")
    users.chmod(0o600)
    key = jwk.RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    group = f"users-{uuid.uuid4().hex[:8]}"
    secured = {
        "rest.auth.basic.file": str(users),
        "rest.auth.jwt.jwks.url": keys.as_uri(),
        "rest.auth.jwt.expected.issuer": ISSUER,
        "rest.auth.jwt.expected.audience": "connect",
        "rest.auth.admins": "User:ann; User:CN=carl",
        "rest.auth.operators": "User:otto",
        "rest.auth.viewers": "User:vera",
        "listeners.https.ssl.keystore.type": "PEM",
        "listeners.https.ssl.keystore.location": pem_file(
            tmp_path, "worker", make_party("worker", authority, "localhost")
        ),
        "listeners.https.ssl.truststore.type": "PEM",
        "listeners.https.ssl.truststore.location": str(ca),
        "listeners.https.ssl.client.auth": "requested",
    }
    asyncio.run(make_topics(us.bootstrap, {f"{group}-out": 1}))
    variables = numbers.environment(tmp_path, "one")
    workers = []
    for name in ("one", "two"):
        api, probed = cluster_config.choose(2)
        urls = {"listeners": f"https://127.0.0.1:{api}", "metrics.listeners": f"http://127.0.0.1:{probed}"}
        properties = worker_properties(us.bootstrap, group, {**secured, **urls})
        workers.append((OurWorker(properties, tmp_path, name, variables), api, f"http://127.0.0.1:{probed}"))
    (one, port, health), (two, other, other_health) = workers

    def token(sub: str) -> str:
        claims = {"iss": ISSUER, "aud": "connect", "exp": int(time.time()) + 600, "sub": sub}
        return f"Bearer {jwt.encode({'alg': 'RS256', 'kid': '1'}, claims, key)}"

    def client(party: Party | None = None) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(ca))
        if party is not None:
            context.load_cert_chain(pem_file(tmp_path, "client", party))
        return httpx.Client(verify=context, trust_env=False, timeout=60)

    def count() -> float:
        text = httpx.get(f"{health}/metrics", trust_env=False, timeout=60).text
        text += httpx.get(f"{other_health}/metrics", trust_env=False, timeout=60).text
        lines = [
            line
            for line in text.splitlines()
            if line.startswith("kafka_connect_source_task_metrics_source_record_write_total{")
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def settled(ask: Callable[[], httpx.Response]) -> httpx.Response:
        """The answer once no rebalance refuses the request."""

        def answered() -> httpx.Response | None:
            return None if (answer := ask()).status_code == 409 else answer

        answer = wait_until(answered, 240, "no rebalance refuses the request")
        assert answer is not None
        return answer

    def is_healthy(url: str) -> bool:
        try:
            return httpx.get(f"{url}/health", trust_env=False, timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    with one, two, client() as anyone:
        for worker, url in ((one, health), (two, other_health)):
            wait_until(lambda: is_healthy(url), 240, f"{url} is healthy; {worker.tail()}")  # noqa: B023
        base, elsewhere = f"https://127.0.0.1:{port}", f"https://127.0.0.1:{other}"
        config: dict[str, Any] = {
            "connector.class": numbers.CLASS, "tasks.max": "1", "topic": f"{group}-out", "every.ms": "20",
            "producer.override.ssl.key.password": "hunter2",
        }  # fmt: skip
        # Both workers: one of them is not the leader and forwards.
        for place in (base, elsewhere):
            put = partial(anyone.put, f"{place}/connectors/n/config", json=config, auth=("ann", "a-pass"))
            created = settled(put)
            assert created.status_code in (200, 201), created.text
        assert anyone.get(f"{base}/connectors").status_code == 401
        assert anyone.get(f"{base}/connectors", auth=("ann", "wrong")).status_code == 401
        assert anyone.put(f"{base}/connectors/n/fence").status_code == 400  # it has no signature
        shown = settled(partial(anyone.get, f"{base}/connectors/n/config", auth=("vera", "v-pass"))).json()
        assert shown["producer.override.ssl.key.password"] == "[hidden]"
        assert anyone.put(f"{base}/connectors/n/pause", auth=("vera", "v-pass")).status_code == 403
        for place in (base, elsewhere):
            restarted = anyone.post(
                f"{place}/connectors/n/restart?includeTasks=true", headers={"authorization": token("otto")}
            )
            assert restarted.status_code in (202, 409), restarted.text
        assert anyone.delete(f"{base}/connectors/n", headers={"authorization": token("otto")}).status_code == 403
        # A hidden password that comes back is the stored one.
        with client(make_party("carl", authority, "carl")) as carl:
            for place in (base, elsewhere):
                again = settled(partial(carl.put, f"{place}/connectors/n/config", json=shown))
                assert again.status_code == 200, again.text
                stored = settled(partial(carl.get, f"{place}/connectors/n/config")).json()
                assert stored["producer.override.ssl.key.password"] == "hunter2"
        with client(make_party("carl", stranger, "carl")) as impostor, pytest.raises(httpx.TransportError):
            impostor.get(f"{base}/connectors")

        variables = {
            **os.environ, "HELIOGRAPH_URL": base, "HELIOGRAPH_CA_FILE": str(ca),
            "HELIOGRAPH_USER": "vera", "HELIOGRAPH_PASSWORD": "v-pass",
        }  # fmt: skip
        listed = subprocess.run(
            [PROGRAMS / "heliograph", "connectors", "list"], env=variables, capture_output=True, text=True, check=False
        )
        assert listed.returncode == 0 and "n " in listed.stdout, listed.stderr

        sockets = [socket.socket() for _ in range(SOCKETS)]
        try:
            for number, each in enumerate(sockets):
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port if number % 2 else other))
            before = count()
            assert soonest_s(lambda: is_healthy(health)) < 1.0
            asked = partial(anyone.get, f"{base}/health", auth=("vera", "v-pass"))
            assert soonest_s(lambda: asked().status_code == 200) < 1.0
            wait_until(lambda: count() > before, 60, f"the copying goes on; {one.tail()}; {two.tail()}")
        finally:
            for each in sockets:
                each.close()
        for worker in (one, two):
            assert worker.stop() == 0
            assert not any(secret in worker.log.read_text() for secret in ("a-pass", "v-pass", "hunter2"))
