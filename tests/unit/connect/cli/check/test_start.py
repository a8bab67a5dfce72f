"""A start warns of nothing, and is refused for nothing, that ``heliograph check`` did not say of the file."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from connect.cli.check.check_file import checked
from connect.cli.check.findings import CheckFinding, FileKind, Level
from connect.cli.daemons import (
    connect_distributed,
    connect_mirror_maker,
    kafka_mirror_maker,
    mirror_process,
    strimzi_resource,
    worker_process,
)
from connect.core.errors import HeliographError, PermanentError
from tests.kit.certificates import make_party
from tests.kit.documented import blocks
from tests.kit.java_files import SAMPLE_MIRROR, SAMPLE_WORKER

_PORT: Final = "listeners = http://127.0.0.1:0\n"
_PUBLIC: Final = "dedicated.mode.enable.public.rest = true\n"
_OPEN: Final = "listeners = http://0.0.0.0:0\nrest.auth.basic.file = {folder}/users\n"
#: What a Java worker's file often has, and what is wrong with one.
_OLD: Final = """\
plugin.path = /usr/share/java
internal.key.converter = org.apache.kafka.connect.json.JsonConverter
config.storage.partitions = 1
offset.storage.cleanup.policy = compact
metric.reporters = com.acme.Reporter
producer.interceptor.classes = com.acme.Interceptor
admin.client.dns.lookup = use_all_dns_ips
consumer.ssl.cipher.suites = TLS_AES_256_GCM_SHA384
producer.linger.mss = 5
tasks.maxx = 3
"""
_OLD_FLOW: Final = """\
A.consumer.group.id = x
A->B.topic.creation.default.partitions = 5
B.plugin.path = /opt
tasks.maxx = 3
C.bootstrap.servers = c:9092
A->B.replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
B->A.replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
"""
_STEPS: Final = """\
A->B.transforms = mark
A->B.transforms.mark.type = org.apache.kafka.connect.transforms.InsertHeader
A->B.transforms.mark.header = from
A->B.transforms.mark.value.literal = A
A->B.transforms.mark.value.litral = A
A->B.transforms.gone.type = org.apache.kafka.connect.transforms.RegexRouter
A->B.key.converter.schemas.enable = false
B.value.converter.x = y
"""
_HTTPS: Final = "listeners = https://127.0.0.1:0\nlisteners.https.ssl.keystore.location = {folder}/none.p12\n"
_GUESSED: Final = _HTTPS.replace("none", "store") + "listeners.https.ssl.keystore.password = guess\n"
_AVRO: Final = "key.converter = com.acme.Avro\n"


def _lines(sample: Any) -> str:
    return "".join(f"{key} = {value}\n" for key, value in sample.items())


def _resource() -> str:
    return next(text for _, text in blocks("strimzi.md") if text.startswith("apiVersion"))


WORKER: Final = _lines(SAMPLE_WORKER)
MIRROR: Final = _lines(SAMPLE_MIRROR)
RESOURCE: Final = _resource().replace("  mirrors:", "    config:\n      client.id: x\n  mirrors:")
CONSUMER: Final = "bootstrap.servers = localhost:9092\ngroup.id = g\n"
FULL: Final = """\
  version: 4.3.0
  clientRackInitImage: x
  resources: {requests: {cpu: 1}}
  jvmOptions: {-Xmx: 2g}
  metricsConfig: {type: jmxPrometheusExporter}
  logging: {type: inline, loggers: {rootLogger.level: INFO}}
  template: {pod: {priorityClassName: high}}
  tracing: {type: opentelemetry}
