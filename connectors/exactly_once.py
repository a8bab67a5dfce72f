"""What a source connector is told of exactly-once: whether, and when its transactions end (KIP-618)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.api.source import ExactlyOnceSupport
from connect.core.client_defs import TRANSACTION_TIMEOUT_MS
from connect.core.config import Values
from connect.core.connector_defs import SOURCE_CONNECTOR
from connect.core.errors import ConfigError
from connectors.clients import connector_client, record_producer

#: With ``transaction.boundary`` poll. Java ends a transaction with every poll; a copy has none. So a record that comes
#: alone is committed at once, and under load a few transactions a second cost next to nothing.
_POLL_SPACING_MS: Final = 100
_POLL_LENGTH_MS: Final = 500
#: A transaction may last for this part of ``transaction.timeout.ms``; the rest is for its end.
_LONGEST_SHARE: Final = 0.5
_BOUNDARIES: Final = SOURCE_CONNECTOR.only("transaction.boundary", "transaction.boundary.interval.ms")
_READ_COMMITTED: Final = "read_committed"
_NOT_COMMITTED: Final = (
    "MirrorSourceConnector can only provide exactly-once guarantees when its source consumer is configured with "
    "isolation.level set to 'read_committed'; otherwise, records from aborted and uncommitted transactions will be "
    "replicated from the source cluster to the target cluster."
)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A transaction ends when all that was read is acknowledged, ``spacing_ms`` after the one before at the earliest,
    or when it has lasted ``length_ms``. The cluster aborts what has lasted ``timeout_ms``."""

    spacing_ms: int
    length_ms: int
    timeout_ms: int = TRANSACTION_TIMEOUT_MS


def exactly_once_support(connector: Mapping[str, str]) -> ExactlyOnceSupport:
    """Whether the copy holds what was committed, and that only (Kafka ``MirrorSourceConnector.exactlyOnceSupport``)."""
    consumer = connector_client(connector, "source", "consumer")
    is_committed = consumer.get("isolation.level") == _READ_COMMITTED
    return ExactlyOnceSupport.SUPPORTED if is_committed else ExactlyOnceSupport.UNSUPPORTED


def support_errors(connector: Mapping[str, str]) -> list[str]:
    """What Java says beside Connect's own words where ``exactly.once.support=required`` cannot be kept."""
    is_required = connector.get("exactly.once.support") == "required"
    if not is_required or exactly_once_support(connector) is ExactlyOnceSupport.SUPPORTED:
        return []
    return [_NOT_COMMITTED]


def rhythm(
    connector: Mapping[str, str], worker: Mapping[str, str], offsets: Values, timeout_ms: int = TRANSACTION_TIMEOUT_MS
) -> Rhythm | None:
    """When transactions end, None without exactly-once; ``offsets`` are the worker's settings, parsed. ``timeout_ms``:
    the ``transaction.timeout.ms`` of the producer of records.

    Raises ConfigError: it is required and cannot be kept; the connector cannot say where transactions end; data and
    offsets must go to one cluster.
    """
    key = "exactly.once.support"
    is_required = connector.get(key, "").strip().lower() == "required"
    if offsets.string("exactly.once.source.support").lower() != "enabled":
        if is_required:
            raise ConfigError(f"{key} = required, but exactly.once.source.support of its worker is not enabled", key)
        return None
    if is_required and exactly_once_support(connector) is ExactlyOnceSupport.UNSUPPORTED:
        raise ConfigError(f"{key} = required: {_NOT_COMMITTED}", key)
    _refuse_two_clusters(connector, worker)
    values = _BOUNDARIES.parse(connector)
    boundary = values.string("transaction.boundary").lower()
    if boundary == "connector":
        key = "transaction.boundary"
        raise ConfigError(f"{key} = connector is for connectors that define boundaries; set poll or interval", key)
    longest_ms = int(timeout_ms * _LONGEST_SHARE)
    if boundary == "poll":
        return Rhythm(_POLL_SPACING_MS, min(_POLL_LENGTH_MS, longest_ms), timeout_ms)
    interval = values["transaction.boundary.interval.ms"]
    interval_ms = interval if isinstance(interval, int) else offsets.integer("offset.flush.interval.ms")
    return Rhythm(min(interval_ms, longest_ms), min(interval_ms, longest_ms), timeout_ms)


def _refuse_two_clusters(connector: Mapping[str, str], worker: Mapping[str, str]) -> None:
    """A transaction cannot span clusters, so offsets lie where the records go."""
    key = "bootstrap.servers"
    data = _servers(record_producer(connector, worker).get(key, ""))
    offsets = _servers(worker.get(key, ""))
    if data != offsets:
        override = "producer.override.bootstrap.servers"
        raise ConfigError(
            f"{override} leads to another cluster than the worker's offsets, and a transaction cannot span both; "
            "remove it, or switch exactly.once.source.support off",
            override,
        )


def _servers(text: str) -> set[str]:
    return {server.strip() for server in text.split(",")}
