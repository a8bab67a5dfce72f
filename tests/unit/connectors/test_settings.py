"""A source connector's settings, typed."""

from __future__ import annotations

import pytest

from connect.core.errors import ConfigError
from connectors.config_defs import CHECKPOINT, HEARTBEAT, OWN, SOURCE
from connectors.dataplane.plan import NO_COMPRESSION, Compression
from connectors.settings import MirrorSourceSettings, source_settings

WORKER_CONFIG = {"offset.storage.topic": "mm2-offsets.us.internal"}


def settings(**connector: str) -> MirrorSourceSettings:
    """The settings for keys written with underscores instead of dots."""
    props = {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        **{key.replace("_", "."): value for key, value in connector.items()},
    }
    return source_settings(props, WORKER_CONFIG)


def test_defaults() -> None:
    found = settings()
    assert found.flow == "us->eu"
    assert (found.enabled, found.tasks_max, found.replication_factor) == (True, 1, 2)
    assert (found.read_committed, found.auto_offset_reset) == (False, "earliest")
    assert found.refresh_topics_interval_s == 600
    assert (found.commit_interval_ms, found.lease_ms, found.epoch_ms) == (1000, 5000, 60_000)
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
        ("consumer_client_rack", "a", "client_rack", "a"),
        ("errors_tolerance", "all", "skips_refused", True),
        ("errors_log_enable", "true", "logs_skipped", True),
        ("producer_override_compression_type", "zstd", "compression", Compression(4, 3)),
        ("producer_override_compression_type", "snappy", "compression", Compression(2)),
        ("producer_override_compression_gzip_level", "9", "compression", NO_COMPRESSION),
        ("lease_ms", "2000", "lease_ms", 2000),
        ("copy_epoch_ms", "10000", "epoch_ms", 10_000),
        ("spark_master", "local[2]", "spark", {"spark.master": "local[2]"}),
        ("topics", "a,b,a", "warnings", ("topics names elements twice; it is taken as a,b",)),
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
        ("transforms", "mask", "transforms"),
        ("value_converter", "my.Converter", "value.converter"),
        ("exactly_once_support", "REQUIRED", "exactly.once.support"),
        ("topics_exclude", "[", "topics.exclude"),
    ],
)
def test_what_is_refused_names_its_key(key: str, value: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{key: value})
    assert caught.value.key == named


def test_every_setting_is_explained() -> None:
    for config in (SOURCE, CHECKPOINT, HEARTBEAT):
        for name, setting in config.settings.items():
            assert name == setting.name
            assert setting.doc.endswith((".", "?")), name
        assert len(config.markdown().splitlines()) == 2 + len(config.settings)
    assert set(OWN.settings) <= set(SOURCE.settings)


def test_defaults_are_valid() -> None:
    for config in (SOURCE, CHECKPOINT, HEARTBEAT):
        refused = {name: each.errors for name, each in config.validate({}).items() if each.errors}
        assert set(refused) == {"name", "connector.class", "source.cluster.alias"}
