"""``heliograph check`` of single values: the same answer in every kind of file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from connect.cli.check.findings import Level
from tests.unit.connect.cli.check.test_findings import MIRROR, RESOURCE, SOURCE, WORKER, check

CONSUMER = "bootstrap.servers = a:9092\ngroup.id = g\n"
PRODUCER = "bootstrap.servers = a:9092\nacks = all\n"
CONNECTOR = "".join(f"{key} = {value}\n" for key, value in SOURCE.items())
#: A file that holds a key and a value, and the key and the line that it has there.
Made = tuple[str, str, int]
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'


def behind(text: str, prefix: str = "") -> Callable[[str, str], Made]:
    def made(key: str, value: str) -> Made:
        return f"{text}{prefix}{key} = {value}\n", prefix + key, text.count("\n") + 1

    return made


def in_json(key: str, value: str) -> Made:
    text = json.dumps({"name": "x", "config": {**SOURCE, f"source.cluster.{key}": value}}, indent=1)
    return text, f"source.cluster.{key}", text.count("\n") - 1


def in_resource(key: str, value: str) -> Made:
    authentication = f"{{type: custom, sasl: true, config: {{\n          {key}: '{value}'}}}}"
    text = RESOURCE.replace("a:9092\n", f"a:9092\n      authentication: {authentication}\n")
    return text, f"spec.clusters[0].authentication.config.{key}", text[: text.index(key)].count("\n") + 1


KINDS = {
    "mirror": behind(MIRROR, "us."),
    "worker": behind(WORKER),
    "client of a worker": behind(WORKER, "producer."),
    "consumer": behind(CONSUMER),
    "producer": behind(PRODUCER),
    "connector": behind(CONNECTOR, "source.cluster."),
    "JSON": in_json,
    "resource": in_resource,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_kerberos_is_named(tmp_path: Path, kind: str) -> None:
    text, key, line = KINDS[kind]("sasl.mechanism", "GSSAPI")
    report = await check(tmp_path, text)
    (found,) = (one for one in report.findings if "Kerberos" in one.text)
    assert (found.level, found.key, found.line) == (Level.WARNING, key, line)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reference_that_nobody_resolves_is_named(tmp_path: Path, kind: str) -> None:
    text, key, line = KINDS[kind]("sasl.jaas.config", JAAS.format("${env:SECRET_PW}"))
    report = await check(tmp_path, text)
    (found,) = (one for one in report.findings if "config provider env" in one.text)
    # A connector's worker may have the provider.
    level = Level.NOTE if kind in ("connector", "JSON") else Level.WARNING
    assert (found.level, found.key, found.line) == (level, key, line)
    assert "SECRET_PW" not in str(report)


async def test_declared_providers_are_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAG", "100")
    declared = "{0}config.providers = env\n{0}config.providers.env.class = env\n"
    lag = "us->eu.offset.lag.max = ${env:LAG}\n"
    assert (await check(tmp_path, MIRROR + declared.format("") + lag)).findings == ()
    of_flow = await check(tmp_path, MIRROR + declared.format("us->eu.") + lag)
    assert [one for one in of_flow.findings if "reference" in one.text] == []
    of_another = await check(tmp_path, MIRROR + declared.format("us.") + lag)
    assert [one.line for one in of_another.findings if "config provider env" in one.text] == [8]
    own = "      config:\n        config.providers: mine\n        config.providers.mine.class: env\n"
    resource = RESOURCE.replace("b:9092\n", f"b:9092\n{own}").replace("orders", "'${mine:LAG}${strimzienv:LAG}'")
    assert [one for one in (await check(tmp_path, resource)).findings if "reference" in one.text] == []


async def test_a_connector_that_declares_providers_is_refused(tmp_path: Path) -> None:
    connector = {**SOURCE, "config.providers": "env", "config.providers.env.class": "env", "topics": "${env:LAG}"}
    (found,) = (await check(tmp_path, json.dumps({"name": "x", "config": connector}))).findings
    assert (found.level, found.key) == (Level.ERROR, "config.providers")
    assert "only in the worker's file" in found.text


@pytest.mark.parametrize("value", ["a${1}b", "${x}", "$x:y", "${}:", "${1:2}"])
async def test_what_is_no_reference(tmp_path: Path, value: str) -> None:
    report = await check(tmp_path, CONSUMER + f"client.id = {value}\n")
    assert [one for one in report.findings if "reference" in one.text] == []


async def test_a_password_that_looks_like_a_reference_is_not_shown(tmp_path: Path) -> None:
    report = await check(tmp_path, CONSUMER + f"sasl.jaas.config = {JAAS.format('${s3cr:et}')}\n")
    (found,) = (one for one in report.findings if "an apparent reference" in one.text)
    assert found.line == 3
    assert "s3cr" not in str(report)


async def test_a_mirror_may_name_a_token_of_its_machine(tmp_path: Path) -> None:
    report = await check(tmp_path, MIRROR + "us.security.protocol = SASL_SSL\nus.sasl.mechanism = AWS_MSK_IAM\n")
    assert [one.text for one in report.findings if "sasl.mechanism" in one.text] == []
