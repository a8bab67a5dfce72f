"""``heliograph check`` of how clusters are reached: without asking them, and of which are asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from connect.cli.check.check_file import run_check
from connect.cli.check.clusters import Looked, Need, Sides, lacks, of_internal
from connect.cli.check.findings import CheckFinding, CheckReport, Level
from connect.core.errors import ConfigError
from connect.kafka.authorization import NO_RIGHT, Allowed, Operation, Operations, release_of
from tests.unit.connect.cli.check.test_findings import MIRROR, RESOURCE, SOURCE, WORKER, check

_STORE = "{0}security.protocol = SSL\n{0}ssl.truststore.location = /nonexistent\n"
_CONSUMER = "bootstrap.servers = a:9092\ngroup.id = g\n"
_PROPERTIES = "name = x\n" + "".join(f"{key} = {value}\n" for key, value in SOURCE.items())
_OF_SOURCE = {"source.cluster.security.protocol": "SSL", "source.cluster.ssl.truststore.location": "/nonexistent"}
_CONFIG = "      config:\n        security.protocol: SSL\n        ssl.truststore.location: /nonexistent\n"
UNREADABLE = {
    "mirror": (MIRROR + _STORE.format("us."), 7, "us.ssl.truststore.location"),
    "worker": (WORKER + _STORE.format(""), 15, "ssl.truststore.location"),
    "client of a worker": (WORKER + _STORE.format("producer."), 15, "producer.ssl.truststore.location"),
    "client of a worker that reads offsets": (
        WORKER + _STORE.format("consumer."),
        15,
        "consumer.ssl.truststore.location",
    ),
    "consumer": (_CONSUMER + _STORE.format(""), 4, "ssl.truststore.location"),
    "connector": (_PROPERTIES + _STORE.format("source.cluster."), 9, "source.cluster.ssl.truststore.location"),
    "client of a connector": (
        _PROPERTIES + _STORE.format("source.consumer."),
        9,
        "source.consumer.ssl.truststore.location",
    ),
    "JSON": (json.dumps({**SOURCE, "name": "x", **_OF_SOURCE}, indent=1), 10, "source.cluster.ssl.truststore.location"),
    "resource": (RESOURCE.replace("a:9092\n", f"a:9092\n{_CONFIG}"), 13, "source.cluster.ssl.truststore.location"),
}
_LOGIN = (
    "      authentication:\n        type: plain\n        username: bob\n"
    "        passwordSecret: {secretName: us-bob, password: password}\n"
)
RESOURCE_WITH_SECRET = RESOURCE.replace("a:9092\n", f"a:9092\n{_LOGIN}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sides]:
    """The flows whose clusters are asked, by nobody but a list; each finds something to warn of."""
    seen: list[Sides] = []

    async def look(sides: Sides, looked: Looked) -> None:
        seen.append(sides)
        looked.findings.append(CheckFinding(Level.WARNING, f"{sides.flow} was asked"))

    monkeypatch.setattr("connect.cli.check.strimzi.look_at_flow", look)
    monkeypatch.setattr("connect.cli.check.connector_config.look_at_flow", look)
    return seen


def of_level(report: CheckReport, level: Level) -> list[tuple[int | None, str]]:
    return [(one.line, one.text) for one in report.findings if one.level is level]


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_a_store_that_cannot_be_read_is_an_error_offline_too(tmp_path: Path, kind: str) -> None:
    text, line, key = UNREADABLE[kind]
    report = await check(tmp_path, text)
    found = [(one.line, one.key) for one in report.findings if one.level is Level.ERROR]
    assert found == [(line, key)], report.findings
    assert any("/nonexistent cannot be read" in one.text for one in report.findings)


async def test_a_file_that_a_worker_has_to_allow_is_a_warning(tmp_path: Path) -> None:
    report = await check(tmp_path, _PROPERTIES + _STORE.format("source.cluster."))
    ((line, said),) = [one for one in of_level(report, Level.WARNING) if "worker's file" in one[1]]
    assert (line, "add it to connector.allowed.files" in said) == (9, True)


async def test_a_wrong_protocol_of_a_connectors_target_has_its_line(tmp_path: Path) -> None:
    report = await check(tmp_path, f"{_PROPERTIES}target.cluster.security.protocol = TLS\n")
    (error,) = (one for one in report.findings if one.level is Level.ERROR)
    assert (error.line, error.key) == (8, "target.cluster.security.protocol")


async def test_clusters_that_need_the_workers_providers_are_not_asked(tmp_path: Path, asked: list[Sides]) -> None:
    login = "source.cluster.security.protocol = SSL\nsource.cluster.ssl.truststore.certificates = ${env:CA}\n"
    text = _PROPERTIES + login
    report = await check(tmp_path, text, offline=False)
    ((line, said),) = of_level(report, Level.UNKNOWN)
    assert line == 9
    assert said.startswith("the clusters were not checked: source.cluster.ssl.truststore.certificates refers to")
    assert report.outcomes[0].does
    assert of_level(await check(tmp_path, text), Level.UNKNOWN) == []
    assert asked == []


def secrets_in(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / "secrets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("s3cretpassword\n")
    return folder / "secrets"


async def test_a_resource_is_asked_with_its_secrets(tmp_path: Path, asked: list[Sides]) -> None:
    folder = secrets_in(tmp_path, "us-bob/password")
    report = await check(tmp_path, RESOURCE_WITH_SECRET, offline=False, secrets=folder)
    (sides,) = asked
    assert sides.of_source.password == "s3cretpassword"
    assert of_level(report, Level.UNKNOWN) == of_level(report, Level.NOTE) == of_level(report, Level.ERROR) == []
    assert "s3cretpassword" not in str(report)


async def test_clusters_without_their_secret_are_not_asked(tmp_path: Path, asked: list[Sides]) -> None:
    report = await check(tmp_path, RESOURCE_WITH_SECRET, offline=False)
    said = "the clusters were not checked without secret us-bob: set --secrets DIR"
    assert of_level(report, Level.UNKNOWN) == [(14, said)]
    folder = secrets_in(tmp_path, "us-ca/ca.crt")
    report = await check(tmp_path, RESOURCE_WITH_SECRET, offline=False, secrets=folder)
    said = f"the clusters were not checked without secret us-bob: not in {folder}"
    assert of_level(report, Level.UNKNOWN) == [(14, said)]
    assert any(f"which is not in {folder}" in text for _, text in of_level(report, Level.ERROR))
    assert asked == []


async def test_offline_nothing_is_said_of_clusters_that_are_not_asked(tmp_path: Path) -> None:
    report = await check(tmp_path, RESOURCE_WITH_SECRET)
    assert of_level(report, Level.UNKNOWN) == of_level(report, Level.ERROR) == []
    assert len(of_level(report, Level.NOTE)) == 1


async def test_each_connector_of_a_resource_is_looked_at(tmp_path: Path, asked: list[Sides]) -> None:
    text = RESOURCE + "      heartbeatConnector: {config: {heartbeats.topic.replication.factor: 1}}\n"
    report = await check(tmp_path, text, offline=False)
    assert [one.flow for one in asked] == ["us->eu.MirrorSourceConnector", "us->eu.MirrorHeartbeatConnector"]
    assert all(one.does for one in report.outcomes)
    wrong = text.replace("          replication.factor: 1\n", "          offset.lag.max: many\n")
    report = await check(tmp_path, wrong)
    assert [bool(one.does) for one in report.outcomes] == [False, True]


def test_secrets_are_for_resources_and_in_a_folder(tmp_path: Path, asked: list[Sides]) -> None:
    file = tmp_path / "file"
    for text, secrets, said in (
        (MIRROR, tmp_path, "this is not a Strimzi resource"),
        (RESOURCE, tmp_path / "none", "--secrets: .*none is not a folder"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            run_check(file, kind=None, offline=True, as_json=True, secrets=secrets)
    file.write_text(RESOURCE_WITH_SECRET)
    assert run_check(file, kind=None, offline=False, as_json=True) == 1
    assert run_check(file, kind=None, offline=True, as_json=True) == 0


READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE


def of(topics: Mapping[str, Operations | None], *cluster: Operation) -> Allowed:
    return Allowed("id", 1, "4.3", frozenset(cluster), topics)


def test_topics_that_lack_the_same_are_told_together() -> None:
    needs = [Need(f"t{number}", frozenset({READ, DESCRIBE})) for number in range(5)]
    found = of({f"t{number}": frozenset({DESCRIBE}) for number in range(4)} | {"t4": frozenset({READ, DESCRIBE})})
    assert list(map(str, lacks(needs, found))) == ["READ on topics t0, t1, t2 and 1 more is missing"]


def test_what_is_made_by_us_may_be_allowed_by_rules_that_nobody_shows() -> None:
    (need,) = of_internal(["x"])
    assert lacks([need], of({"x": None}, CREATE)) == []
    for shown in (None, NO_RIGHT):
        (lack,) = lacks([need], of({"x": shown}))
        assert not lack.is_certain
        assert "topic x cannot be seen" in str(lack)
    (lack,) = lacks([need], of({"x": frozenset({READ, DESCRIBE, Operation.DESCRIBE_CONFIGS})}))
    assert lack.is_certain
    assert str(lack) == "WRITE on topic x is missing"


def test_a_topic_of_the_source_that_is_hidden_lacks_all() -> None:
    assert list(map(str, lacks([Need("x", frozenset({READ}))], of({"x": NO_RIGHT})))) == ["READ on topic x is missing"]


def test_rights_on_the_cluster() -> None:
    assert list(map(str, lacks([Need("", frozenset({DESCRIBE}))], of({})))) == ["DESCRIBE on the cluster is missing"]
    assert lacks([Need("", frozenset({DESCRIBE}))], of({}, DESCRIBE)) == []


def test_releases_are_told_by_what_brokers_offer() -> None:
    assert release_of({0: (0, 9), 1: (0, 12), 18: (0, 3)}) == "2.8"