"""


def stores(prefix: str, name: str = "store.p12", password: str = "guess", kind: str = "PKCS12") -> str:
    """The keys of a trust store under a prefix, and of the protocol that reads it."""
    given = {"location": f"{{folder}}/{name}", "password": password, "type": kind}
    lines = "".join(f"{prefix}ssl.truststore.{key} = {value}\n" for key, value in given.items() if value)
    return f"{prefix}security.protocol = SSL\n{lines}"


def _without_tls(resource: str) -> str:
    """The resource with a source whose secret no start has to read."""
    before, _, after = resource.partition("        tls:\n")
    return before + after[after.index("      sourceConnector") :]


def start_worker(file: Path) -> int:
    return connect_distributed.run_with_arguments("x", [str(file)])


def start_mirror(file: Path) -> int:
    return connect_mirror_maker.mirror("x", file, [])


def start_resource(file: Path) -> int:
    arguments = strimzi_resource.ResourceArguments(
        str(file), secrets=file.parent, settings=["listeners=http://127.0.0.1:0"]
    )
    return strimzi_resource.run_resource("x", arguments)


def start_consumer(file: Path) -> int:
    producer = file.with_name("producer")
    producer.write_text("bootstrap.servers = localhost:9092\n")
    arguments = ["--consumer.config", str(file), "--producer.config", str(producer), "--whitelist", "x"]
    return kafka_mirror_maker.run_with_arguments(arguments)


STARTS: Final[dict[FileKind, Callable[[Path], int]]] = {
    FileKind.WORKER: start_worker,
    FileKind.MIRROR: start_mirror,
    FileKind.STRIMZI: start_resource,
    FileKind.CONSUMER: start_consumer,
}


def refusal(kind: FileKind, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a start says of the file."""
    try:
        STARTS[kind](file)
    except HeliographError as error:
        return str(error)
    return capsys.readouterr().err.partition("error: ")[2].strip()


#: The kind of a file, its text, and of how much a start warns.
ROWS: Final[dict[str, tuple[FileKind, str, int]]] = {
    "worker": (FileKind.WORKER, WORKER + _PORT, 0),
    "old worker": (FileKind.WORKER, WORKER + _PORT + _OLD, 10),
    "worker, open": (FileKind.WORKER, WORKER + _OPEN, 2),
    "worker, no keys": (FileKind.WORKER, WORKER + _HTTPS, 0),
    "worker, no users": (FileKind.WORKER, WORKER + _OPEN.replace("users", "none"), 0),
    "worker, converter": (FileKind.WORKER, WORKER + _PORT + _AVRO, 0),
    "worker, two mistakes": (FileKind.WORKER, WORKER.replace("localhost:9092", "a b") + _PORT + _AVRO, 0),
    "worker, key of a converter": (FileKind.WORKER, WORKER + _PORT + "key.converter.schemas.enabl = false\n", 1),
    "mirror": (FileKind.MIRROR, MIRROR, 0),
    "mirror, two mistakes": (
        FileKind.MIRROR,
        MIRROR + "A->B.refresh.topics.interval.seconds = 5m\nB.offset.storage.replication.factor = 0\n",
        0,
    ),
    "old mirror": (FileKind.MIRROR, MIRROR + _OLD_FLOW, 6),
    "mirror, keys of plugins": (FileKind.MIRROR, MIRROR + _STEPS, 4),
    "mirror, open": (FileKind.MIRROR, MIRROR + _PUBLIC + _OPEN, 2),
    "mirror, no keys": (FileKind.MIRROR, MIRROR + _PUBLIC + _HTTPS, 0),
    "mirror, wrong value": (FileKind.MIRROR, MIRROR + "A->B.tasks.max = 0\n", 0),
    "mirror, no link": (FileKind.MIRROR, MIRROR + "link.listener = nonsense:port\n", 0),
    "resource": (FileKind.STRIMZI, RESOURCE, 1),
    "full resource": (FileKind.STRIMZI, RESOURCE.replace("  target:\n", f"{FULL}  target:\n"), 9),
    "resource, variable": (
        FileKind.STRIMZI,
        RESOURCE.replace("client.id: x", "client.id: ${strimzienv:NO_SUCH_NAME}"),
        2,
    ),
    "resource, keys of plugins": (
        FileKind.STRIMZI,
        _without_tls(RESOURCE).replace("tasksMax: 2\n", "tasksMax: 2\n        config: {key.converter.x: z}\n"),
        2,
    ),
    "resource, no secret": (FileKind.STRIMZI, RESOURCE.replace("us-ca", "none"), 1),
}


