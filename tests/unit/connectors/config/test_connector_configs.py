"""A source connector's settings, typed; filters and policies of installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import cast

import pytest

from connect.api import plugins
from connect.cli.reference import markdown
from connect.core.config.config_def import ConfigDef
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import NewTopic
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connectors import policy
from connectors.config.client_config import FlowClients, flow_clients, open_admin
from connectors.config.connector_configs import (
    MirrorSourceSettings,
    OffsetSyncsSettings,
    checkpoint_settings,
    make_group_filter,
    make_property_filter,
    make_topic_filter,
    source_settings,
)
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, OWN, SOURCE
from connectors.formats.types import NO_COMPRESSION, Compression
from connectors.policy import IdentityReplicationPolicy, find_policy, make_policy
from connectors.source.plugin import MirrorSource, settings_of
from connectors.source.worker_context import MirrorHost
from connectors.topic_sync.cluster_changes import CreateTopic, Refusals, make_topics

WORKER_CONFIG = {"offset.storage.topic": "mm2-offsets.us.internal"}
CLASS = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
ALIASES = {"name": "m", "connector.class": CLASS, "source.cluster.alias": "us", "target.cluster.alias": "eu"}


def settings(**connector: str) -> MirrorSourceSettings:
    """The settings for keys written with underscores instead of dots."""
    props = {key.replace("_", "."): value for key, value in connector.items()}
    return source_settings({**ALIASES, "name": "MirrorSourceConnector", **props}, WORKER_CONFIG)


def test_offset_syncs() -> None:
    assert settings().offset_syncs == OffsetSyncsSettings("mm2-offset-syncs.eu.internal", True, 3, 100)
    keys = ("offset-syncs_topic_location", "offset-syncs_topic_replication_factor", "offset_lag_max")
    elsewhere = dict(zip(keys, ("target", "1", "0"), strict=True))
    assert settings(**elsewhere).offset_syncs == OffsetSyncsSettings("mm2-offset-syncs.us.internal", False, 1, 0)
    assert settings(**{"emit_offset-syncs_enabled": "false"}).offset_syncs is None


async def test_offset_syncs_switched_off_and_on() -> None:
    props = {"name": "m", "source.cluster.alias": "us", "emit.offset-syncs.enabled": "false"}
    source = MirrorSource(cast(MirrorHost, SimpleNamespace(worker={})))
    assert "emit.offset-syncs.enabled" not in await source.validate(props, {})
    props["offset-syncs.topic.location"] = "target"
    assert (await source.validate(props, {}))["emit.offset-syncs.enabled"].errors == (
        "MirrorSourceConnector can't setup offset-syncs feature while emit.offset-syncs.enabled set to false",
    )


JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


async def test_a_workers_converters_are_named_when_the_connector_is_made() -> None:
    host = SimpleNamespace(worker={"key.converter": JSON, "value.converter": JSON}, find_plugin=None)
    source = MirrorSource(cast(MirrorHost, host))
    (said,) = (await source.validate(ALIASES, {}))["key.converter"].errors
    assert said.startswith(f"key.converter {JSON} of the worker would change the bytes of every record")
    assert f"Set key.converter, value.converter, header.converter to {BYTES} for the connector" in said
    for name in (BYTES, "ByteArrayConverter", "ByteArray"):
        own = {"key.converter": name, "value.converter": name}
        assert await source.validate({**ALIASES, **own}, {}) == {}
    (said,) = (await source.validate({**ALIASES, **own, "header.converter": JSON}, {}))["header.converter"].errors
    assert said.startswith(f"header.converter {JSON} would change")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({}, "cluster eu: target.cluster.bootstrap.servers is missing"),
        ({"target.admin.bootstrap.servers": "x"}, "cluster eu: .*target.admin.bootstrap.servers"),
    ],
)
def test_a_connectors_clients_are_named_by_its_keys(more: dict[str, str], named: str) -> None:
    props = {**ALIASES, "source.cluster.bootstrap.servers": "a:9092", **more}
    host = SimpleNamespace(worker={**WORKER_CONFIG, "bootstrap.servers": "b:9092"})
    with pytest.raises(ConfigError, match=named):
        settings_of(props, cast(MirrorHost, host))


@pytest.mark.parametrize("prefix", ["source.cluster.", "source.admin."])
def test_a_store_of_a_connector_that_cannot_be_read_is_named_by_its_key(prefix: str) -> None:
    props = {**ALIASES, f"{prefix}security.protocol": "SSL", f"{prefix}ssl.truststore.location": "/none.p12"}
    found = checkpoint_settings(props | {"source.cluster.bootstrap.servers": "a:9092"})
    said = f"^cluster us: {prefix}ssl.truststore.location /none.p12 cannot be read"
    with pytest.raises(ConfigError, match=said) as got:
        found.connection("source", "admin", "role")
    assert got.value.key == f"{prefix}ssl.truststore.location"


def test_defaults() -> None:
    found = settings()
    assert found.flow == "us->eu"
    assert (found.enabled, found.tasks_max, found.replication_factor) == (True, 1, 2)
    assert (found.read_committed, found.auto_offset_reset) == (False, "earliest")
    assert found.refresh_topics_interval_s == 600
    assert (found.flush_interval_ms, found.lease_ms, found.epoch_ms) == (60_000, 5000, 3_600_000)
    assert (found.offsets_topic, found.offsets_topic_partitions) == ("mm2-offsets.us.internal", 25)
    assert found.offsets_topic_replication_factor == 3
    assert (found.fetch_max_bytes, found.fetch_min_bytes) == (None, None)
    assert found.remote_topic("orders") == "us.orders"
    assert (found.skips_refused, found.logs_skipped, found.compression) == (False, False, NO_COMPRESSION)


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("tasks_max", "8", "tasks_max", 8),
        ("refresh_topics_interval_seconds", "5", "refresh_topics_interval_s", 5),
        ("refresh_topics_enabled", "false", "refresh_topics_interval_s", None),
        ("consumer_isolation_level", "read_committed", "read_committed", True),
        ("source_consumer_isolation_level", "read_committed", "read_committed", True),
        ("target_consumer_isolation_level", "read_committed", "read_committed", False),
        ("consumer_auto_offset_reset", "latest", "auto_offset_reset", "latest"),
        ("source_consumer_fetch_max_bytes", "7", "fetch_max_bytes", 7),
        ("consumer_max_partition_fetch_bytes", "7", "max_partition_fetch_bytes", 7),
        ("consumer_fetch_max_wait_ms", "7", "fetch_max_wait_ms", 7),
        ("consumer_fetch_min_bytes", "7", "fetch_min_bytes", 7),
        ("source_consumer_client_rack", "b", "client_rack", "b"),
        ("target_consumer_client_rack", "b", "client_rack", ""),
        ("errors_tolerance", "all", "skips_refused", True),
        ("errors_log_enable", "true", "logs_skipped", True),
        ("producer_override_compression_type", "zstd", "compression", Compression(4, 3)),
        ("producer_override_compression_type", "snappy", "compression", Compression(2)),
        ("producer_override_compression_gzip_level", "9", "compression", NO_COMPRESSION),
        ("lease_ms", "2000", "lease_ms", 2000),
        ("copy_epoch_ms", "10000", "epoch_ms", 10_000),
        ("spark_master", "local[2]", "spark", {"spark.master": "local[2]"}),
        ("topics", "a,b,a", "warnings", ("topics contains repeated elements; using a,b",)),
    ],
)
def test_what_is_set(key: str, value: str, field: str, expected: object) -> None:
    assert getattr(settings(**{key: value}), field) == expected


def test_topics_and_policy_decide_together() -> None:
    found = settings(topics="orders.*,eu.x", topics_exclude=".*2")
    chosen = [name for name in ("orders", "orders2", "eu.x", "heartbeats", "x") if found.should_mirror(name)]
    assert chosen == ["orders", "heartbeats"]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("consumer_isolation_level", "x", "consumer.isolation.level"),
        ("source_consumer_fetch_max_bytes", "-1", "consumer.fetch.max.bytes"),
        ("consumer_auto_offset_reset", "none", "consumer.auto.offset.reset"),
        ("topic_filter_class", "my.Filter", "topic.filter.class"),
        ("errors_tolerance", "some", "errors.tolerance"),
        ("producer_override_compression_type", "brotli", "producer.compression.type"),
        ("producer_override_compression_gzip_level", "0", "producer.compression.gzip.level"),
        ("producer_override_compression_zstd_level", "23", "producer.compression.zstd.level"),
        ("lease_ms", "1", "lease.ms"),
        ("transforms", "mask", "transforms.mask.type"),
        ("value_converter", "my.Converter", "value.converter"),
        ("exactly_once_support", "REQUIRED", "exactly.once.support"),
        ("topics_exclude", "[", "topics.exclude"),
    ],
)
def test_what_is_refused_names_its_key(key: str, value: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{key: value})
    assert caught.value.key == named


def test_the_removed_policy_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"fail .* restart .*made under new-remote-topic are kept") as caught:
        settings(on_topic_recreated="new-remote-topic")
    assert caught.value.key == "on.topic.recreated"
    over_rest = SOURCE.validate({"on.topic.recreated": "new-remote-topic"})["on.topic.recreated"]
    assert over_rest.errors == (caught.value.message,)


def test_every_setting_is_explained() -> None:
    for config in (SOURCE, CHECKPOINT, HEARTBEAT):
        for name, setting in config.settings.items():
            assert name == setting.name
            assert setting.doc.endswith((".", "?")), name
        assert len(markdown(config).splitlines()) == 2 + len(config.settings)
    assert set(OWN.settings) <= set(SOURCE.settings)


def test_defaults_are_valid() -> None:
    for config in (SOURCE, CHECKPOINT, HEARTBEAT):
        refused = {name: each.errors for name, each in config.validate({}).items() if each.errors}
        assert set(refused) == {"name", "connector.class", "source.cluster.alias"}


def test_records_go_through_a_query_and_transforms() -> None:
    query = "SELECT upper(value) AS value FROM records"
    props = {
        **ALIASES,
        "consumer.isolation.level": "read_committed",
        "transform.sql": query,
        "transforms": "lean",
        "transforms.lean.type": "DropHeaders",
        "transforms.lean.headers": "trace",
        "transforms.lean.predicate": "traced",
        "transforms.lean.negate": "true",
        "predicates": "traced",
        "predicates.traced.type": "HasHeaderKey",
        "predicates.traced.name": "trace",
    }
    found = source_settings(props, {"offset.storage.topic": "offsets"})
    (step,) = found.transforms
    assert found.transform_sql == query
    assert step.transformation.name == "DropHeaders"
    assert step.transformation.props["headers"] == "trace"
    assert step.negate and step.predicate is not None and step.predicate.name == "HasHeaderKey"


ROUTES = {"transform_sql": "SELECT IF(value IS NULL, 'gone', topic) AS topic FROM records", "transform_topic": "gone"}
ROUTING = {"type": "RegexRouter", "regex": ".*", "replacement": "gone"}
ROUTER = {"transform_sql": "", "transforms": "x", **{f"transforms_x_{key}": value for key, value in ROUTING.items()}}


def test_of_topics_that_records_are_sent_to_one_is_filled() -> None:
    found = settings(**ROUTES, transform_other_topics="${topic}")
    assert found.remote_topic("orders") == "us.gone" and found.names.by_query
    assert found.offset_syncs is None, "those of who fills the usual topic are read"
    assert found.should_mirror("orders") and not found.should_mirror("heartbeats")
    assert settings(**ROUTES, transform_other_topics="orders").offset_syncs is None, "the same, named in full"
    usual = settings(**{**ROUTES, "transform_topic": "${topic}"}, transform_other_topics="gone")
    assert usual.should_mirror("heartbeats")
    assert usual.remote_topic("orders") == "us.orders" and usual.offset_syncs is not None


@pytest.mark.parametrize(
    ("more", "said", "key"),
    [
        ({"transform_topic": "a/b"}, "'a/b', which is not a topic name", "transform.topic"),
        ({"transform_other_topics": "x, ${name}"}, "which is not a topic name", "transform.other.topics"),
        ({"transform_other_topics": "gone"}, "which is also transform.topic", "transform.other.topics"),
        ({"transform_sql": ""}, "nor transforms use it", "transform.topic"),
        ({"transform_sql": "SELECT topic FROM records"}, "nor transforms use it", "transform.topic"),
        (ROUTER, "nor transforms use it", "transform.topic"),
    ],
)
def test_topics_that_cannot_be_filled(more: dict[str, str], said: str, key: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        settings(**{**ROUTES, **more})
    assert refused.value.key == key


class Only:
    """Takes what ``only`` names; everything a filter can be asked."""

    def __init__(self, props: Mapping[str, str]) -> None:
        if "only" not in props:
            raise ConfigError("only is missing", "only")
        self._only = props["only"]

    def should_replicate_topic(self, topic: str) -> bool:
        return topic == self._only

    should_replicate_group = should_replicate_config_property = should_replicate_source_default = should_replicate_topic


def broken(props: Mapping[str, str]) -> Only:
    raise ValueError(props["password"])


def same_names(props: Mapping[str, str]) -> IdentityReplicationPolicy:
    return IdentityReplicationPolicy(source_alias=props["source.cluster.alias"])


class Provisioner(Admin):
    """Creates topics elsewhere."""

    def __init__(self, config: Mapping[str, str], settings: ConnectionSettings, cluster: str) -> None:
        super().__init__(settings, cluster)
        self.config, self.created = config, list[NewTopic]()

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, HeliographError | None]:
        self.created += topics
        return {topic.name: None for topic in self.created}


class NoAdmin:
    """Takes what an admin takes, and is none."""

    def __init__(self, *_: object) -> None:
        pass


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def points(group: str) -> list[EntryPoint]:
        offered = {
            "heliograph.forwarding_admins": {"provisioner": "Provisioner", "other": "NoAdmin"},
            "heliograph.replication_policies": {"same": "same_names"},
            "heliograph.topic_filters": {"only": "Only", "broken": "broken", "gone": "Nobody"},
        }.get(group, {"only": "Only"})
        return [EntryPoint(name, f"{__name__}:{value}", group) for name, value in offered.items()]

    monkeypatch.setattr(plugins, "entry_points", points)
    policy.offered.cache_clear()
    yield
    policy.offered.cache_clear()


ADDRESSED = {**ALIASES, "source.cluster.bootstrap.servers": "u:1", "target.cluster.bootstrap.servers": "e:1"}


def clients_of(props: Mapping[str, str]) -> FlowClients:
    worker = {"bootstrap.servers": "e:1", "group.id": "g", "client.id": ""}
    return flow_clients(
        "us->eu", {**ADDRESSED, **props}, worker, source="us", target="eu", locate=lambda error, *_: error
    )


@pytest.mark.usefixtures("installed")
async def test_topics_are_created_through_the_forwarding_admin() -> None:
    clients = clients_of({"forwarding.admin.class": "provisioner"})
    admin = clients.open_admin(clients.target_admin(), "eu")
    assert isinstance(admin, Provisioner) and admin.config == {**ADDRESSED, "forwarding.admin.class": "provisioner"}
    change = CreateTopic("us.t", "t", 2, 1)
    assert await make_topics(admin, [change], Refusals("us->eu")) == [change]
    assert admin.created == [NewTopic("us.t", 2, 1, {})]
    await admin.close()


@pytest.mark.parametrize("kind", ["consumer", "admin"])
def test_overrides_reach_no_client_of_the_copy(kind: str) -> None:
    overridden, unknown, own = (
        clients_of({key: "mine"}) for key in (f"{kind}.override.client.id", "unknown", f"{kind}.client.id")
    )
    assert overridden == unknown != own


def test_a_flow_may_have_its_own_topic_of_offsets() -> None:
    shared, key = "mm2-offsets.us.internal", "offsets.storage.topic"
    own = settings(**{key: "own"})
    assert (own.offsets_topic, own.offsets_topics) == ("own", (shared, "own"))
    assert settings().offsets_topics == settings(**{key: shared}).offsets_topics == (shared,)


@pytest.mark.usefixtures("installed")
def test_a_forwarding_admin_that_is_no_admin_is_refused() -> None:
    settings = connection_settings({"bootstrap.servers": "e:1"}, client_id="a", where="test")
    with pytest.raises(ConfigError, match=r"other is a NoAdmin; it has to be a subclass of .*Admin"):
        open_admin({"forwarding.admin.class": "other"}, settings, "eu")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("definition", [SOURCE, CHECKPOINT, HEARTBEAT])
def test_a_forwarding_admin_in_java_is_refused(definition: ConfigDef) -> None:
    value = definition.validate({**ALIASES, "forwarding.admin.class": "com.acme.Admin"})["forwarding.admin.class"]
    assert "Class com.acme.Admin could not be found" in value.errors[0]
    assert "heliograph.forwarding_admins" in value.errors[0]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["only", f"{__name__}.Only"])
def test_filters_are_found_by_both_names(name: str) -> None:
    assert make_topic_filter({"topic.filter.class": name, "only": "a"}).should_replicate_topic("a")
    assert make_group_filter({"group.filter.class": name, "only": "a"}).should_replicate_group("a")
    found = make_property_filter({"config.property.filter.class": name, "only": "a"})
    assert found.should_replicate_config_property("a")
    assert not found.should_replicate_source_default("b")


@pytest.mark.usefixtures("installed")
def test_a_policy_is_found() -> None:
    props = {"replication.policy.class": "same", "source.cluster.alias": "us"}
    assert make_policy(props).format_remote_topic("us", "a") == "a"
    assert find_policy("same") == "same"
    assert find_policy("other") is None


@pytest.mark.usefixtures("installed")
def test_what_is_not_known_is_answered_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        make_topic_filter({"topic.filter.class": "gone"})
    assert "topic.filter.class gone is not known" in str(caught.value)
    for name in ("org.apache.kafka.connect.mirror.DefaultTopicFilter", f"{__name__}.Only", "heliograph.topic_filters"):
        assert name in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_what_a_class_refuses_is_passed_on_and_what_it_raises_is_not() -> None:
    with pytest.raises(ConfigError, match="only is missing"):
        make_topic_filter({"topic.filter.class": "only"})
    with pytest.raises(ConfigError) as caught:
        make_topic_filter({"topic.filter.class": "broken", "password": "s3cret"})
    assert str(caught.value) == "topic.filter.class broken cannot be created: ValueError"
