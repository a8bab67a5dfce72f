"""``heliograph check`` of files alone: what they are taken for, and each objection with its line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from connect.cli.check.check_file import checked, run_check, verdict
from connect.cli.check.findings import CheckFinding, CheckReport, FileKind, Level, kind_of_properties, kind_of_text
from connect.core.errors import ConfigError

MIRROR = """\
clusters = us, eu
us.bootstrap.servers = a:9092
eu.bootstrap.servers = b:9092
us->eu.enabled = true
us->eu.topics = orders, payments.*
"""
#: What Kafka's own ``config/connect-distributed.properties`` sets.
WORKER = """\
bootstrap.servers=localhost:9092
group.id=connect-cluster
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=true
value.converter.schemas.enable=true
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
config.storage.topic=connect-configs
config.storage.replication.factor=1
status.storage.topic=connect-status
status.storage.replication.factor=1
offset.flush.interval.ms=10000
"""
SOURCE = {
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "topics": "orders",
    "source.cluster.alias": "us",
    "target.cluster.alias": "eu",
    "source.cluster.bootstrap.servers": "a:9092",
    "target.cluster.bootstrap.servers": "b:9092",
}


RESOURCE = """\
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker2
metadata:
  name: mirror
spec:
  replicas: 1
  connectCluster: eu
  clusters:
    - alias: us
      bootstrapServers: a:9092
    - alias: eu
      bootstrapServers: b:9092
  mirrors:
    - sourceCluster: us
      targetCluster: eu
      topicsPattern: orders
      sourceConnector:
        config:
          replication.factor: 1
