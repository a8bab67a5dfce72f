"""The Kafka clients that a worker makes for a connector: which keys reach which client, and under which id
(Kafka's ``Worker.baseProducerConfigs`` and its kin)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.config.client_settings import CLIENTS, OverridePolicy
from connect.core.config.config_def import ConfigDef
from connect.core.config.worker_config import ClientKind, WorkerConfig
from connect.core.errors import ConfigError
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings

#: What Kafka Connect's producers have where Java's own have something else: patience without end, and order by sending
#: one request after the other.
_CONNECT_DEFAULTS: Final[Mapping[str, str]] = {
    "acks": "all",
    "delivery.timeout.ms": str(2**31 - 1),
    "enable.idempotence": "false",
}
#: What is heeded beyond the keys of the connection.
_HEEDED: Final = ConfigDef.of(
    *(
        CLIENTS["producer"].settings[name]
        for name in (
            "acks",
            "batch.size",
            "compression.type",
            "delivery.timeout.ms",
            "enable.idempotence",
            "linger.ms",
            "max.request.size",
            "metadata.max.age.ms",
            "retry.backoff.ms",
            "transaction.timeout.ms",
        )
    )
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer of records, typed. ``transactional_id`` None: it writes without transactions."""

    connection: ConnectionSettings
    acks: int
    batch_bytes: int
    compression: str | None
    delivery_timeout_ms: int
    idempotent: bool
    linger_ms: int
    max_request_bytes: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    transaction_timeout_ms: int
    transactional_id: str | None


def client_props(config: WorkerConfig, connector: Mapping[str, str], kind: ClientKind) -> dict[str, str]:
    """The worker's for all connectors, overridden by the connector's ``<kind>.override.*``; resolved."""
    prefix = f"{kind}.override."
    own = {key[len(prefix) :]: value for key, value in connector.items() if key.startswith(prefix)}
    return {**config.client_props(kind), **own}


def client_connection(
    config: WorkerConfig, connector: Mapping[str, str], kind: ClientKind, who: str
) -> ConnectionSettings:
    """How a client of a connector reaches its cluster. ``who`` ends the client id: connector, or connector and task.

    Raises:
        ConfigError: A key is missing or wrong.
        SecurityError: A key store cannot be used.
    """
    props = client_props(config, connector, kind)
    java = {"producer": "connector-producer", "consumer": "connector-consumer", "admin": "connector-adminclient"}
    return connection_settings(
        props, client_id=_own_id(config, connector, kind) or f"{java[kind]}-{who}", where=f"{kind} of {who}"
    )


def producer_settings(
    config: WorkerConfig, connector: Mapping[str, str], who: str, transactional_id: str | None
) -> ProducerSettings:
    """The producer of a task, or of a connector's offsets; errors as :func:`client_connection`.

    Keys under which exactly-once would not hold have no effect with a transactional id, as in Java.
    """
    values = _HEEDED.parse({**_CONNECT_DEFAULTS, **client_props(config, connector, "producer")})
    acks, compression = values.string("acks"), values.string("compression.type")
    idempotent = values.boolean("enable.idempotence") or transactional_id is not None
    if idempotent and acks in ("0", "1"):
        raise ConfigError(f"producer of {who}: acks is {acks}, but an idempotent producer needs all", "acks")
    return ProducerSettings(
        connection=client_connection(config, connector, "producer", who),
        acks=-1 if acks == "all" else int(acks),
        batch_bytes=values.integer("batch.size"),
        compression=None if compression == "none" else compression,
        delivery_timeout_ms=values.integer("delivery.timeout.ms"),
        idempotent=idempotent,
        linger_ms=values.integer("linger.ms"),
        max_request_bytes=values.integer("max.request.size"),
        metadata_max_age_ms=values.integer("metadata.max.age.ms"),
        retry_backoff_ms=values.integer("retry.backoff.ms"),
        transaction_timeout_ms=values.integer("transaction.timeout.ms"),
        transactional_id=transactional_id,
    )


def check_overrides(policy: OverridePolicy, connector: Mapping[str, str], kinds: Collection[ClientKind]) -> None:
    """Raise ConfigError for an override that the worker's policy does not allow, by now."""
    for kind in kinds:
        prefix = f"{kind}.override."
        for key in connector:
            objection = policy.objection(key.removeprefix(prefix)) if key.startswith(prefix) else None
            if objection is not None:
                raise ConfigError(f"Client Config Overrides not allowed: {objection}", key)


def ignored_under_exactly_once(config: WorkerConfig, connector: Mapping[str, str]) -> list[str]:
    """Sentences on what users set for a producer that exactly-once decides."""
    props = client_props(config, connector, "producer")
    told = []
    if props.get("enable.idempotence", "true").strip().lower() != "true":
        told.append("enable.idempotence has no effect on a producer under exactly-once: it is true")
    if "transactional.id" in props:
        told.append("transactional.id has no effect on a producer under exactly-once: Connect names it")
    return told


def task_transactional_id(group_id: str, connector: str, task: int) -> str:
    """The transactional id of a task's producer (Kafka's ``Worker.taskTransactionalId``)."""
    return f"{group_id}-{connector}-{task}"


def _own_id(config: WorkerConfig, connector: Mapping[str, str], kind: ClientKind) -> str | None:
    """A client id that users set for this kind of client; the worker's own ``client.id`` is not meant for it."""
    return connector.get(f"{kind}.override.client.id") or config.with_prefix(f"{kind}.").get("client.id")
