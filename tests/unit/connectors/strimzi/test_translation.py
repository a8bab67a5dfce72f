"""Resources against what Strimzi's operator makes of them, field by field."""

from __future__ import annotations

import json
from textwrap import indent

import pytest

from connect.core.config.connector_settings import AutoRestartRule
from connect.core.errors import ConfigError
from connect.core.model import TargetState
from connectors.strimzi.resource import read_documents
from tests.unit.connectors.strimzi.resources import NEW, OLD, source_of, translation


def with_source_fields(text: str) -> str:
    return NEW.replace("      sourceConnector: {}\n", text)


def test_the_worker_is_that_of_the_target() -> None:
    worker = translation(NEW).worker
    assert worker["bootstrap.servers"] == "eu:9093"
    assert worker["group.id"] == "mirror-group"
    topics = [worker[f"{each}.storage.topic"] for each in ("config", "offset", "status")]
    assert topics == ["mirror-configs", "mirror-offsets", "mirror-status"]
    assert worker["key.converter"] == worker["value.converter"] == worker["header.converter"]
    assert worker["key.converter"] == "org.apache.kafka.connect.converters.ByteArrayConverter"
    assert worker["security.protocol"] == worker["producer.security.protocol"] == "PLAINTEXT"
    assert "strimzisecrets" not in worker["config.providers"]


def test_without_a_target_the_names_are_the_operators() -> None:
    found = translation(OLD)
    assert found.worker["group.id"] == "mirrormaker2-cluster"
    assert found.worker["config.storage.topic"] == "mirrormaker2-cluster-configs"
    assert found.worker["bootstrap.servers"] == "eu:9092"
    assert source_of(found).config["source.cluster.bootstrap.servers"] == "us:9092"


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta2", "v1"])
def test_each_version_may_have_either_shape(version: str) -> None:
    for text in (NEW.replace("/v1\n", f"/{version}\n"), OLD.replace("v1beta2", version)):
        assert source_of(translation(text)).name == "us->eu.MirrorSourceConnector"


def test_a_connector_has_the_operators_name_and_keys() -> None:
    found = translation(
        with_source_fields(
            """\
      sourceConnector:
        tasksMax: 4
        config: {replication.factor: -1, sync.topic.acls.enabled: "false"}
      checkpointConnector: {}
      heartbeatConnector: {}
      topicsPattern: "orders|pay.*"
      topicsExcludePattern: ".*tmp"
      groupsPattern: "g.*"
      groupsExcludePattern: "g0"
"""
        )
    )
    source = source_of(found)
    assert source.config == {
        "name": "us->eu.MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "tasks.max": "4",
        "target.cluster.alias": "eu",
        "target.cluster.bootstrap.servers": "eu:9093",
        "target.cluster.security.protocol": "PLAINTEXT",
        "source.cluster.alias": "us",
        "source.cluster.bootstrap.servers": "us:9093",
        "source.cluster.security.protocol": "PLAINTEXT",
        "replication.factor": "-1",
        "sync.topic.acls.enabled": "false",
        "topics": "orders|pay.*",
        "topics.exclude": ".*tmp",
        "groups": "g.*",
        "groups.exclude": "g0",
    }
    assert source.state is None
    kinds = [each.name.rpartition(".")[2] for each in found.connectors]
    assert kinds == ["MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector"]


def test_the_old_spellings_of_exclusions_are_read_and_the_new_ones_win() -> None:
    fields = "      topicsBlacklistPattern: a\n      groupsBlacklistPattern: b\n      groupsExcludePattern: c\n"
    found = translation(OLD + fields)
    assert source_of(found).config["topics.exclude"] == "a"
    assert source_of(found).config["groups.exclude"] == "c"
    assert [one.path for one in found.notices] == ["spec.mirrors[0].groupsBlacklistPattern"]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ("{state: running}", TargetState.STARTED),
        ("{state: paused}", TargetState.PAUSED),
        ("{state: stopped}", TargetState.STOPPED),
        ("{pause: true}", TargetState.PAUSED),
        ("{pause: false}", None),
        ("{pause: true, state: stopped}", TargetState.STOPPED),
    ],
)
def test_states(fields: str, state: TargetState | None) -> None:
    assert source_of(translation(NEW.replace("sourceConnector: {}", f"sourceConnector: {fields}"))).state is state


