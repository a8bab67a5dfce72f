"""``heliograph mirror -f``: arguments, what is printed, and what a leader does for a resource."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any, cast

import pytest

from connect.api.plugins import config_providers
from connect.cli.daemons.strimzi_resource import ResourceArguments, checked_connectors, run_resource, see_to
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, PermanentError, RetriableError
from connect.core.model import TargetState
from connect.runtime.distributed_worker import DistributedWorker
from connectors.strimzi.translation import WantedConnector
from tests.unit.connectors.strimzi.resources import NEW, source_of, translation

PROGRAM = "heliograph mirror"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mirror.yaml"
    path.write_text(NEW)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"), [({"settings": ["a"]}, "'a' is not KEY=VALUE"), ({"as_json": True}, "--json needs --print")]
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], words: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        run_resource(PROGRAM, ResourceArguments(str(file), **arguments))


def test_what_is_printed_can_be_read_by_programs_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "    authentication: {type: custom, sasl: true, config: {sasl.jaas.config: hush}}\n"
    text = NEW.replace("    alias: eu\n", f"    alias: eu\n{secret}") + "  replicas: 2\n"
    for as_json in (True, False):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        arguments = ResourceArguments("-", settings=["listeners=http://:1"], prints=True, as_json=as_json)
        assert run_resource(PROGRAM, arguments) == 0
        reported = capsys.readouterr().out
        assert "hush" not in reported
        if as_json:
            found = json.loads(reported)
            assert found["worker"]["listeners"] == "http://:1"
            assert found["worker"]["sasl.jaas.config"] == "[hidden]"
            assert [each["name"] for each in found["connectors"]] == ["us->eu.MirrorSourceConnector"]
            assert found["notices"][0]["field"] == "spec.replicas"
        else:
            assert "listeners=http://:1\n" in reported
            assert "# us->eu.MirrorSourceConnector: a connector's properties" in reported


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (
            "producer.sasl.jaas.config",
            'Login required username="${strimzienv:USER}" password="hush" serviceName=hush;',
            'Login required username="${strimzienv:USER}" password="[hidden]" serviceName="[hidden]";',
        ),
        ("sasl.jaas.config", "${strimzisecrets:jaas:all}", "${strimzisecrets:jaas:all}"),
        ("sasl.jaas.config", 'Login password="${strimzisecrets:a:b}";', 'Login password="${strimzisecrets:a:b}";'),
        ("source.cluster.ssl.keystore.password", "hush${x", "[hidden]"),
        ("transforms.seal.password", "hush", "[hidden]"),
        ("config.providers.vault.param.way-in", "hush", "[hidden]"),
        ("config.providers.strimzisecrets.param.directory", "/run/secrets", "/run/secrets"),
        ("value.converter.schema.registry.url", "https://me:hush@registry/a", "https://[hidden]@registry/a"),
    ],
)
def test_what_is_printed_shows_references_and_no_secrets(
    key: str, value: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NEW.encode())))
    arguments = ResourceArguments("-", settings=[f"{key}={value}"], prints=True, as_json=True)
    assert run_resource(PROGRAM, arguments) == 0
    assert json.loads(capsys.readouterr().out)["worker"][key] == shown


def test_secrets_have_to_be_there_before_anything_is_started(file: Path, tmp_path: Path) -> None:
    file.write_text(
        NEW.replace(
            "    alias: eu\n", "    alias: eu\n    tls: {trustedCertificates: [{secretName: ca, certificate: a}]}\n"
        )
    )
    with pytest.raises(ConfigError, match=r"mirror\.yaml:9: .* needs secret ca. Set --secrets DIR"):
        run_resource(PROGRAM, ResourceArguments(str(file)))
    (tmp_path / "secrets").mkdir()
    with pytest.raises(ConfigError, match=r"mirror\.yaml:9: .*/secrets/ca/a does not exist"):
        run_resource(PROGRAM, ResourceArguments(str(file), secrets=tmp_path / "secrets"))
    with pytest.raises(ConfigError, match=r"--secrets: .* is not a folder"):
        run_resource(PROGRAM, ResourceArguments(str(file), secrets=file))


def test_a_variable_that_is_not_set_is_named(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = "${strimzienv:HERE}${strimzienv:NOWHERE}${strimzisecrets:a:b}"
    file.write_text(NEW.replace("sourceConnector: {}", f"sourceConnector: {{config: {{topics: '{references}'}}}}"))
    monkeypatch.setenv("HERE", "x")
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(ConfigError, match=r"mirror\.yaml:18: .*config\.topics needs secret a"):
        run_resource(PROGRAM, ResourceArguments(str(file)))
    (said,) = caplog.messages
    assert ":18: spec.mirrors[0].sourceConnector.config.topics: environment variable NOWHERE is not set" in said


def test_a_wrong_setting_of_a_connector_is_told_with_its_line() -> None:
    found = translation(NEW.replace("sourceConnector: {}", "sourceConnector: {config: {replication.factor: many}}"))
    with pytest.raises(ConfigError, match=r"mirror\.yaml:18: .*replication\.factor"):
        checked_connectors(found, WorkerConfig.parse(found.worker, config_providers()))


class FakeWorker:
    """A leader's group: what is stored, and what is asked of it."""

    def __init__(self, config: dict[str, str] | None, state: TargetState = TargetState.STARTED) -> None:
        self.config, self.state = config, state
        self.asked: list[tuple[Any, ...]] = []
        self.errors: list[Exception] = []
        self.is_leader = True
        self.core = self.snapshot = self.herder = self

    def connector_config(self, name: str) -> dict[str, str] | None:
        return self.config

    def target_state(self, name: str) -> TargetState:
        return self.state

    async def put_connector(self, name: str, config: Any, state: Any, *, allow_replace: bool) -> None:
        if self.errors:
            raise self.errors.pop()
        self.config = dict(config)
        self.asked.append(("put", state))

    async def set_target_state(self, name: str, state: TargetState) -> None:
        self.asked.append(("state", state))


def wanted(state: TargetState | None) -> WantedConnector:
    one = source_of(translation(NEW))
    return WantedConnector(one.name, one.config, state, one.mirror, one.node)


@pytest.mark.parametrize(
    ("stored", "there", "state", "asked"),
    [
        (False, TargetState.STARTED, TargetState.PAUSED, [("put", TargetState.PAUSED)]),
        (False, TargetState.STARTED, None, [("put", None)]),
        (True, TargetState.STARTED, None, []),
        (True, TargetState.STARTED, TargetState.STOPPED, [("state", TargetState.STOPPED)]),
        (True, TargetState.STOPPED, TargetState.STARTED, []),
        (True, TargetState.STOPPED, None, []),
    ],
)
async def test_a_leader_stores_what_differs_and_starts_nothing_that_was_stopped(
    stored: bool, there: TargetState, state: TargetState | None, asked: list[Any]
) -> None:
    one = wanted(state)
    worker = FakeWorker(dict(one.config) if stored else None, there)
    await see_to(cast(DistributedWorker, worker), one)
    assert worker.asked == asked


async def test_a_config_that_differs_is_replaced_and_its_state_kept() -> None:
    worker = FakeWorker({"name": "x"}, TargetState.PAUSED)
    await see_to(cast(DistributedWorker, worker), wanted(TargetState.STARTED))
    assert worker.asked == [("put", None)]


async def test_what_is_refused_is_said_and_what_may_pass_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker(None)
    worker.errors = [PermanentError("never"), RetriableError("not yet")]
    await asyncio.wait_for(see_to(cast(DistributedWorker, worker), wanted(None)), 60)
    assert worker.asked == []
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