"""


async def check(folder: Path, text: str, *, offline: bool = True, secrets: Path | None = None) -> CheckReport:
    file = folder / "file"
    file.write_text(text)
    return await checked(file, None, offline=offline, secrets=secrets)


def reported(report: CheckReport, level: Level) -> list[tuple[int | None, str | None]]:
    return [(one.line, one.key) for one in report.findings if one.level is level]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MIRROR, FileKind.MIRROR),
        ("A->B.enabled = true\n", FileKind.MIRROR),
        (WORKER, FileKind.WORKER),
        ("key.converter = x\n", FileKind.WORKER),
        ("name = x\nconnector.class = FileStreamSource\n", FileKind.CONNECTOR),
        ('{"name": "x", "config": {}}', FileKind.CONNECTOR),
        ("zookeeper.connect = a:2181\ngroupid = g\n", FileKind.CONSUMER),
        ("bootstrap.servers = a:9092\nacks = all\n", FileKind.PRODUCER),
        (RESOURCE, FileKind.STRIMZI),
        (json.dumps(yaml.safe_load(RESOURCE), indent=4), FileKind.STRIMZI),
        (json.dumps({"name": "kind", "config": SOURCE}), FileKind.CONNECTOR),
        ('{"kind": "apiVersion", ', FileKind.CONNECTOR),
    ],
)
def test_what_a_file_is(text: str, kind: FileKind) -> None:
    lines = (line.partition("=") for line in text.splitlines())
    assert (kind_of_text(text) or kind_of_properties({key.strip(): value for key, _, value in lines}, "f")) is kind


def test_what_says_nothing_needs_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Set --kind to one of mirror, worker, connector, consumer"):
        kind_of_properties({"a": "b"}, "f")


@pytest.mark.parametrize("sample", [MIRROR, WORKER, json.dumps({"name": "x", "config": SOURCE})])
async def test_files_that_are_fine(tmp_path: Path, sample: str) -> None:
    report = await check(tmp_path, sample)
    assert report.findings == ()
    assert all(one.does for one in report.outcomes)


async def test_a_mirrors_file_is_told_flow_by_flow(tmp_path: Path) -> None:
    report = await check(tmp_path, MIRROR + "sync.group.offsets.enabled = true\neu->us.groups = x\n")
    there, back = report.outcomes
    assert there.what == "us->eu"
    assert there.does[0] == "mirrors topics orders, payments.*, orders as us.orders, in at most 1 task"
    assert "translates the offsets of groups .*, and syncs group offsets every 60 s" in there.does
    assert back.does == ("mirrors nothing; writes a heartbeat every 1 s to us",)


MISTAKES = {
    Level.ERROR: [
        *("tasks.max = 0", "us->eu.offset.lag.max = x", "us->eu.topics = (a", "us->eu.topics.exclude = x,x"),
        *("eu.offset.storage.partitions = 0", "us.security.protocol = TLS", "us->xx.enabled = true"),
        *("config.providers = nobody", "eu.producer.acks = 7", "us.request.timeout.ms = x"),
        "replication.policy.separator = /",
    ],
    Level.WARNING: [
        *("us->eu.topic = x", "consumer.isolation.level = read_committed", "eu.producer.acks.all = 1"),
        "us.sasl.mechanism = GSSAPI",
    ],
}


@pytest.mark.parametrize(("level", "line"), [(level, line) for level, lines in MISTAKES.items() for line in lines])
async def test_mistakes_in_a_mirrors_file_have_their_line(tmp_path: Path, level: Level, line: str) -> None:
    key = "config.providers.nobody.class" if "nobody" in line else line.partition(" ")[0]
    found = reported(await check(tmp_path, MIRROR + line + "\n"), level)
    assert [one for one in found if one != (None, key)] in ([(6, key)], []), found
    assert key in {named for _, named in found}


async def test_a_flow_that_is_not_enabled_takes_nothing_from_the_report(tmp_path: Path) -> None:
    report = await check(tmp_path, MIRROR + "eu->us.enabled = false\neu->us.offset.lag.max = x\n")
    assert [outcome.what for outcome in report.outcomes] == ["us->eu", "eu->us"]
    assert (7, "eu->us.offset.lag.max") in reported(report, Level.WARNING)
    report = await check(tmp_path, MIRROR.replace("us, eu", "eu, us") + "tasks.max = 0\n")
    assert reported(report, Level.ERROR) == [(6, "tasks.max")], "also if the flow of heartbeats comes first"


async def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    report = await check(tmp_path, MIRROR + "tasks.max = 0\noffset.lag.max = x\nus->eu.replication.factor = y\n")
    assert [line for line, _ in reported(report, Level.ERROR)] == [6, 7, 8]


async def test_a_value_that_a_later_line_replaces_is_told(tmp_path: Path) -> None:
    report = await check(tmp_path, MIRROR + "us->eu.topics = clicks\n")
    (found,) = report.findings
    assert (found.level, found.line) == (Level.WARNING, 6)
    assert found.text == "us->eu.topics is also on line 5, where it has no effect"


async def test_a_reference_to_a_missing_file_has_its_key(tmp_path: Path) -> None:
    declared = "config.providers = file\nconfig.providers.file.class = FileConfigProvider\n"
    report = await check(tmp_path, MIRROR + declared + "us.sasl.password = ${file:/no/such:pw}\n")
    (found,) = report.findings
    assert (found.level, found.key, found.line) == (Level.ERROR, "us.sasl.password", 8)
    assert found.text == "us.sasl.password: ${file:/no/such:pw} cannot be resolved: No such file or directory"


async def test_kerberos_without_its_service_name_is_an_error_with_a_place(tmp_path: Path) -> None:
    lines = "eu.security.protocol = SASL_SSL\neu.sasl.mechanism = GSSAPI\n"
    report = await check(tmp_path, MIRROR + lines)
    assert any("sasl.kerberos.service.name is missing" in one.text for one in report.findings), report.findings


NOT_WRITTEN = [
    ("us->eu.transforms = mask", 6, "us->eu.transforms.mask.type", "is missing; name a class"),
    ("transforms = mask", 6, "transforms.mask.type", "is missing; name a class"),
    ("config.providers = file", 6, "config.providers.file.class", "is ''"),
    ("eu.sasl.mechanism = PLAIN\neu.security.protocol = SASL_SSL", 6, "eu.sasl.jaas.config", "is missing"),
    ("clusters = us, eu, asia\nus->asia.enabled = true", 6, "asia.bootstrap.servers", "is missing"),
    (
        "eu.security.protocol = SASL_SSL\neu.sasl.kerberos.service.name = kafka\neu.sasl.mechanism = GSSAPI",
        8, "eu.sasl.mechanism", "needs the Python package gssapi",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "line", "key", "word"), NOT_WRITTEN)
async def test_what_is_missing_has_the_line_that_brings_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, line: int, key: str, word: str
) -> None:
    monkeypatch.setattr("connect.kafka.security.connection_settings.find_spec", lambda name: None)
    report = await check(tmp_path, MIRROR + lines + "\n")
    errors = [one for one in report.findings if one.level is Level.ERROR]
    assert [(one.line, one.key) for one in errors] == [(line, key)]
    assert all(word in one.text for one in errors)


async def test_a_provider_of_one_cluster_without_a_class_has_its_line(tmp_path: Path) -> None:
    report = await check(tmp_path, MIRROR + "us.config.providers = file\n")
    assert reported(report, Level.ERROR) == [(6, "us.config.providers.file.class")], "no worker may be invalid"
    report = await check(tmp_path, MIRROR + "eu.config.providers = file\n")
    assert reported(report, Level.ERROR) == [(6, "eu.config.providers.file.class")]


async def test_what_is_missing_in_other_files_has_a_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connect.kafka.security.connection_settings.find_spec", lambda name: None)
    consumer = "bootstrap.servers = a:9092\ngroup.id = g\nsasl.mechanism = GSSAPI\nsecurity.protocol = SASL_SSL\n"
    report = await check(tmp_path, consumer)
    assert reported(report, Level.ERROR) == [(3, "sasl.kerberos.service.name")]
    report = await check(tmp_path, consumer + "sasl.kerberos.service.name = kafka\n")
    assert reported(report, Level.ERROR) == [(3, "sasl.mechanism")]
    report = await check(tmp_path, WORKER + "config.providers = file\n")
    assert reported(report, Level.ERROR) == [(14, "config.providers.file.class")]
    report = await check(tmp_path, json.dumps({"name": "x", "config": {**SOURCE, "transforms": "mask"}}, indent=1))
    assert reported(report, Level.ERROR) == [(10, "transforms.mask.type")]


async def test_secrets_stay_out_of_a_report(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("lag=s3cretlag\n")
    lines = (
        "config.providers = file\nconfig.providers.file.class = FileConfigProvider\n"
        f"us->eu.offset.lag.max = ${{file:{tmp_path}/secrets:lag}}\n"
    )
    report = await check(tmp_path, MIRROR + lines)
    assert report.count(Level.ERROR) == 1
    assert "s3cretlag" not in str(report)


WORKER_MISTAKES = [
    ("plugin.pth = /x\n", [(14, "plugin.pth")], Level.WARNING),
    ("sasl.mechanism = GSSAPI\n", [(14, "sasl.mechanism")], Level.WARNING),
    ("producer.linger.ms = x\n", [(14, "producer.linger.ms")], Level.ERROR),
    ("offset.flush.interval.ms = x\nstatus.storage.partitions = 0\n", [14, 15], Level.ERROR),
    ("value.converter = no.Such\n", [(14, "value.converter")], Level.ERROR),
    ("rest.extension.classes = a.B\n", [(14, "rest.extension.classes")], Level.ERROR),
    ("offset.storage.file.filename = /tmp/x\n", [(14, "offset.storage.file.filename")], Level.ERROR),
]


@pytest.mark.parametrize(("lines", "places", "level"), WORKER_MISTAKES)
async def test_mistakes_in_a_workers_file_have_their_line(
    tmp_path: Path, lines: str, places: Sequence[object], level: Level
) -> None:
    found = reported(await check(tmp_path, WORKER + lines), level)
    assert [place if isinstance(places[0], tuple) else place[0] for place in found] == places


async def test_the_key_of_a_standalone_worker_is_named_once(tmp_path: Path) -> None:
    report = await check(tmp_path, WORKER + "offset.storage.file.filename = /tmp/x\n")
    assert [(one.line, one.level) for one in report.findings] == [(14, Level.ERROR)]


async def test_a_connectors_json_has_lines_too(tmp_path: Path) -> None:
    config = {**SOURCE, "tasks.max": 0, "topics.exlude": 'a "b": c', "offset.lag.max": "x"}
    text = json.dumps({"name": "x", "config": config}, indent=1)
    report = await check(tmp_path, text)
    lines = {line.split('"')[1]: at for at, line in enumerate(text.splitlines(), 1) if '": ' in line}
    assert reported(report, Level.ERROR) == [(lines[key], key) for key in ("tasks.max", "offset.lag.max")]
    assert reported(report, Level.WARNING) == [(lines["topics.exlude"], "topics.exlude")]


async def test_the_files_of_mirror_maker_1_are_told_what_takes_the_place_of_old_keys(tmp_path: Path) -> None:
    old = "bootstrap.servers = a:9092\ngroupid = g\nshallow.iterator.enable = true\nno.such = 1\n"
    report = await check(tmp_path, old)
    assert report.outcomes[0].what == "group g"
    assert reported(report, Level.WARNING) == [(2, "groupid"), (3, "shallow.iterator.enable"), (4, "no.such")]
    zookeeper = await check(tmp_path, "zookeeper.connect = a:2181\ngroupid = g\n")
    assert "because ZooKeeper is not used" in next(one.text for one in zookeeper.findings if one.level is Level.ERROR)
    assert reported(zookeeper, Level.ERROR) == [(1, "zookeeper.connect")]
    assert reported(zookeeper, Level.WARNING) == [(1, "zookeeper.connect"), (2, "groupid")]
    report = await check(tmp_path, "bootstrap.servers = a:9092\nacks = -1\nproducer.type = async\n")
    assert reported(report, Level.WARNING) == [(2, "acks"), (3, "producer.type")]


async def test_a_resource_is_told_connector_by_connector(tmp_path: Path) -> None:
    report = await check(tmp_path, RESOURCE)
    assert report.count(Level.ERROR) == 0, report.findings
    (source,) = report.outcomes
    assert source.does[0].startswith("mirrors topics orders")
    wrong = await check(tmp_path, RESOURCE.replace("replication.factor: 1", "offset.lag.max: many"))
    assert [line for line, _ in reported(wrong, Level.ERROR)] == [RESOURCE.count("\n")]


async def test_each_resource_of_a_file_is_looked_at(tmp_path: Path) -> None:
    other = RESOURCE.replace("name: mirror", "name: other").replace("alias: us", "alias: asia")
    other = other.replace("sourceCluster: us", "sourceCluster: asia") + "          offset.lag.max: many\n"
    report = await check(tmp_path, f"{RESOURCE}---\nkind: Kafka\n---\n{other}")
    assert [one.what for one in report.outcomes] == [
        "mirror: us->eu.MirrorSourceConnector",
        "other: asia->eu.MirrorSourceConnector",
    ]
    assert [bool(one.does) for one in report.outcomes] == [True, False]
    assert reported(report, Level.ERROR) == [(2 * RESOURCE.count("\n") + 4, "offset.lag.max")]


async def test_a_resource_as_json_is_looked_at(tmp_path: Path) -> None:
    report = await check(tmp_path, json.dumps(yaml.safe_load(RESOURCE), indent=4))
    assert report.count(Level.ERROR) == 0, report.findings
    assert [one.what for one in report.outcomes] == ["us->eu.MirrorSourceConnector"]


async def test_keys_of_a_resource_without_effect_are_named(tmp_path: Path) -> None:
    last = RESOURCE.count("\n")
    text = RESOURCE.replace("b:9092\n", "b:9092\n      config:\n        offset.flush.intervall.ms: 5\n")
    report = await check(tmp_path, text + "          no.such.key: 1\n")
    found = [(one.line, one.text.partition(";")[0].split(": ")[-1]) for one in report.findings][1:]
    assert found == [
        (last - 5, "offset.flush.intervall.ms is not known and has no effect"),
        (last + 3, "no.such.key is not known and has no effect"),
    ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"name": "x",\n}', ":2: this is not JSON"),
        ("[1]", "is a JSON object"),
        ('{"name": "x", "config": {\n"a": {"b": 1}}}', ":2: a is not a string"),
        (f'{{"a": {"[" * 100_000}', "too many levels"),
        (f'{{"a": {"9" * 5000}}}', "too many digits"),
    ],
)
async def test_json_that_is_no_connector(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        await check(tmp_path, text)


@pytest.mark.parametrize(
    ("connector_class", "word"),
    [("io.example.NoSuchSource", "Failed to find any class"), ("io.example.S3SinkConnector", "sink connector")],
)
async def test_connectors_that_are_not_there(tmp_path: Path, connector_class: str, word: str) -> None:
    report = await check(tmp_path, json.dumps({"name": "x", "config": {"connector.class": connector_class}}))
    (error,) = (one for one in report.findings if one.level is Level.ERROR)
    assert word in error.text
    assert error.line == 1


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mm2.properties"
    for text, code in ((MIRROR, 0), (MIRROR + "x = 1\n", 0), (MIRROR + "tasks.max = 0\n", 2)):
        file.write_text(text)
        assert run_check(file, kind=None, offline=True, as_json=True) == code
        found = json.loads(capsys.readouterr().out)
        assert (found["format"], found["kind"], found["errors"] > 0) == (1, "mirror", code == 2)
        assert run_check(file, kind=None, offline=True, as_json=False) == code
        assert capsys.readouterr().out.startswith(f"{file}, for connect-mirror-maker\n")


def test_the_last_line_counts() -> None:
    report = CheckReport("f", "mirror", "x")
    assert verdict(report) == "f: no problems"
    some = report.with_findings(
        [CheckFinding(Level.WARNING, "a"), CheckFinding(Level.ERROR, "b"), CheckFinding(Level.WARNING, "b")]
    )
    assert verdict(some) == "f: 1 error, 1 warning"