#: A file whose trust store cannot be used, and the beginning of the error, with the line of the store's location.
STORES: Final[dict[str, tuple[FileKind, str, str]]] = {
    "worker, password": (FileKind.WORKER, stores("") + WORKER + _PORT, "2: "),
    "worker, missing": (FileKind.WORKER, stores("", "none") + WORKER + _PORT, "2: "),
    "worker, type": (FileKind.WORKER, stores("", password="", kind="PEM") + WORKER + _PORT, "2: "),
    "worker, REST": (FileKind.WORKER, _GUESSED + WORKER, "2: "),
    "mirror": (FileKind.MIRROR, stores("A.") + MIRROR, "2: cluster A: A."),
    "mirror, type": (FileKind.MIRROR, stores("B.", password="", kind="PEM") + MIRROR, "2: cluster B: B."),
    "mirror, producer": (FileKind.MIRROR, stores("B.producer.") + MIRROR, "2: cluster B: B.producer."),
    "mirror, REST": (FileKind.MIRROR, _GUESSED + MIRROR + _PUBLIC, "2: "),
    "consumer": (FileKind.CONSUMER, stores("") + CONSUMER, "2: "),
    "consumer, missing": (FileKind.CONSUMER, stores("", "none") + CONSUMER, "2: "),
}


class Enough(PermanentError):
    """Instead of what needs brokers."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__("enough")


def _no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any, **__: Any) -> Any:
        raise Enough

    monkeypatch.setattr(worker_process, "DistributedWorker", begin)
    monkeypatch.setattr(mirror_process, "FlowWorker", begin)
    monkeypatch.setattr(connect_mirror_maker, "_spark", lambda _: None)
    monkeypatch.setattr(connect_distributed, "configure_logging", lambda *_: None)


def is_of(found: CheckFinding, refused: str) -> bool:
    """Whether an error is that of a finding: its text, or its line of the file."""
    return found.text in refused or f":{found.line}: " in refused


@pytest.mark.parametrize("name", ROWS)
def test_a_start_says_nothing_that_check_did_not(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, text, warnings = ROWS[name]
    (tmp_path / "users").write_text("ann=hush\n")
    (tmp_path / "users").chmod(0o644)
    (tmp_path / "us-ca").mkdir()
    (tmp_path / "us-ca" / "ca.crt").write_text("x")
    file = tmp_path / "file"
    file.write_text(text.replace("{folder}", str(tmp_path)))
    secrets = tmp_path if kind is FileKind.STRIMZI else None
    found = asyncio.run(checked(file, kind, offline=True, secrets=secrets)).findings
    _no_brokers(monkeypatch)
    caplog.clear()
    refused = refusal(kind, file, capsys)
    said = [re.sub(r"\s+", " ", one.getMessage()) for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(said) == warnings, said
    for one in said:
        assert any(each.text in one for each in found), (one, [each.text for each in found])
    errors = [each for each in found if each.level is Level.ERROR]
    assert refused == "enough" if not errors else any(is_of(each, refused) for each in errors), (refused, errors)


def test_what_has_no_effect_is_named_beside_a_wrong_value(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("listners = x\noffset.flush.timeout.ms = 10s\nconnector.class = x\n" + WORKER)
    found = asyncio.run(checked(file, None, offline=True)).findings
    levels = [(one.line, one.level) for one in found]
    assert levels == [(1, Level.WARNING), (2, Level.ERROR), (3, Level.WARNING)], found


@pytest.mark.parametrize("name", STORES)
def test_a_store_that_cannot_be_used_has_a_line_and_a_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, text, begins = STORES[name]
    certificate = make_party("us", None).certificate
    (tmp_path / "store.p12").write_bytes(
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(certificate, None)], serialization.BestAvailableEncryption(b"right")
        )
    )
    file = tmp_path / "file"
    file.write_text(text.replace("{folder}", str(tmp_path)))
    report = asyncio.run(checked(file, kind, offline=True))
    errors = [one for one in report.findings if one.level is Level.ERROR]
    assert [one.line for one in errors] == [2], report.findings
    monkeypatch.setattr(connect_mirror_maker, "_spark", lambda _: None)
    monkeypatch.setattr(connect_distributed, "configure_logging", lambda *_: None)
    refused = refusal(kind, file, capsys)
    assert refused.startswith(f"{file}:{begins}")
    assert refused.endswith(errors[0].text)
    for said in (refused, errors[0].text):
        assert "store.location " in said
        assert re.search(r"; (write PEM, or )?correct ", said)
        assert "guess" not in said
