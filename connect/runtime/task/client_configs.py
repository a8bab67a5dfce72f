"""Builds the configs of the Kafka clients of a connector: keys and client ids (Kafka's
``Worker.baseProducerConfigs`` and its other client methods)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.config.client_settings import PRODUCER_USED, OverridePolicy
from connect.core.config.config_def import Read, Values
from connect.core.config.worker_config import ClientKind, WorkerConfig
from connect.core.errors import ConfigError
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings

#: Kafka Connect's producer defaults that differ from the Java producer's: no delivery timeout, and ordering by one
#: request in flight.
_CONNECT_DEFAULTS: Final[Mapping[str, str]] = {
    "acks": "all",
    "delivery.timeout.ms": str(2**31 - 1),
    "enable.idempotence": "false",
}


@dataclass(frozen=True)
class ProducerSettings:
    """The settings of a producer of records; without transactions if ``transactional_id`` is None."""

    connection: ConnectionSettings
    values: Values
    transactional_id: str | None

    batch_bytes = Read("batch.size", Values.integer)
    delivery_timeout_ms = Read("delivery.timeout.ms", Values.integer)
    linger_ms = Read("linger.ms", Values.integer)
    max_request_bytes = Read("max.request.size", Values.integer)
    metadata_max_age_ms = Read("metadata.max.age.ms", Values.integer)
    retry_backoff_ms = Read("retry.backoff.ms", Values.integer)
    transaction_timeout_ms = Read("transaction.timeout.ms", Values.integer)

    @property
    def acks(self) -> int:
        acks = self.values.string("acks")
        return -1 if acks == "all" else int(acks)

    @property
    def compression(self) -> str | None:
        codec = self.values.string("compression.type")
        return None if codec == "none" else codec

    @property
    def idempotent(self) -> bool:
        return self.values.boolean("enable.idempotence") or self.transactional_id is not None


def client_props(config: WorkerConfig, connector: Mapping[str, str], kind: ClientKind) -> dict[str, str]:
    """Return the worker's resolved keys for all connectors, overridden by the connector's ``<kind>.override.*``."""
    prefix = f"{kind}.override."
    own = {key[len(prefix) :]: value for key, value in connector.items() if key.startswith(prefix)}
    return {**config.client_props(kind), **own}


def client_connection(
    config: WorkerConfig, connector: Mapping[str, str], kind: ClientKind, who: str
) -> ConnectionSettings:
    """Return the connection of a connector's client. ``who`` ends the client id: connector, or connector and task.
    Raises ConfigError if a key is missing or wrong."""
    props = client_props(config, connector, kind)
    java = {"producer": "connector-producer", "consumer": "connector-consumer", "admin": "connector-adminclient"}
    return connection_settings(
        props, client_id=_own_id(config, connector, kind) or f"{java[kind]}-{who}", where=f"{kind} of {who}"
    )


def producer_settings(
    config: WorkerConfig, connector: Mapping[str, str], who: str, transactional_id: str | None
) -> ProducerSettings:
    """Return the settings of the producer of a task, or of a connector's offsets. Errors as :func:`client_connection`.
    With a transactional id, keys that would break exactly-once have no effect, as in Java."""
    values = producer_values(config, connector)
    settings = ProducerSettings(client_connection(config, connector, "producer", who), values, transactional_id)
    if settings.idempotent and settings.acks != -1:
        raise ConfigError(f"producer of {who}: acks is {settings.acks}, but an idempotent producer needs all", "acks")
    return settings


def producer_values(config: WorkerConfig, connector: Mapping[str, str]) -> Values:
    """Return the settings of a producer, without its connection. Raises ConfigError if one is invalid."""
    return PRODUCER_USED.parse({**_CONNECT_DEFAULTS, **client_props(config, connector, "producer")})


def check_overrides(policy: OverridePolicy, connector: Mapping[str, str], kinds: Collection[ClientKind]) -> None:
    """Raise ConfigError for an override that the worker's policy does not allow."""
    for kind in kinds:
        prefix = f"{kind}.override."
        for key in connector:
            objection = policy.objection(key.removeprefix(prefix)) if key.startswith(prefix) else None
            if objection is not None:
                raise ConfigError(f"Client Config Overrides not allowed: {objection}", key)


def ignored_under_exactly_once(config: WorkerConfig, connector: Mapping[str, str]) -> list[str]:
    """Describe each producer key of the user that exactly-once overrides."""
    props = client_props(config, connector, "producer")
    reported = []
    if props.get("enable.idempotence", "true").strip().lower() != "true":
        reported.append("enable.idempotence has no effect on a producer under exactly-once: it is true")
    if "transactional.id" in props:
        reported.append("transactional.id has no effect on a producer under exactly-once: Connect sets it")
    return reported


def task_transactional_id(group_id: str, connector: str, task: int) -> str:
    """Return the transactional id of a task's producer (Kafka's ``Worker.taskTransactionalId``)."""
    return f"{group_id}-{connector}-{task}"


def _own_id(config: WorkerConfig, connector: Mapping[str, str], kind: ClientKind) -> str | None:
    """Return the client id that users set for this kind of client; the worker's ``client.id`` does not apply to it."""
    return connector.get(f"{kind}.override.client.id") or config.with_prefix(f"{kind}.").get("client.id")