def test_config_of_a_cluster_goes_to_its_clients_and_what_is_free_to_the_worker() -> None:
    config = "    config: {ssl.cipher.suites: x, ssl.protocol: p, sasl.mechanism: z, offset.flush.interval.ms: 500}\n"
    found = translation(NEW.replace("  mirrors:\n", f"{config}  mirrors:\n"))
    assert found.worker["offset.flush.interval.ms"] == "500"
    assert (found.worker["ssl.cipher.suites"], found.worker["ssl.protocol"]) == ("x", "p")
    assert "sasl.mechanism" not in found.worker
    assert source_of(found).config["target.cluster.sasl.mechanism"] == "z"
    assert [(one.path, one.line) for one in found.notices] == [("spec.target.config.sasl.mechanism", 14)]


def test_a_group_in_the_config_is_heeded_only_without_a_target() -> None:
    old = OLD.replace("eu, bootstrapServers: eu:9092}", "eu, bootstrapServers: e:1, config: {group.id: g}}")
    assert translation(old).worker["group.id"] == "g"
    new = translation(NEW.replace("  mirrors:\n", "    config: {group.id: g}\n  mirrors:\n"))
    assert new.worker["group.id"] == "mirror-group"
    assert new.notices[0].path == "spec.target.config.group.id"


def test_providers_of_the_users_own_stay() -> None:
    config = "    config: {config.providers: mine, config.providers.mine.class: file}\n"
    worker = translation(NEW.replace("  mirrors:\n", f"{config}  mirrors:\n")).worker
    assert worker["config.providers"] == "mine,strimzienv,strimzifile,strimzidir"
    assert worker["config.providers.mine.class"] == "file"


def test_a_rack_named_by_a_variable_is_read_in_and_that_of_a_label_is_said_to_have_no_effect() -> None:
    found = translation(NEW + "  rack: {type: environment-variable, envVarName: ZONE}\n")
    assert not found.notices
    assert source_of(found).config["consumer.client.rack"] == "${strimzienv:ZONE}"
    (notice,) = translation(NEW + "  rack: {topologyKey: zone}\n").notices
    assert notice.path == "spec.rack"


def test_fields_without_meaning_are_named_each_with_its_line() -> None:
    text = NEW + "  replicas: 3\n  jvmOptions: {}\n  colour: red\n"
    text = text.replace("sourceConnector: {}", "sourceConnector: {version: x, autoRestart: {max: 1}, taskMax: 1}")
    text = text.replace("  name: us-to-eu\n", "  name: us-to-eu\n  annotations: {strimzi.io/pause: 'x', mine: 'y'}\n")
    named = [(one.line, one.path) for one in translation(text).notices]
    assert named == [
        (5, "metadata.annotations.strimzi.io/pause"),
        (19, "spec.mirrors[0].sourceConnector.version"),
        (19, "spec.mirrors[0].sourceConnector.taskMax"),
        (19, "spec.mirrors[0].sourceConnector.autoRestart.max"),
        (20, "spec.replicas"),
        (21, "spec.jvmOptions"),
        (22, "spec.colour"),
    ]


@pytest.mark.parametrize("field", ["affinity", "tolerations", "metrics"])
def test_fields_of_the_first_version_are_known(field: str) -> None:
    (notice,) = translation(OLD.replace("v1beta2", "v1alpha1") + f"  {field}: {{}}\n").notices
    assert "no such field" not in notice.text


