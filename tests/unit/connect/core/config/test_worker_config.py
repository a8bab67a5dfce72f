"""A worker's settings: Java's defaults, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from connect.core.config.config_def import Required
from connect.core.config.properties import parse_properties
from connect.core.config.rest_settings import RestListener
from connect.core.config.worker_config import ExactlyOnceSourceSupport, WorkerConfig
from connect.core.config.worker_settings import WORKER
from connect.core.errors import ConfigError
from connect.core.model import NewTopic

SMALLEST = {
    "bootstrap.servers": "broker:9092",
    "group.id": "workers",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "statuses",
}


def parsed(**others: str) -> WorkerConfig:
    """The smallest file and keys written with underscores instead of dots."""
    return WorkerConfig.parse({**SMALLEST, **{key.replace("_", "."): value for key, value in others.items()}})


def test_what_defaults_come_to() -> None:
    """The defaults themselves are compared in ``test_java_settings.py``."""
    config = parsed()
    assert (config.connect_protocol, config.exactly_once) == ("sessioned", ExactlyOnceSourceSupport.DISABLED)
    assert (config.transactional_leader, config.exactly_once_enabled, config.max_delay_is_set) == (False,) * 3
    # Java's is all interfaces.
    assert (config.listeners, config.admin_listeners) == ((RestListener("http", "localhost", 8083),), None)
    assert config.offset_topic == NewTopic("offsets", 25, 3, {})
    assert config.warnings == ()
    changed = parsed(exactly_once_source_support="Preparing", scheduled_rebalance_max_delay_ms="300000")
    assert (changed.transactional_leader, changed.exactly_once_enabled, changed.max_delay_is_set) == (True, False, True)
    assert parsed(exactly_once_source_support="ENABLED").exactly_once_enabled


#: What two settings owe each other: the keys of a file, and the keys that its refusal names.
TOGETHER = [
    (
        {"inter.worker.signature.algorithm": "HmacSHA512"},
        ("inter.worker.signature.algorithm", "inter.worker.verification.algorithms"),
    ),
    ({"heartbeat.interval.ms": "10000"}, ("heartbeat.interval.ms", "session.timeout.ms")),
    ({"worker.lease.ms": "10001"}, ("worker.lease.ms", "session.timeout.ms")),
    ({"status.storage.topic": "configs"}, ("status.storage.topic", "config.storage.topic")),
]


@pytest.mark.parametrize(("props", "named"), TOGETHER, ids=str)
def test_settings_that_do_not_fit_together_name_each_other(props: dict[str, str], named: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerConfig.parse({**SMALLEST, **props})
    assert caught.value.key == named[0]
    assert all(key in str(caught.value) for key in named)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("bootstrap.servers", "", "must not be empty"),
        ("bootstrap.servers", "a:1,,b:1", "values must not be empty"),
        ("listeners", "", "must not be empty"),
        ("listeners", "ftp://:21", "must be either"),
        ("listeners", "8083", "right format"),
        ("listeners", "http://:99999", "between 0 and 65535"),
        ("admin.listeners", "8083", "right format"),
        ("rest.advertised.listener", "ftp", "http or https"),
        ("plugin.path", "", "must not be empty"),
        ("exactly.once.source.support", "on", r"must be one of \(case insensitive\): DISABLED, ENABLED, PREPARING"),
        ("connect.protocol", "x", "Invalid Connect protocol"),
        ("inter.worker.key.generation.algorithm", "AES", "not supported"),
        ("inter.worker.verification.algorithms", "", "At least one"),
        ("inter.worker.key.size", "8", "at least 40"),
        ("offset.storage.partitions", "0", "must be positive"),
        ("status.storage.replication.factor", "-2", "must be positive"),
        ("scheduled.rebalance.max.delay.ms", "-1", "at least 0"),
        ("session.timeout.ms", "0", "above 0"),
        ("response.http.headers.config", "put X: y", "Invalid header config action: 'put'"),
        ("response.http.headers.config", "add", "Invalid format of header config"),
        ("response.http.headers.config", "add X", "Invalid format of header name and header value"),
        ("response.http.headers.config", "add X Y: z", "cannot contain whitespace"),
        ("rest.extension.classes", "com.example.Auth", "cannot be loaded"),
        ("group.id", " ", "group.id is empty"),
    ],
)
def test_refused(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        WorkerConfig.parse({**SMALLEST, key: value})


def test_a_mistake_in_a_file_is_told_with_its_line() -> None:
    text = "".join(f"{key}={value}\n" for key, value in SMALLEST.items())
    for line, said in (
        ("connect.protocol=x", r"w\.properties:8: .*connect\.protocol"),
        ("worker.lease.ms=20000", ":8: "),
    ):
        with pytest.raises(ConfigError, match=said):
            WorkerConfig.parse(parse_properties(f"{text}{line}\n", "w.properties"))
    with pytest.raises(ConfigError, match=r"^w\.properties: Missing required configuration"):
        WorkerConfig.parse(parse_properties("group.id=x\n", "w.properties"))


@pytest.mark.parametrize(
    ("session", "heartbeat", "lease"),
    [(60_000, 3000, 5000), (10_000, 3000, 5000), (6000, 1000, 3000), (6000, 3000, 4500), (4000, 3000, 4000)],
)
def test_a_lease_leaves_work_the_rest_of_the_session_to_end_in(session: int, heartbeat: int, lease: int) -> None:
    assert parsed(session_timeout_ms=str(session), heartbeat_interval_ms=str(heartbeat)).lease_ms == lease


def test_topics_take_further_settings_but_one_partition_and_compaction() -> None:
    config = parsed(
        config_storage_partitions="7",
        config_storage_min_insync_replicas="2",
        offset_storage_cleanup_policy="delete",
        offset_storage_partitions="-1",
        status_storage_replication_factor="-1",
    )
    assert config.config_topic == NewTopic("configs", 1, 3, {"min.insync.replicas": "2"})
    assert config.offset_topic == NewTopic("offsets", -1, 3, {})
    assert config.status_topic == NewTopic("statuses", 5, -1, {})
    assert [warning.partition(" ")[0] for warning in config.warnings] == [
        "config.storage.partitions",
        "offset.storage.cleanup.policy",
    ]


def test_clients() -> None:
    config = parsed(client_id="w1", producer_acks="all", security_protocol="SSL", admin_retries="3")
    assert config.internal_client("configs")["client.id"] == "workers-w1-configs"
    assert config.internal_client("configs")["security.protocol"] == "SSL"
    assert parsed().internal_client("offsets")["client.id"] == "workers-offsets"
    assert config.client_props("producer") == {"bootstrap.servers": "broker:9092", "acks": "all"}
    admin = config.client_props("admin")
    assert (admin["retries"], admin["security.protocol"]) == ("3", "SSL")
    assert "producer.acks" not in admin


def test_references_are_resolved_and_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_PASSWORD", "s3cret-word")
    config = WorkerConfig.parse(
        {
            **SMALLEST,
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "ssl.key.password": "${env:WORKER_PASSWORD}",
            "producer.ssl.key.password": "${env:WORKER_PASSWORD}",
        }
    )
    assert config.raw["ssl.key.password"] == "${env:WORKER_PASSWORD}"
    assert config.client_props("producer")["ssl.key.password"] == "s3cret-word"
    assert config.transformer.transform({"x": "${env:WORKER_PASSWORD}"}) == {"x": "s3cret-word"}
    assert "s3cret-word" not in repr(config) + repr(dict(config.values))
    with pytest.raises(ConfigError, match=r"Invalid value \$\{env:WORKER_PASSWORD\} for configuration connect"):
        WorkerConfig.parse({**config.raw, "connect.protocol": "${env:WORKER_PASSWORD}"})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("session.timeot.ms", "is session.timeout.ms meant?"),
        ("producer.linger.mss", "is producer.linger.ms meant?"),
        ("plugin.path", "Python packages"),
        ("value.converter.schema.content", "has no effect: it is for sinks, which do not run here"),
        ("consumer.max.poll.records", "has no effect: sinks, which would use it, do not run here"),
        ("consumer.ssl.protocol", "has no effect: sinks, which would use it, do not run here"),
        ("consumer.max.pol.records", "is consumer.max.poll.records meant?"),
        ("producer.buffer.memory", "is not supported yet and has no effect"),
        ("producer.override.acks", "set it in a connector's config, or producer.acks for all connectors"),
        ("admin.metadata.max.age.ms", "has no effect: metadata is refreshed when"),
        ("listeners.https.ssl.keystore.locaton", "is listeners.https.ssl.keystore.location meant?"),
        ("admin.listeners.https.ssl.truststore.pasword", "is admin.listeners.https.ssl.truststore.password meant?"),
        ("listeners.https.sasl.mechanism", "is not known and has no effect"),
        ("listeners.https.ssl.protocol", "is not supported yet and has no effect"),
        ("admin.listeners.https.ssl.provider", "is not supported yet and has no effect"),
        ("metrics.listeners.https.ssl.key.password", "use listeners.https.ssl.key.password"),
        ("metrics.context.region", "has no effect: /metrics serves the current value"),
        ("connector.client.config.override.polcy", "is connector.client.config.override.policy meant?"),
        ("link.listner", "is link.listener meant?"),
        ("config.storage.replication.factr", "is config.storage.replication.factor meant?"),
        ("status.storage.retention", "brokers may refuse to create the topic with it"),
        ("config.providers.vault.class", "config.providers does not name 'vault'"),
        ("tasks.max", "has no effect in a worker's file: set it in the config of a connector"),
        ("transforms.a.type", "has no effect in a worker's file: set it in the config of a connector"),
        ("forwarding.admin.class", "set it in the config of a mirror's connector, or a mm2.properties"),
        ("admin.retries", "is not supported yet and has no effect"),
        ("producer.ssl.protocol", "is not supported yet and has no effect"),
        ("listeners.https.ssl.cipher.suites", "cannot select among the suites of TLS 1.3"),
        ("internal.key.converter", "JsonConverter without schemas"),
    ],
)
def test_what_has_no_effect_is_said(key: str, said: str) -> None:
    (warning,) = WorkerConfig.parse({**SMALLEST, key: "TLS_AES_256_GCM_SHA384"}).warnings
    assert warning.startswith(key)
    assert said in warning


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # A consumer reads the offset topic that a connector has of its own.
        ("consumer.sasl.mechanism", "PLAIN"),
        ("consumer.client.id", "readers"),
        # A broker takes it, although TopicConfig does not name it.
        ("offset.storage.internal.segment.bytes", "1000000"),
    ],
)
def test_a_key_with_an_effect_is_not_warned_about(key: str, value: str) -> None:
    assert not WorkerConfig.parse({**SMALLEST, key: value}).warnings


@pytest.mark.parametrize("key", ["clas", "param.allowed.path"])
def test_a_misspelt_parameter_of_a_provider_is_said(key: str) -> None:
    providers = {"config.providers": "f", "config.providers.f.class": "file", f"config.providers.f.{key}": "/x"}
    (warning,) = WorkerConfig.parse({**SMALLEST, **providers}).warnings
    assert warning.startswith(f"config.providers.f.{key} is not known and has no effect")
    assert "config.providers.f.param.allowed.paths" in warning


def test_a_repeated_address_is_forgiven_with_a_warning() -> None:
    config = parsed(bootstrap_servers="a:1,b:1,a:1")
    assert config.values.strings("bootstrap.servers") == ("a:1", "b:1")
    assert len(config.warnings) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("spark.master", "producer.acks", "producer.compression.zstd.level", "status.storage.segment.ms"),
        *("link.advertised.address", "producer.metadata.max.age.ms", "key.converter.schemas.enable"),
        *("producer.sasl.client.callback.handler.class", "sasl.client.callback.handler.class"),
        "listeners.https.ssl.key.password",
    ],
)
def test_what_is_handed_on_is_known(name: str) -> None:
    assert WorkerConfig.parse({**SMALLEST, name: "1"}).warnings == ()


def test_every_default_passes_its_own_check() -> None:
    for setting in WORKER.settings.values():
        if setting.check is not None and not isinstance(setting.default, Required):
            setting.check(setting.name, setting.default)
