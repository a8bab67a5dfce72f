"""TLS of the REST server from a worker's properties, and the metrics of a process without workers."""

from __future__ import annotations

import re
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest

from connect.cli.daemons.worker_process import ProcessMetrics, rest_tls
from connect.core.errors import ConfigError
from connect.kafka.security.tls_stores import tls_settings
from connect.kafka.threads import LeaseThread
from connect.runtime.event_loop_monitor import LoopWatch
from tests.kit.certificates import make_party

PREFIXES = ("listeners.https.", "admin.listeners.https.")


def stores(tmp_path: Path) -> dict[str, str]:
    party = make_party("worker", None, "localhost")
    file = tmp_path / "worker.pem"
    file.write_text(party.key_pem() + party.pem)
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("word", "mode"),
    [("required", ssl.CERT_REQUIRED), ("Requested", ssl.CERT_OPTIONAL), ("none", ssl.CERT_NONE), (None, ssl.CERT_NONE)],
)
def test_what_is_asked_of_clients(tmp_path: Path, prefix: str, word: str | None, mode: ssl.VerifyMode) -> None:
    keys = stores(tmp_path) | ({} if word is None else {"ssl.client.auth": word})
    keys |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": keys["ssl.keystore.location"]}
    props = {prefix + key: value for key, value in keys.items()} | {"ssl.client.auth": "required"}
    assert rest_tls(props).server(prefix).verify_mode is mode


@pytest.mark.parametrize("prefix", PREFIXES)
def test_users_with_certificates_need_authorities_of_their_own(tmp_path: Path, prefix: str) -> None:
    props = {prefix + key: value for key, value in (stores(tmp_path) | {"ssl.client.auth": "required"}).items()}
    with pytest.raises(ConfigError, match=f"{prefix}ssl.truststore.location"):
        rest_tls(props).server(prefix)


async def test_metrics_have_the_end_of_the_certificate_that_ends_first(tmp_path: Path) -> None:
    """Of a trust store that of those still valid, because it may keep old ones. Only the last stores count."""
    keys = stores(tmp_path)
    old, first, later = (
        make_party(name, None, valid=timedelta(minutes=minutes))
        for name, minutes in (("old", -1), ("first", 10), ("later", 20))
    )
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": old.pem + later.pem + first.pem}
    tls_settings(keys | trusted, "cluster of certificates")
    expected = first.certificate.not_valid_after_utc.timestamp()
    assert await _certificate_ends() == {"truststore": expected, "keystore": pytest.approx(time.time() + 3600, abs=60)}
    tls_settings(keys | {**trusted, "ssl.truststore.certificates": old.pem}, "cluster of certificates")
    assert (await _certificate_ends())["truststore"] == old.certificate.not_valid_after_utc.timestamp()
    tls_settings({}, "cluster of certificates")
    assert await _certificate_ends() == {}


async def _certificate_ends() -> dict[str, float]:
    text = (await ProcessMetrics(list, LoopWatch(LeaseThread(30)))()).decode()
    name = "heliograph_certificate_expiry_timestamp_seconds"
    found = re.findall(rf'^{name}{{owner="cluster of certificates",store="(\w+)"}} (\S+)$', text, re.MULTILINE)
    return {store: float(value) for store, value in found}


def test_suites_hold_for_listeners_and_for_other_workers(tmp_path: Path) -> None:
    suites = {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}
    tls = rest_tls({f"listeners.https.{key}": value for key, value in (stores(tmp_path) | suites).items()})
    for context in (tls.server("listeners.https."), tls.client()):
        names = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
        assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
        assert context.maximum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_unknown_word_is_refused_under_its_key(tmp_path: Path, prefix: str) -> None:
    props = {prefix + key: value for key, value in (stores(tmp_path) | {"ssl.client.auth": "want"}).items()}
    with pytest.raises(ConfigError, match="^admin" if prefix.startswith("admin") else "^listeners") as refused:
        rest_tls(props).server(prefix)
    assert str(refused.value) == f"{prefix}ssl.client.auth is 'want'. Use one of none, requested, required"


async def test_the_loop_and_the_lease_thread_have_metrics() -> None:
    leases = LeaseThread(30.0)
    leases.start()
    metrics = ProcessMetrics(list, LoopWatch(leases))
    first, second = (await metrics()).decode(), (await metrics()).decode()
    await leases.stop()
    for name in (
        "heliograph_loop_stalls_total",
        "heliograph_loop_stalled_seconds_total",
        "heliograph_loop_longest_stall_seconds",
        "heliograph_lease_longest_beat_seconds",
    ):
        assert f"\n{name} " in first
        assert f"\n{name} " in second


@pytest.mark.parametrize("prefix", [*PREFIXES, ""])
def test_a_key_store_that_cannot_be_read_is_named_as_in_the_file(prefix: str) -> None:
    tls = rest_tls({f"{prefix}ssl.keystore.location": "/none.p12", f"{prefix}ssl.keystore.password": "x"})
    with pytest.raises(ConfigError) as caught:
        tls.server(prefix or PREFIXES[0])
    assert caught.value.key == f"{prefix}ssl.keystore.location"
    assert f"{prefix}ssl.keystore.location /none.p12 cannot be read" in str(caught.value)