def test_keys_that_the_operator_sets_are_left_out_of_a_connector() -> None:
    found = translation(NEW.replace("sourceConnector: {}", "sourceConnector: {config: {name: x, topics: t}}"))
    assert source_of(found).config["name"] == "us->eu.MirrorSourceConnector"
    assert source_of(found).config["topics"] == "t"
    assert [one.path for one in found.notices] == ["spec.mirrors[0].sourceConnector.config.name"]


def test_keys_of_a_connector_without_effect_are_named_and_those_of_the_clusters_are_not() -> None:
    config = "{config: {no.such.key: 1, refresh.topic.interval.seconds: 5, producer.batch.size: 7, tasks.max: 1}}"
    text = NEW.replace("sourceConnector: {}", f"sourceConnector: {config}\n      topicsPattern: x")
    text = text.replace("  mirrors:\n", "    config: {config.storage.replication.factor: -1}\n  mirrors:\n")
    said = [(one.line, one.path.rpartition(".config.")[2], one.text) for one in translation(text).notices]
    unheeded = ("tasks.max", "no.such.key", "refresh.topic.interval.seconds", "producer.batch.size")
    assert tuple(key for _, key, _ in said) == unheeded
    assert {line for line, *_ in said} == {19}
    assert said[2][2].endswith("is refresh.topics.interval.seconds meant?")


def test_settings_of_the_command_line_are_above_all() -> None:
    assert translation(NEW).with_settings({"group.id": "mine"}).worker["group.id"] == "mine"


def test_an_error_of_a_setting_is_given_its_line() -> None:
    found = translation(NEW.replace("sourceConnector: {}", "sourceConnector: {config: {tasks: 1}}"))
    located = found.located(ConfigError("is wrong", "tasks"), source_of(found))
    assert str(located) == "mirror.yaml:18: tasks: is wrong"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: KafkaMirrorMaker2", "kind: KafkaConnect", "holds no KafkaMirrorMaker2, but KafkaConnect"),
        ("kind: KafkaMirrorMaker2", "kind: KafkaMirrorMaker", "is MirrorMaker 1. Use kafka-mirror-maker"),
        ("strimzi.io/v1\n", "strimzi.io/v2\n", "apiVersion is 'kafka.strimzi.io/v2'"),
        ("    alias: eu\n", "", "spec.target.alias is missing"),
        ("    groupId: mirror-group\n", "", "spec.target.groupId is missing"),
        ("sourceConnector: {}", "topicsPattern: x", "no mirror has a connector. Add one of sourceConnector"),
        ("sourceConnector: {}", "sourceConnector: {state: on}", "state is 'true'. Use one of running, paused, stopped"),
        ("    - source:\n", "    - sourcecluster:\n", "source is missing"),
        ("alias: eu\n", "alias: eu\n    authentication: {type: kerberos}\n", "type is 'kerberos'. Use one of tls"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, words: str) -> None:
    assert old in NEW
    with pytest.raises(ConfigError, match=words):
        translation(NEW.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("connectCluster: eu", "connectCluster: asia", "spec.connectCluster is asia, which is not an alias"),
        ("sourceCluster: us", "sourceCluster: uk", "sourceCluster is uk, which is not an alias"),
        ("connectCluster: eu", "connectCluster: us", "a worker writes to the cluster of its internal topics"),
        ("  connectCluster: eu\n", "", "spec.connectCluster is missing"),
    ],
)
def test_aliases_that_lead_nowhere_are_said(old: str, new: str, words: str) -> None:
    assert old in OLD
    with pytest.raises(ConfigError, match=words):
        translation(OLD.replace(old, new))


def test_the_worker_may_use_the_target_under_another_alias() -> None:
    again = OLD.replace("connectCluster: eu", "connectCluster: same").replace(
        "  mirrors:\n", "    - {alias: same, bootstrapServers: eu:9092}\n  mirrors:\n"
    )
    assert source_of(translation(again)).name == "us->eu.MirrorSourceConnector"


def test_a_flow_twice_is_refused() -> None:
    _, _, mirror = NEW.partition("  mirrors:\n")
    with pytest.raises(ConfigError, match="us->eu is mirrored twice"):
        translation(NEW + mirror)


