"""Which keys reach which client of a flow, the ids that quotas bind to, and what is decided about exactly-once."""

from __future__ import annotations

import pytest

from connect.api.source import ExactlyOnceSupport
from connect.core.config.properties import parse_properties
from connect.core.errors import ConfigError
from connectors.config.client_config import (
    FlowClients,
    Rhythm,
    connector_client,
    exactly_once_support,
    record_producer,
    rhythm,
    support_errors,
)
from connectors.config.connector_configs import WORKER
from connectors.config.mm2_properties import Flow, MirrorMakerConfig, mirrored

BASE = """
clusters = us, eu
us.bootstrap.servers = a:9092
eu.bootstrap.servers = b:9092
us->eu.enabled = true
"""


def flow(lines: str = "") -> Flow:
    (found,) = mirrored(MirrorMakerConfig(parse_properties(BASE + lines, "mm2.properties")).flows_to_run())
    return found


def ids(clients: FlowClients) -> dict[str, str]:
    return {
        "consumer": clients.replication_consumer(3).client_id,
        "producer": clients.record_producer(3).client_id,
        "source admin": clients.source_admin().client_id,
        "target admin": clients.target_admin().client_id,
        "offsets": clients.offsets().client_id,
        "syncs producer": clients.offset_syncs_producer(3).client_id,
        "syncs admin": clients.offset_syncs_admin().client_id,
    }


def test_ids_are_javas() -> None:
    assert ids(flow().clients()) == {
        "consumer": "us->eu|MirrorSourceConnector-3|replication-consumer",
        "producer": "connector-producer-MirrorSourceConnector-3",
        "source admin": "us->eu|MirrorSourceConnector|replication-source-admin",
        "target admin": "us->eu|MirrorSourceConnector|replication-target-admin",
        "offsets": "us-mm2-us->eu-offsets",
        "syncs producer": "us->eu|MirrorSourceConnector-3|offset-syncs-source-producer",
        "syncs admin": "us->eu|MirrorSourceConnector|offset-syncs-source-admin",
    }


def test_ids_of_the_users_own() -> None:
    lines = """
    us.consumer.client.id = reader
    eu.producer.client.id = writer
    us->eu.admin.client.id = boss
    us->eu.source.producer.client.id = syncer
    us->eu.name = mirror
    eu.client.id = node
    eu.group.id = group
    """
    assert ids(flow(lines).clients()) == {
        "consumer": "reader|us->eu|mirror-3|replication-consumer",
        "producer": "writer",
        "source admin": "boss|us->eu|mirror|replication-source-admin",
        "target admin": "boss|us->eu|mirror|replication-target-admin",
        "offsets": "group-node-offsets",
        "syncs producer": "syncer|us->eu|mirror-3|offset-syncs-source-producer",
        "syncs admin": "boss|us->eu|mirror|offset-syncs-source-admin",
    }


def test_offset_syncs_on_the_target() -> None:
    clients = flow("us->eu.offset-syncs.topic.location = target\nus->eu.target.producer.client.id = x\n").clients()
    producer, admin = clients.offset_syncs_producer(0), clients.offset_syncs_admin()
    assert producer.bootstrap == admin.bootstrap == (("b", 9092),)
    assert producer.client_id == "x|us->eu|MirrorSourceConnector-0|offset-syncs-target-producer"
    assert admin.client_id == "us->eu|MirrorSourceConnector|offset-syncs-target-admin"
    assert flow().clients().offset_syncs_producer(0).bootstrap == (("a", 9092),)


def test_the_producer_of_records_is_the_workers_and_can_be_overridden() -> None:
    found = flow("eu.producer.linger.ms = 1\neu.producer.acks = 1\nus->eu.producer.override.acks = all\n")
    props = record_producer(found.connector_config(), found.worker_config())
    assert props == {"bootstrap.servers": "b:9092", "linger.ms": "1", "acks": "all"}
    assert found.clients().record_producer(0).bootstrap == (("b", 9092),)


def test_a_client_of_the_connector_sees_connection_keys_and_its_own() -> None:
    connector = {
        "source.cluster.bootstrap.servers": "a:1",
        "source.cluster.security.protocol": "SSL",
        "source.cluster.offset.flush.interval.ms": "5",
        "target.cluster.bootstrap.servers": "b:1",
        "consumer.fetch.min.bytes": "1",
        "consumer.security.protocol": "PLAINTEXT",
        "source.consumer.fetch.min.bytes": "2",
        "target.consumer.fetch.min.bytes": "3",
        "producer.acks": "all",
    }
    found = connector_client(connector, "source", "consumer")
    assert found == {"bootstrap.servers": "a:1", "security.protocol": "PLAINTEXT", "fetch.min.bytes": "2"}


OVERRIDE = "us->eu.producer.override"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "us.security.protocol = SASL_PLAINTEXT\nus.sasl.mechanism = PLAIN",
            ": cluster us: us.sasl.jaas.config is missing for sasl.mechanism PLAIN",
        ),
        (
            "security.protocol = SASL_PLAINTEXT\nsasl.mechanism = PLAIN\nsasl.jaas.config = x.Y required;",
            ":8: cluster us: sasl.jaas.config has no username for PLAIN",
        ),
        (
            "us.consumer.security.protocol = SASL_PLAINTEXT\nus.sasl.mechanism = LDAP",
            ":7: cluster us: us.sasl.mechanism 'LDAP' is unknown",
        ),
        ("eu.bootstrap.servers = b", ":6: cluster eu: 'b' in eu.bootstrap.servers is not host:port"),
        (f"{OVERRIDE}.request.timeout.ms = 1s", f":6: cluster eu: {OVERRIDE}.request.timeout.ms is '1s'"),
        (
            "us->eu.consumer.request.timeout.ms = 2s\nus.request.timeout.ms = x",
            ":6: cluster us: us->eu.consumer.request.timeout.ms is '2s'",
        ),
        ("eu.request.timeout.ms = x", ":6: cluster eu: eu.request.timeout.ms is 'x', not a number of milliseconds"),
    ],
)
def test_wrong_connection_keys_are_found_in_the_file(lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flow(lines).clients()
    assert str(caught.value).startswith(f"mm2.properties{message}")


def test_repr_shows_no_password() -> None:
    lines = """
    security.protocol = SASL_PLAINTEXT
    sasl.mechanism = PLAIN
    sasl.jaas.config = x.Y required username="bob" password="s3cret";
    """
    clients = flow(lines).clients()
    assert clients.offsets().password == "s3cret"
    assert "s3cret" not in repr(clients)


ENABLED = {"bootstrap.servers": "a:1,b:2", "offset.storage.topic": "offsets", "offset.flush.interval.ms": "700"}
ENABLED["exactly.once.source.support"] = "ENABLED"
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
