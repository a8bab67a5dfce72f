"""``mm2.properties``: clusters, flows and inheritance. The expected maps are those of Kafka 4.3's own class."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.core.config.properties import parse_properties
from connect.core.errors import ConfigError
from connect.core.model import CLEANED_SOON
from connectors.config.mm2_properties import Connector, MirrorMakerConfig, load, mirrored
from connectors.policy import MAPPING_POLICY_CLASS

BASE = """
clusters = us, eu
us.bootstrap.servers = a:9092
eu.bootstrap.servers = b:9092
us->eu.enabled = true
"""

INHERITING = """
clusters = us, eu
security.protocol = SSL
ssl.truststore.location = /etc/trust.jks
us.bootstrap.servers = a:9092
us.security.protocol = PLAINTEXT
us.consumer.fetch.max.bytes = 1000000
us.admin.timeout.ms = 5
eu.bootstrap.servers = b:9092
eu.producer.ssl.truststore.location = /etc/other.jks
eu.producer.linger.ms = 20
eu.offset.flush.interval.ms = 2000
eu.client.id = mine
tasks.max = 4
topics.exclude = x.*
consumer.max.poll.records = 5
use.defaults.from = source
replication.policy.separator = _
replication.policy.own = 1
offset.storage.replication.factor = 1
eu.offset.storage.replication.factor = 2
offset.flush.interval.ms = 3000
us->eu.enabled = true
us->eu.topics = orders
us->eu.use.defaults.from = target
us->eu.consumer.isolation.level = read_committed
us->eu.source.cluster.bootstrap.servers = c:9092
"""

BYTE_ARRAY = "org.apache.kafka.connect.converters.ByteArrayConverter"

WORKER = {
    **{f"offset.storage.{key}": value for key, value in CLEANED_SOON.items()},
    "admin.bootstrap.servers": "b:9092",
    "admin.security.protocol": "SSL",
    "admin.ssl.truststore.location": "/etc/trust.jks",
    "bootstrap.servers": "b:9092",
    "client.id": "mine",
    "config.storage.topic": "mm2-configs.us.internal",
    "consumer.bootstrap.servers": "b:9092",
    "consumer.security.protocol": "SSL",
    "consumer.ssl.truststore.location": "/etc/trust.jks",
    "group.id": "us-mm2",
    "header.converter": BYTE_ARRAY,
    "key.converter": BYTE_ARRAY,
    "offset.flush.interval.ms": "2000",
    "offset.storage.replication.factor": "1",
    "offset.storage.topic": "mm2-offsets.us.internal",
    "producer.bootstrap.servers": "b:9092",
    "producer.linger.ms": "20",
    "producer.security.protocol": "SSL",
    "producer.ssl.truststore.location": "/etc/other.jks",
    "replication.policy.own": "1",
    "replication.policy.separator": "_",
    "security.protocol": "SSL",
    "ssl.truststore.location": "/etc/trust.jks",
    "status.storage.topic": "mm2-status.us.internal",
    "tasks.max": "4",
    "value.converter": BYTE_ARRAY,
}

SOURCE = {
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "auto.restart.enabled": "true",
    "consumer.isolation.level": "read_committed",
    "enabled": "true",
    "name": "MirrorSourceConnector",
    "replication.policy.own": "1",
    "replication.policy.separator": "_",
    "security.protocol": "SSL",
    "source.admin.bootstrap.servers": "a:9092",
    "source.admin.security.protocol": "PLAINTEXT",
    "source.admin.ssl.truststore.location": "/etc/trust.jks",
    "source.admin.timeout.ms": "5",
    "source.cluster.alias": "us",
    "source.cluster.bootstrap.servers": "c:9092",
    "source.cluster.security.protocol": "PLAINTEXT",
    "source.cluster.ssl.truststore.location": "/etc/trust.jks",
    "source.consumer.bootstrap.servers": "a:9092",
    "source.consumer.fetch.max.bytes": "1000000",
    "source.consumer.security.protocol": "PLAINTEXT",
    "source.consumer.ssl.truststore.location": "/etc/trust.jks",
    "source.producer.bootstrap.servers": "a:9092",
    "source.producer.security.protocol": "PLAINTEXT",
    "source.producer.ssl.truststore.location": "/etc/trust.jks",
    "ssl.truststore.location": "/etc/trust.jks",
    "target.admin.bootstrap.servers": "b:9092",
    "target.admin.security.protocol": "SSL",
    "target.admin.ssl.truststore.location": "/etc/trust.jks",
    "target.cluster.alias": "eu",
    "target.cluster.bootstrap.servers": "b:9092",
    "target.cluster.client.id": "mine",
    "target.cluster.offset.flush.interval.ms": "2000",
    "target.cluster.offset.storage.replication.factor": "2",
    "target.cluster.security.protocol": "SSL",
    "target.cluster.ssl.truststore.location": "/etc/trust.jks",
    "target.consumer.bootstrap.servers": "b:9092",
    "target.consumer.security.protocol": "SSL",
    "target.consumer.ssl.truststore.location": "/etc/trust.jks",
    "target.producer.bootstrap.servers": "b:9092",
    "target.producer.linger.ms": "20",
    "target.producer.security.protocol": "SSL",
    "target.producer.ssl.truststore.location": "/etc/other.jks",
    "tasks.max": "4",
    "topics": "orders",
    "topics.exclude": "x.*",
    "use.defaults.from": "target",
}


def config(text: str) -> MirrorMakerConfig:
    return MirrorMakerConfig(parse_properties(text, "mm2.properties"))


def flow_names(text: str, *targets: str) -> list[str]:
    return [str(flow) for flow in config(text).flows(targets)]


def test_inheritance_is_javas() -> None:
    (flow,) = mirrored(config(INHERITING).flows_to_run())
    assert flow.worker_config() == WORKER
    assert flow.connector_config() == SOURCE
    name = "MirrorHeartbeatConnector"
    heartbeat = {"name": name, "connector.class": f"org.apache.kafka.connect.mirror.{name}"}
    assert flow.connector_config(Connector.HEARTBEAT) == SOURCE | heartbeat


def test_a_flow_that_is_not_enabled_says_so_to_its_connectors() -> None:
    back = next(flow for flow in config(BASE).flows() if str(flow) == "eu->us")
    assert not back.enabled
    assert back.connector_config()["enabled"] == "false"


def test_spark_keys_reach_the_flow_and_its_own_win() -> None:
    text = BASE + "spark.master = local[2]\nspark.x = 1\nus->eu.spark.x = 2\n"
    (flow,) = mirrored(config(text).flows_to_run())
    assert flow.settings().spark == {"spark.master": "local[2]", "spark.x": "2"}


def test_a_tools_view_of_a_cluster() -> None:
    props = config(INHERITING).client_properties("us")
    assert (props["bootstrap.servers"], props["security.protocol"]) == ("a:9092", "PLAINTEXT")
    assert props["replication.policy.separator"] == "_"
    assert props["producer.ssl.truststore.location"] == "/etc/trust.jks"


@pytest.mark.parametrize(
    ("lines", "flows"),
    [
        ("", ["us->eu", "eu->us"]),
        ("emit.heartbeats.enabled = false", ["us->eu"]),
        ("emit.heartbeats.enabled = false\neu->us.emit.heartbeats.enabled = true", ["us->eu", "eu->us"]),
        ("eu->us.emit.heartbeats.enabled = false", ["us->eu"]),
        ("emit.heartbeats.enabled = false\nus->eu.enabled = false", []),
        ("eu->us.enabled = TRUE\nemit.heartbeats.enabled = false", ["us->eu", "eu->us"]),
    ],
)
def test_which_flows_there_are(lines: str, flows: list[str]) -> None:
    assert flow_names(BASE + lines) == flows


@pytest.mark.parametrize("key", ["us->eu.enabled", "us->eu.emit.heartbeats.enabled", "emit.heartbeats.enabled"])
def test_a_flag_of_another_word_than_true_and_false_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(f"clusters = us, eu\n{key} = yes\n").flows_to_run()
    assert str(caught.value) == f"mm2.properties:2: {key} is neither true nor false. Set it to true or false"


def test_what_switches_a_flow_may_be_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ON", "true")
    monkeypatch.setenv("OFF", "false")
    parsed = config(
        "clusters = us, eu, ap\nconfig.providers = env\nconfig.providers.env.class = env\n"
        "us->eu.enabled = ${env:ON}\neu->us.enabled = ${env:OFF}\n"
        "emit.heartbeats.enabled = ${env:OFF}\neu->ap.emit.heartbeats.enabled = ${env:ON}\n"
        "dedicated.mode.enable.internal.rest = ${env:ON}\n"
    )
    assert [str(flow) for flow in parsed.flows()] == ["us->eu", "eu->ap"]
    assert [str(flow) for flow in mirrored(parsed.flows())] == ["us->eu"]
    assert parsed.internal_rest and not parsed.public_rest
    monkeypatch.setenv("ON", "false")
    assert [str(flow) for flow in mirrored(parsed.flows())] == ["us->eu"]


def test_a_switch_whose_reference_leads_nowhere_is_named_with_its_line() -> None:
    parsed = config(BASE + "config.providers = f\nconfig.providers.f.class = file\neu->us.enabled = ${f:/none:on}\n")
    with pytest.raises(ConfigError, match=r"^mm2.properties:8: eu->us.enabled: .* cannot be resolved"):
        parsed.flows()


@pytest.mark.parametrize(
    ("lines", "enabled"),
    [
        ("enabled = true", ["us->eu", "eu->us"]),
        ("enabled = true\neu->us.enabled = false", ["us->eu"]),
        ("enabled = false", ["us->eu"]),
        # It gives no flow a worker, and without one nothing is mirrored.
        ("enabled = true\nemit.heartbeats.enabled = false", ["us->eu"]),
    ],
)
def test_enabled_at_the_top_reaches_the_connectors_of_every_flow_that_runs(lines: str, enabled: list[str]) -> None:
    flows = config(BASE + lines).flows()
    assert [str(flow) for flow in mirrored(flows)] == enabled
    for flow in flows:
        assert flow.connector_config()["enabled"] == str(flow.enabled).lower()


def test_flows_are_chosen_by_target() -> None:
    assert flow_names(BASE, "eu") == ["us->eu"]
    assert flow_names(BASE, "us", "eu") == ["us->eu", "eu->us"]
    assert [str(flow) for flow in mirrored(config(BASE).flows_to_run(["eu"]))] == ["us->eu"]


def test_a_file_may_be_there_for_heartbeats_alone() -> None:
    quiet = config(BASE.replace("enabled = true", "enabled = false"))
    assert [str(flow) for flow in quiet.flows_to_run()] == ["us->eu", "eu->us"]
    assert mirrored(quiet.flows_to_run()) == ()


def test_a_key_that_is_no_more_than_a_prefix_is_nobodys() -> None:
    (flow,) = mirrored(config(BASE + "eu. = x\nus->eu. = y\n").flows_to_run())
    assert "" not in flow.worker_config()
    assert not {"", "target.cluster."} & flow.connector_config().keys()


NO_CLUSTER = "which is not in clusters (us, eu)"


def test_aliases_may_hold_dots_and_begin_alike() -> None:
    text = """
    clusters = us, us.west
    us.bootstrap.servers = a:1
    us.west.bootstrap.servers = b:2
    us->us.west.enabled = true
    us.west->us.topics = x
    """
    parsed = config(text)
    (flow,) = mirrored(parsed.flows_to_run())
    assert (flow.source, flow.target) == ("us", "us.west")
    assert flow.worker_config()["bootstrap.servers"] == "b:2"
    assert parsed.notices() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "mm2.properties: clusters is missing"),
        ("clusters =", "mm2.properties: clusters is missing"),
        ("\nclusters = us,,eu", "mm2.properties:2: Configuration 'clusters' values must not be empty."),
        (BASE + "us->xx.enabled = true", f"mm2.properties:6: us->xx.enabled names the cluster 'xx', {NO_CLUSTER}"),
        (BASE + "ap->eu.topics = x", f"mm2.properties:6: ap->eu.topics names the cluster 'ap', {NO_CLUSTER}"),
        (BASE + "us -> eu.topics = x", "mm2.properties:6: a key ends at its first space, so 'us -> eu.topics' "),
        (BASE + "us-> eu.topics = x", "mm2.properties:6: a key ends at its first space, so 'us-> eu.topics' "),
        (BASE + "us ->eu.topics=x", "mm2.properties:6: a key ends at its first space, so 'us ->eu.topics' "),
        (BASE + "us->us.enabled = true", "mm2.properties:6: us->us.enabled is a flow from us to itself"),
        (
            BASE + "dedicated.mode.enable.internal.rest = yes",
            "mm2.properties:6: Invalid value yes for configuration dedicated.mode.enable.internal.rest: ",
        ),
        (
            BASE + "security.protocol = TLS",
            "mm2.properties:6: Invalid value TLS for configuration security.protocol: String must be one of ",
        ),
    ],
)
def test_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert str(caught.value).startswith(message)


NONE = "no flow is enabled. Set, for instance, "


@pytest.mark.parametrize(
    ("text", "targets", "key", "message"),
    [
        ("clusters = us, eu\nemit.heartbeats.enabled = false", (), "us->eu.enabled", f"{NONE}us->eu.enabled = true"),
        ("clusters = us", (), "us-><target>.enabled", "no flow is enabled"),
        (
            BASE + "emit.heartbeats.enabled = false\n",
            ("us",),
            "eu->us.enabled",
            "no flow to us is enabled. Set, for instance, eu->us.enabled = true",
        ),
        (BASE, ("xx",), "clusters", "no cluster 'xx' in clusters (us, eu), so no flow leads there"),
        (BASE.replace("eu.bootstrap", "x"), (), "eu.bootstrap.servers", "eu.bootstrap.servers is missing"),
    ],
)
def test_no_flow_to_run(text: str, targets: tuple[str, ...], key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mirrored(config(text).flows_to_run(targets))
    assert caught.value.key == key
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tasks.max = 0", ":6: Invalid value 0 for configuration tasks.max: Value must be at least 1"),
        (
            "tasks.max = 2\nus->eu.tasks.max = x",
            ":7: Invalid value x for configuration us->eu.tasks.max: Not a number of type INT",
        ),
        ("us->eu.topics = (a", ":6: us->eu.topics is not a usable list of patterns ((a): a group is not closed"),
        (
            "us->eu.consumer.isolation.level = x\nus.consumer.isolation.level = y",
            ":7: Invalid value y for configuration us.consumer.isolation.level",
        ),
        ("eu.offset.flush.interval.ms = 0", ":6: Invalid value 0 for configuration eu.offset.flush.interval.ms"),
        ("offset.storage.partitions = 0", ":6: Invalid value 0 for configuration offset.storage.partitions"),
        (
            "replication.policy.class = my.Policy",
            ":6: Invalid value my.Policy for configuration replication.policy.class",
        ),
        (
            "us->eu.on.topic.recreated = new-remote-topic",
            ":6: Invalid value new-remote-topic for configuration us->eu.on.topic.recreated: this policy was removed",
        ),
        ("us->eu.transforms = mask", ": transforms.mask.type is missing"),
        ("eu.value.converter = x.Json", ":6: eu.value.converter x.Json of the worker would change the bytes"),
        ("us->eu.exactly.once.support = required", ":6: us->eu.exactly.once.support = required, but"),
        (
            "us.ssl.key.password = ${f:/none:pw}\nconfig.providers = f\nconfig.providers.f.class = file",
            ":6: us.ssl.key.password: ${f:/none:pw} cannot be resolved",
        ),
    ],
)
def test_refused_settings_name_key_and_line(lines: str, message: str) -> None:
    (flow,) = mirrored(config(BASE + lines).flows_to_run())
    with pytest.raises(ConfigError) as caught:
        flow.settings()
    assert str(caught.value).startswith(f"mm2.properties{message}")


def test_references_are_resolved_for_use_and_kept_for_storage(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("servers=c:9092\ntopics=pay.*\n")
    file = tmp_path / "mm2.properties"
    file.write_text(
        BASE
        + "config.providers = file\n"
        + "config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider\n"
        + f"eu.bootstrap.servers = ${{file:{secrets}:servers}}\n"
        + f"topics = ${{file:{secrets}:topics}}\n"
    )
    (flow,) = mirrored(load(file).flows_to_run())
    assert flow.connector_config()["topics"] == f"${{file:{secrets}:topics}}"
    assert flow.settings().should_mirror("payments")
    assert not flow.settings().should_mirror("orders")
    assert flow.worker_config()["bootstrap.servers"] == "c:9092"
    assert flow.clients().target_admin().bootstrap == (("c", 9092),)


def test_a_flow_shows_no_secrets() -> None:
    (flow,) = mirrored(config(BASE + "eu.sasl.jaas.config = s3cret\n").flows_to_run())
    assert "s3cret" not in repr(flow)


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        ("", False),
        ("replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy", True),
        (
            f"replication.policy.class = {MAPPING_POLICY_CLASS}\nreplication.policy.mapping = a.(.*) -> $source.$1",
            False,
        ),
        (f"replication.policy.class = {MAPPING_POLICY_CLASS}\nreplication.policy.mapping = a.(.*) -> b.$1", True),
    ],
)
def test_flows_there_and_back_whose_names_tell_nothing_are_warned_of(lines: str, warned: bool) -> None:
    base = "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
    one_way = MirrorMakerConfig(parse_properties(base + lines))
    both_ways = MirrorMakerConfig(parse_properties(base + "eu->us.enabled = true\n" + lines))
    assert [notice for notice in one_way.notices() if notice.kind == "risky"] == []
    found = [notice.text for notice in both_ways.notices() if notice.kind == "risky"]
    assert len(found) == warned
    assert all("us->eu" in text and "eu->us" in text for text in found)