def test_of_several_resources_one_is_named() -> None:
    several = f"kind: Kafka\n---\n{NEW}---\n{OLD.replace('us-to-eu', 'other')}"
    with pytest.raises(ConfigError, match=r"holds several resources: us-to-eu, other\. Choose one with --name"):
        translation(several)
    assert translation(several, name="other").worker["group.id"] == "mirrormaker2-cluster"
    with pytest.raises(ConfigError, match="holds no KafkaMirrorMaker2 third, but us-to-eu, other"):
        translation(several, name="third")


def listed(*resources: str) -> str:
    """As ``kubectl get -o yaml`` prints them."""
    items = "".join(f"-{indent(text, '  ')[1:]}" for text in resources)
    return f"apiVersion: v1\nitems:\n{items}kind: List\nmetadata:\n  resourceVersion: ''\n"


def test_resources_of_a_list_are_taken_as_those_of_a_file() -> None:
    found, alone = translation(listed("kind: Kafka\n", NEW)), translation(NEW)
    assert (found.name, found.worker, source_of(found).config) == (alone.name, alone.worker, source_of(alone).config)
    several = listed(NEW, OLD.replace("us-to-eu", "other"))
    with pytest.raises(ConfigError, match=r"holds several resources: us-to-eu, other\. Choose one with --name"):
        translation(several)
    assert translation(several, name="other").worker["group.id"] == "mirrormaker2-cluster"
    with pytest.raises(ConfigError, match="holds several resources named us-to-eu"):
        translation(listed(NEW, OLD), name="us-to-eu")
    with pytest.raises(ConfigError, match="holds no KafkaMirrorMaker2, but nothing"):
        translation("kind: List\nitems: []\n")
    with pytest.raises(ConfigError, match="holds no KafkaMirrorMaker2, but Kafka"):
        translation(listed("kind: Kafka\n"))


def test_a_field_in_a_list_is_named_with_its_line() -> None:
    text = listed("kind: Kafka\n", NEW.replace("bootstrapServers: us:9093", "bootstrapServers: [us:9093]"))
    line = next(at for at, each in enumerate(text.splitlines(), 1) if "[us:9093]" in each)
    with pytest.raises(ConfigError, match=r"items\[1\]\.spec\.mirrors\[0\]\.source\.bootstrapServers must") as error:
        translation(text)
    assert error.value.line == line


def test_a_list_may_be_json() -> None:
    (document,) = read_documents(NEW, "mirror.yaml")
    assert translation(json.dumps({"kind": "List", "items": [document.value]}, indent=4)).name == "us-to-eu"


def said(text: str) -> AutoRestartRule | None:
    text = NEW.replace("sourceConnector: {}", f"sourceConnector: {{autoRestart: {text}}}")
    return AutoRestartRule.of(source_of(translation(text)).config)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{enabled: true}", AutoRestartRule()),
        ("{}", AutoRestartRule()),
        ("{enabled: true, maxRestarts: 3, maxBackoffMinutes: 10}", AutoRestartRule(3, 10)),
        ("{maxRestarts: 0}", AutoRestartRule(0)),
        ("{enabled: false, maxRestarts: 3}", None),
    ],
)
def test_what_the_field_says(text: str, rule: AutoRestartRule | None) -> None:
    assert said(text) == rule


def test_without_the_field_nothing_is_restarted() -> None:
    assert AutoRestartRule.of(source_of(translation(NEW)).config) is None


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("{maxRestarts: many}", 0),
        ("{maxRestarts: -1}", 0),
        ("{maxBackoffMinutes: true}", 1),
        ("{maxBackoffMinutes: 0}", 1),
    ],
)
def test_a_wrong_number_is_named_with_its_line(text: str, least: int) -> None:
    with pytest.raises(ConfigError, match=f"should be a number, {least} or more") as wrong:
        said(text)
    assert wrong.value.line == 18
