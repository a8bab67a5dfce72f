"""Every key that does not do what its user may expect is named, once, with a word; no other is."""

from __future__ import annotations

import pytest

from connect.core.config.properties import parse_properties
from connectors.config.ignored_keys import connector_notices
from connectors.config.mm2_properties import Connector, Flow, MirrorMakerConfig

BASE = "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"


def notices(*lines: str) -> list[tuple[str, str, str]]:
    found = MirrorMakerConfig(parse_properties(BASE + "\n".join(lines))).notices()
    return [(notice.key, notice.kind, notice.text) for notice in found]


@pytest.mark.parametrize(
    "line",
    [
        "tasks.max = 2",
        "replication.factor = 1",
        "us->eu.topics = orders",
        "topics.exclude = x",
        "us->eu.replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "refresh.topics.interval.seconds = 5",
        "us.consumer.isolation.level = read_committed",
        "us->eu.consumer.fetch.max.bytes = 100",
        "us->eu.source.consumer.auto.offset.reset = latest",
        "eu.producer.request.timeout.ms = 100",
        "us->eu.producer.override.acks = all",
        "security.protocol = PLAINTEXT",
        "us.sasl.mechanism = PLAIN",
        "us.producer.sasl.mechanism = PLAIN",
        "bootstrap.servers = x:1",
        "eu.offset.flush.interval.ms = 100",
        "offset.storage.replication.factor = 1",
        "eu.offset.storage.partitions = 5",
        "eu.config.providers = f\neu.config.providers.f.class = file\neu.config.providers.f.param.allowed.paths = /x",
        "config.providers = f\nconfig.providers.f.class = file\nus->eu.config.providers.f.param.allowed.paths = /x",
        "spark.master = local[2]",
        "us->eu.spark.executor.memory = 1g",
        "lease.ms = 4000",
        "listeners.https.ssl.keystore.location = x",
        "dedicated.mode.enable.public.rest = true\nrest.extension.classes = x",
        "us->eu.value.converter.schemas.enable = false",
        "key.converter.converter.encoding = UTF-16",
        "us.security.protocol = SASL_SSL\nus.sasl.client.callback.handler.class = x",
        "admin.timeout.ms = 5000",
        "us->eu.admin.timeout.ms = 5000",
        "us->eu.producer.override.compression.type = zstd",
        "eu.producer.compression.zstd.level = 7",
        "us->eu.errors.tolerance = all",
        "errors.log.enable = true",
        "us->eu.copy.epoch.ms = 10000",
        "config.providers = ",
        "sync.topic.acls.enabled = false",
        "us->eu.emit.checkpoints.enabled = false",
        "sync.group.offsets.enabled = true",
        "groups = x",
        "us->eu.sync.group.offsets.interval.seconds = 5",
        "checkpoints.topic.replication.factor = 1",
        "us->eu.offset-syncs.topic.location = target",
        "us->eu.offsets.storage.topic = own\nus->eu.consumer.override.client.id = x",
        "us->eu.offsets.storage.topic = own\nus->eu.admin.override.client.id = x",
        "offset-syncs.topic.replication.factor = 1",
        "offset.lag.max = 10",
        "us.ssl.cipher.suites = TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "us->eu.emit.offset-syncs.enabled = true",
        "emit.heartbeats.enabled = False",
        f"key.converter = {'org.apache.kafka.connect.converters.ByteArrayConverter'}",
    ],
)
def test_keys_that_are_heeded_or_switched_off_are_not_named(line: str) -> None:
    assert notices(line) == []


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("us->eu.topic.creation.default.partitions = 5", "unsupported", "is not supported yet"),
        ("eu.plugin.path = /opt", "unsupported", "is not supported yet"),
        ("eu.metric.reporters = com.acme.Reporter", "pointless", "/metrics serves the current value of all metrics"),
        ("us.client.dns.lookup = use_all_dns_ips", "pointless", "all addresses of a name are tried"),
        ("reconnect.backoff.ms = 5", "pointless", "with a built-in backoff"),
        ("us.ssl.cipher.suites = TLS_AES_256_GCM_SHA384", "risky", "TLS_CHACHA20_POLY1305_SHA256 may be used too"),
        ("ssl.cipher.suites = TLS_AES_256_GCM_SHA384", "risky", "TLS_CHACHA20_POLY1305_SHA256 may be used too"),
        ("ssl.protocol = X", "unsupported", "is not supported yet"),
        ("admin.listeners = http://:1", "pointless", "a mirror serves loggers on listeners"),
        ("admin.listeners.https.ssl.client.auth = none", "pointless", "a mirror serves loggers on listeners"),
        ("rest.extension.classes = x", "pointless", "only the public REST API has extensions"),
        ("us->eu.value.converter.schema.content = {}", "pointless", "it is for sinks, which do not run here"),
        ("listeners.https.ssl.keystore.locaton = x", "unknown", "is listeners.https.ssl.keystore.location meant?"),
        ("listeners.https.sasl.mechanism = x", "unknown", "is not known"),
        ("us.listeners = http://:1", "misplaced", "set listeners without a prefix"),
        ("us.rest.auth.basic.file = x", "misplaced", "set rest.auth.basic.file without a prefix"),
        ("us.listeners.https.ssl.key.password = x", "misplaced", "without a prefix"),
        ("us.metrics.context.x = y", "pointless", "/metrics serves"),
        ("connector.client.config.override.policy = None", "pointless", "may override every setting"),
        ("us.connector.client.config.override.policy = None", "pointless", "may override every setting"),
        ("config.storage.replication.factr = 1", "unknown", "is config.storage.replication.factor meant?"),
        ("us.offset.storage.retention.m = 1", "unknown", "is us.offset.storage.retention.ms meant?"),
        ("eu.status.storage.cleanup.policy = delete", "pointless", "always compacted"),
        ("config.providers.vault.class = file", "pointless", "config.providers does not name 'vault'"),
        ("transforms.mask.type = x", "misplaced", "us->eu.transforms.mask.type"),
        ("us->eu.transforms.mask.type = x", "unknown", "us->eu.transforms does not name 'mask'"),
        ("us->eu.topics.blacklist = x", "unknown", "is us->eu.topics.exclude meant?"),
        ("groups.whitelist = x", "unknown", "is groups meant?"),
        ("us.security.providers = x.Y", "unsupported", "is not supported yet"),
        ("security.providers = x.Y", "unsupported", "is not supported yet"),
        ("us.default.api.timeout.ms = 5", "unsupported", "is not supported yet"),
        ("us.consumer.reconnect.backoff.ms = 5", "unsupported", "is not supported yet"),
        ("us->eu.target.consumer.client.rack = x", "unsupported", "is not supported yet"),
        ("us->eu.admin.timeout = 5", "unknown", "timeout is not known"),
        ("us.admin.timeout.ms = 5", "unknown", "is not known"),
        ("us->eu.consumer.poll.timeout.ms = 5", "pointless", "fetches wait for fetch.max.wait.ms"),
        ("consumer.poll.timeout.ms = 5", "pointless", "fetches wait for fetch.max.wait.ms"),
        ("eu.producer.linger.ms = 5", "pointless", "batches are copied unchanged or merged"),
        ("us->eu.errors.log.include.messages = true", "pointless", "never its content"),
        ("errors.retry.timeout = 5", "pointless", "are retried without a limit"),
        ("us.consumer.group.id = x", "pointless", "needs no group"),
        ("consumer.fetch.max.bytes = 5", "misplaced", "us->eu.consumer.fetch.max.bytes"),
        ("use.defaults.from = source", "misplaced", "us->eu.use.defaults.from"),
        ("offset.flush.interval.ms = 5", "misplaced", "eu.offset.flush.interval.ms"),
        ("us->eu.producer.compression.type = zstd", "misplaced", "set producer.override.compression.type"),
        ("producer.compression.type = zstd", "misplaced", "such as us->eu.producer.override.compression.type"),
        ("us->eu.producer.linger.ms = 5", "pointless", "batches are copied unchanged or merged"),
        ("producer.linger.ms = 5", "pointless", "batches are copied unchanged or merged"),
        ("producer.compression.typ = x", "unknown", "is producer.compression.type meant?"),
        ("consumer.max.poll.records = 5", "pointless", "needs no group"),
        ("us->eu.consumer.max.poll.records = 5", "pointless", "needs no group"),
        ("consumer.max.pol.records = 5", "unknown", "is consumer.max.poll.records meant?"),
        ("topic.creation.groups = a", "unsupported", "is not supported yet"),
        ("us->eu.consumer.override.max.poll.records = 5", "pointless", "needs no group"),
        ("us->eu.consumer.override.fetch.max.bytes = 5", "misplaced", "set consumer.fetch.max.bytes for that"),
        ("us->eu.consumer.override.client.id = x", "misplaced", "set consumer.client.id for that"),
        ("us->eu.consumer.override.bogus = x", "unknown", "is not known and has no effect"),
        ("us->eu.admin.override.request.timeout.ms = 5", "misplaced", "set admin.request.timeout.ms for that"),
        ("us->eu.admin.override.retries = 5", "unsupported", "is not supported yet"),
        ("consumer.override.client.id = x", "misplaced", "set consumer.client.id for that"),
        ("us->eu.offset.flush.interval.ms = 5", "misplaced", "set offset.flush.interval.ms for its target cluster"),
        ("us->eu.security.protocol = SSL", "misplaced", "set it for a cluster"),
        ("ap.bootstrap.servers = x:1", "unknown", "clusters does not name 'ap'"),
        ("task.max = 3", "unknown", "is tasks.max meant?"),
        ("us->eu.tpics = x", "unknown", "is us->eu.topics meant?"),
        ("us.bootstrap.server = x", "unknown", "is not known"),
        ("us.consumer.isolation.levl = x", "unknown", "is us.consumer.isolation.level meant?"),
        ("something.else = 1", "unknown", "is not known and has no effect"),
        ("topics = a,b,a", "forgiven", "using a,b"),
    ],
)
def test_keys_that_are_named(line: str, kind: str, text: str) -> None:
    key = line.partition(" = ")[0]
    ((found_key, found_kind, found_text),) = notices(line)
    assert (found_key, found_kind) == (key, kind)
    assert found_text.startswith(f"{key} ")
    assert text in found_text


