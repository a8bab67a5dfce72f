"""What a source connector is told of exactly-once."""

from __future__ import annotations

import pytest

from connect.api.source import ExactlyOnceSupport
from connect.core.errors import ConfigError
from connectors.config.client_config import Rhythm, exactly_once_support, rhythm, support_errors
from connectors.config.connector_configs import WORKER

ENABLED = {
    "bootstrap.servers": "a:1,b:2",
    "offset.storage.topic": "offsets",
    "offset.flush.interval.ms": "700",
    "exactly.once.source.support": "ENABLED",
}
COMMITTED = {"consumer.isolation.level": "read_committed"}


def found(worker: dict[str, str], **connector: str) -> Rhythm | None:
    props = {key.replace("_", "."): value for key, value in connector.items()}
    return rhythm(COMMITTED | props, worker, WORKER.parse(worker))


@pytest.mark.parametrize(
    ("props", "supported"),
    [
        ({}, False),
        (COMMITTED, True),
        ({"source.consumer.isolation.level": "read_committed"}, True),
        ({**COMMITTED, "source.consumer.isolation.level": "read_uncommitted"}, False),
        ({"isolation.level": "read_committed"}, False),
    ],
)
def test_support_is_a_matter_of_what_the_source_is_read_like(props: dict[str, str], supported: bool) -> None:
    assert (exactly_once_support(props) is ExactlyOnceSupport.SUPPORTED) is supported
    assert bool(support_errors({**props, "exactly.once.support": "required"})) is not supported
    assert support_errors(props) == []


def test_transactions_follow_the_boundary() -> None:
    assert found({**ENABLED, "exactly.once.source.support": "preparing"}) is None
    assert found(ENABLED) == Rhythm(100, 500)
    assert found(ENABLED, transaction_boundary="INTERVAL") == Rhythm(700, 700)
    assert found(ENABLED, transaction_boundary="interval", transaction_boundary_interval_ms="50") == Rhythm(50, 50)
    longest = found(ENABLED, transaction_boundary="interval", transaction_boundary_interval_ms="999999")
    assert longest == Rhythm(30_000, 30_000), "it would time out"


def test_a_transaction_is_over_long_before_it_times_out() -> None:
    every = COMMITTED | {"transaction.boundary": "interval", "transaction.boundary.interval.ms": "999999"}
    assert rhythm(every, ENABLED, WORKER.parse(ENABLED), 90_000) == Rhythm(45_000, 45_000, 90_000)
    assert rhythm(COMMITTED, ENABLED, WORKER.parse(ENABLED), 600) == Rhythm(100, 300, 600)


@pytest.mark.parametrize(
    ("worker", "key", "value"),
    [
        (ENABLED, "transaction.boundary", "connector"),
        (ENABLED, "producer.override.bootstrap.servers", "c:3"),
        (ENABLED | {"exactly.once.source.support": "disabled"}, "exactly.once.support", "REQUIRED"),
    ],
)
def test_what_cannot_be_kept_is_refused(worker: dict[str, str], key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        found(worker, **{key.replace(".", "_"): value})
    assert caught.value.key == key


def test_the_same_servers_in_another_order_are_the_same_cluster() -> None:
    assert found(ENABLED, producer_override_bootstrap_servers="b:2, a:1") == Rhythm(100, 500)


def test_required_of_an_uncommitted_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="read_committed"):
        found(ENABLED, exactly_once_support="required", source_consumer_isolation_level="read_uncommitted")
