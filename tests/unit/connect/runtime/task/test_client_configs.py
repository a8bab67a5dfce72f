"""Which keys reach which client of a connector."""

from __future__ import annotations

import pytest

from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError
from connect.runtime.task import client_configs
from tests.kit.work import WORKER

CONFIG = WorkerConfig.parse(
    {
        **WORKER,
        "client.id": "the-worker",
        "producer.linger.ms": "7",
        "producer.batch.size": "100",
        "consumer.client.id": "all-consumers",
        "admin.retries": "3",
    }
)


def test_a_producer_has_connects_defaults() -> None:
    settings = client_configs.producer_settings(WorkerConfig.parse(WORKER), {}, "c-0", None)
    assert settings.connection.client_id == "connector-producer-c-0"
    assert settings.connection.bootstrap == (("127.0.0.1", 1),)
    assert (settings.acks, settings.idempotent, settings.delivery_timeout_ms) == (-1, False, 2**31 - 1)
    assert (settings.linger_ms, settings.batch_bytes, settings.compression) == (5, 16384, None)
    assert (settings.max_request_bytes, settings.transactional_id) == (1048576, None)


def test_a_connector_overrides_the_worker() -> None:
    own = {
        "producer.override.linger.ms": "9",
        "producer.override.bootstrap.servers": "other:9",
        "producer.override.acks": "1",
        "producer.override.compression.type": "zstd",
        "producer.override.client.id": "mine",
        "consumer.override.linger.ms": "11",
    }
    settings = client_configs.producer_settings(CONFIG, own, "c-0", None)
    assert (settings.linger_ms, settings.batch_bytes, settings.acks, settings.compression) == (9, 100, 1, "zstd")
    assert settings.connection.bootstrap == (("other", 9),)
    assert settings.connection.client_id == "mine"
    assert client_configs.client_props(CONFIG, own, "consumer")["bootstrap.servers"] == "127.0.0.1:1"


def test_client_ids() -> None:
    assert client_configs.client_connection(CONFIG, {}, "consumer", "c").client_id == "all-consumers"
    # The worker's own id reaches its admin clients as a key, and is not meant for connectors'.
    assert client_configs.client_connection(CONFIG, {}, "admin", "c").client_id == "connector-adminclient-c"
    assert client_configs.task_transactional_id("g", "my connector", 3) == "g-my connector-3"


def test_exactly_once_decides_what_it_needs() -> None:
    own = {"producer.override.enable.idempotence": "false", "producer.override.transactional.id": "mine"}
    settings = client_configs.producer_settings(CONFIG, own, "c-0", "g-c-0")
    assert (settings.idempotent, settings.transactional_id) == (True, "g-c-0")
    reported = client_configs.ignored_under_exactly_once(CONFIG, own)
    assert [sentence.split()[0] for sentence in reported] == ["enable.idempotence", "transactional.id"]
    assert client_configs.ignored_under_exactly_once(CONFIG, {}) == []


@pytest.mark.parametrize("acks", ["0", "1"])
def test_transactions_need_all_acknowledgements(acks: str) -> None:
    with pytest.raises(ConfigError, match="needs all"):
        client_configs.producer_settings(CONFIG, {"producer.override.acks": acks}, "c-0", "g-c-0")