def test_a_cluster_named_twice_is_forgiven() -> None:
    parsed = MirrorMakerConfig(parse_properties(BASE + "clusters = us, eu, us"))
    assert parsed.clusters == ("us", "eu")
    assert [(notice.key, notice.kind) for notice in parsed.notices()] == [("clusters", "forgiven")]


def test_notices_come_once_and_in_the_files_order() -> None:
    found = notices("zzz = 1", "ssl.protocol = x", "aaa = 1", "topics = a,a")
    assert [key for key, _, _ in found] == ["topics", "zzz", "ssl.protocol", "aaa"]


def test_no_value_is_ever_repeated() -> None:
    found = notices("us.sasl.jaas.confg = s3cret", "us.ssl.key.passwd = s3cret")
    assert len(found) == 2
    assert not any("s3cret" in text for _, _, text in found)


def test_what_a_file_gives_each_connector_needs_no_word() -> None:
    given = ("source.cluster.alias", "target.cluster.session.timeout.ms", "source.producer.bootstrap.servers")
    assert connector_notices(dict.fromkeys(given, "x")) == []
    assert connector_notices({"transforms": "a", "transforms.a.type": "x"}) == []
    (step,) = connector_notices({"transforms": "a", "transforms.b.type": "x"})
    assert step.text == "transforms.b.type has no effect: transforms does not name 'b'"
    others = {"target.producer.linger.ms": "5", "topicz": "x"}
    assert [one.key for one in connector_notices(others)] == list(others)


@pytest.mark.parametrize("connector", Connector)
def test_connectors_of_a_file_have_no_keys_to_name(connector: Connector) -> None:
    parsed = MirrorMakerConfig(parse_properties(BASE + "us.security.protocol = SSL\nus.ssl.key.password = x"))
    assert connector_notices(Flow(parsed, "us", "eu").connector_config(connector)) == []


def test_steps_that_a_reference_may_name_are_not_said_to_be_left_out() -> None:
    assert not connector_notices({"transforms": "${env:STEPS}", "transforms.mask.type": "x"})
