"""Derive the settings of a flow's Kafka clients and its exactly-once terms from the configuration.

The module decides which keys reach which client, and its client id. Ids are Java's, because quotas apply to them:
those inside a connector from ``MirrorConnectorConfig``, that of the producer of records from Connect's ``Worker``, that
of the offset store from ``KafkaOffsetBackingStore``.

It also decides whether a source connector is exactly-once, and when its transactions end (KIP-618); and it opens the
class through which a mirror changes topics and ACLs, ``forwarding.admin.class`` (KIP-787).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from connect.api.source import ExactlyOnceSupport
from connect.core.config.client_settings import CONNECTION_KEYS, TRANSACTION_TIMEOUT_MS
from connect.core.config.config_def import Values
from connect.core.config.connector_settings import SOURCE_CONNECTOR
from connect.core.errors import ConfigError
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connectors.policy import make, offered

if TYPE_CHECKING:
    from connect.kafka.log.topic_admin import Admin

_FORWARDING_KEY: Final = "forwarding.admin.class"
#: Java's class, which asks the cluster itself.
DEFAULT_FORWARDING_ADMIN: Final = "org.apache.kafka.clients.admin.ForwardingAdmin"
#: The group of the entry points of others.
_FORWARDING_ADMINS: Final = "heliograph.forwarding_admins"
ClusterSide = Literal["source", "target"]
ClientKind = Literal["producer", "consumer", "admin"]
#: Adds an error's place in the file, from the error, the side and the kind of client (None for the worker's own).
Locate = Callable[[ConfigError, ClusterSide, ClientKind | None], ConfigError]


def properties_with_prefix(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return properties whose keys begin with ``prefix``, without it; a key equal to the prefix is not included."""
    return {key[len(prefix) :]: value for key, value in props.items() if key.startswith(prefix) and key != prefix}


def connector_client(connector: Mapping[str, str], side: ClusterSide, kind: ClientKind) -> dict[str, str]:
    """Return a client's properties in a connector (Kafka's ``MirrorConnectorConfig.sourceConsumerConfig`` ...)."""
    cluster = properties_with_prefix(connector, f"{side}.cluster.")
    return {
        **{key: cluster[key] for key in CONNECTION_KEYS if key in cluster},
        **properties_with_prefix(connector, f"{kind}."),
        **properties_with_prefix(connector, f"{side}.{kind}."),
    }


def located_client(
    connector: Mapping[str, str], error: ConfigError, side: ClusterSide, kind: ClientKind | None
) -> ConfigError:
    """Return a client's error with the key as the connector's config has it, or could have it."""
    key = error.key or ""
    if not key or kind is None:  # the worker's config has the keys of its own client
        return error
    of_records = [f"producer.override.{key}"] if kind == "producer" else []
    inherited = f"{side}.cluster.{key}"
    places = (*of_records, f"{side}.{kind}.{key}", f"{kind}.{key}")
    written = next((place for place in places if place in connector), inherited)
    return ConfigError(error.message.replace(key, written, 1), written)


def client_connection(
    connector: Mapping[str, str], side: ClusterSide, kind: ClientKind, *, client_id: str, where: str
) -> ConnectionSettings:
    """Return the connection of a client in a connector. Raises ConfigError with the key as the connector has it."""
    try:
        return connection_settings(connector_client(connector, side, kind), client_id=client_id, where=where)
    except ConfigError as error:
        raise located_client(connector, error, side, kind) from None


def inner_client_id(flow: str, connector_and_task: str, role: str, user: str) -> str:
    """Return the id of a client in a connector; ``flow`` is ``us->eu``, ``user`` the user's ``client.id``."""
    own = f"{flow}|{connector_and_task}|{role}"
    return f"{user}|{own}" if user else own


def record_producer(connector: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the producer of records: the worker's, overridden by ``producer.override.*``."""
    return {
        **{key: worker[key] for key in ("bootstrap.servers",) if key in worker},
        **properties_with_prefix(worker, "producer."),
        **properties_with_prefix(connector, "producer.override."),
    }


@dataclass(frozen=True)
class FlowClients:
    """Connection settings of all clients of a flow; the key stores have been read."""

    label: str
    _consumer: ConnectionSettings
    _producer: ConnectionSettings
    _source_admin: ConnectionSettings
    _target_admin: ConnectionSettings
    _offsets: ConnectionSettings
    _syncs_producer: ConnectionSettings
    _syncs_side: ClusterSide
    _connector_name: str
    _producer_has_own_id: bool
    #: The connector's config if it names a forwarding.admin.class.
    _forwarding: Mapping[str, str] = field(default_factory=dict, repr=False)

    def replication_consumer(self, task: int) -> ConnectionSettings:
        """Connect to the source to read records."""
        return self._named(self._consumer, "replication-consumer", f"-{task}")

    def record_producer(self, task: int) -> ConnectionSettings:
        """Connect to the target to write records."""
        if self._producer_has_own_id:
            return self._producer
        return self._producer.with_client_id(f"connector-producer-{self._connector_name}-{task}")

    def source_admin(self) -> ConnectionSettings:
        """Connect to the source to manage topics."""
        return self._named(self._source_admin, "replication-source-admin")

    def target_admin(self) -> ConnectionSettings:
        """Connect to the target to manage topics."""
        return self._named(self._target_admin, "replication-target-admin")

    def offsets(self) -> ConnectionSettings:
        """Connect to the target for the topics that hold positions."""
        return self._offsets

    def offset_syncs_producer(self, task: int) -> ConnectionSettings:
        """Connect to the cluster of the offset-syncs topic to write them."""
        return self._named(self._syncs_producer, f"offset-syncs-{self._syncs_side}-producer", f"-{task}")

    def offset_syncs_admin(self) -> ConnectionSettings:
        """Connect to the same cluster to create that topic."""
        admin = self._source_admin if self._syncs_side == "source" else self._target_admin
        return self._named(admin, f"offset-syncs-{self._syncs_side}-admin")

    def open_admin(self, settings: ConnectionSettings, cluster: str) -> Admin:
        """Return an admin of ``cluster`` that changes it as the flow's ``forwarding.admin.class`` does."""
        return open_admin(self._forwarding, settings, cluster)

    def _named(self, settings: ConnectionSettings, role: str, task: str = "") -> ConnectionSettings:
        name = self._connector_name + task
        return settings.with_client_id(inner_client_id(self.label, name, role, settings.client_id))


def flow_clients(
    label: str, connector: Mapping[str, str], worker: Mapping[str, str], *, source: str, target: str, locate: Locate
) -> FlowClients:
    """Return the clients of the flow ``label`` (``us->eu``) between the clusters ``source`` and ``target``. Raises
    ConfigError, to which ``locate`` has added its place, if a key is missing or invalid."""

    def settings(
        props: Mapping[str, str], side: ClusterSide, kind: ClientKind | None, client_id: str
    ) -> ConnectionSettings:
        where = f"cluster {source if side == 'source' else target}"
        try:
            return connection_settings(props, client_id=client_id, where=where)
        except ConfigError as error:
            raise locate(error, side, kind) from None

    def inside(side: ClusterSide, kind: ClientKind) -> ConnectionSettings:
        props = connector_client(connector, side, kind)
        return settings(props, side, kind, props.get("client.id", ""))

    producer = record_producer(connector, worker)
    user_id = worker["client.id"].strip()
    on_target = connector.get("offset-syncs.topic.location", "").strip() == "target"
    syncs_side: ClusterSide = "target" if on_target else "source"
    return FlowClients(
        label=label,
        _consumer=inside("source", "consumer"),
        _producer=settings(producer, "target", "producer", producer.get("client.id", "")),
        _source_admin=inside("source", "admin"),
        _target_admin=inside("target", "admin"),
        _offsets=settings(worker, "target", None, f"{worker['group.id']}-{user_id + '-' if user_id else ''}offsets"),
        _syncs_producer=inside(syncs_side, "producer"),
        _syncs_side=syncs_side,
        _connector_name=connector["name"],
        _producer_has_own_id="client.id" in producer,
        _forwarding=connector if _forwards(connector) else {},
    )


#: With ``transaction.boundary`` poll. Java ends a transaction with every poll; a copy has no polls. So a single record
#: is committed at once, and under load a few transactions a second cost next to nothing.
_POLL_SPACING_MS: Final = 100
_POLL_LENGTH_MS: Final = 500
#: A transaction may last for this share of ``transaction.timeout.ms``; the rest is for ending it.
_LONGEST_SHARE: Final = 0.5
_BOUNDARIES: Final = SOURCE_CONNECTOR.only("transaction.boundary", "transaction.boundary.interval.ms")
_NOT_COMMITTED: Final = (
    "MirrorSourceConnector can only provide exactly-once guarantees when its source consumer is configured with "
    "isolation.level set to 'read_committed'; otherwise, records from aborted and uncommitted transactions will be "
    "replicated from the source cluster to the target cluster."
)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A transaction ends when all records read are acknowledged, at least ``spacing_ms`` after the previous one, or
    after ``length_ms``. The cluster aborts it after ``timeout_ms``."""

    spacing_ms: int
    length_ms: int
    timeout_ms: int = TRANSACTION_TIMEOUT_MS


def exactly_once_support(connector: Mapping[str, str]) -> ExactlyOnceSupport:
    """Whether the copy holds only committed records, and all of them (``MirrorSourceConnector.exactlyOnceSupport``)."""
    is_committed = connector_client(connector, "source", "consumer").get("isolation.level") == "read_committed"
    return ExactlyOnceSupport.SUPPORTED if is_committed else ExactlyOnceSupport.UNSUPPORTED


def support_errors(connector: Mapping[str, str]) -> list[str]:
    """Return what Java adds to Connect's own error if ``exactly.once.support=required`` cannot be met."""
    is_required = connector.get("exactly.once.support") == "required"
    is_unmet = is_required and exactly_once_support(connector) is not ExactlyOnceSupport.SUPPORTED
    return [_NOT_COMMITTED] if is_unmet else []


def rhythm(
    connector: Mapping[str, str], worker: Mapping[str, str], offsets: Values, timeout_ms: int = TRANSACTION_TIMEOUT_MS
) -> Rhythm | None:
    """Return when transactions end, None without exactly-once; ``offsets`` are the worker's parsed settings,
    ``timeout_ms`` the ``transaction.timeout.ms`` of the producer of records.

    Raises ConfigError if exactly-once is required and cannot be met, if the boundary is ``connector``, or if records
    and offsets would go to different clusters.
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
    """Refuse a transaction that spans clusters: offsets must be where the records go."""
    key = "bootstrap.servers"
    data, offsets = record_producer(connector, worker).get(key, ""), worker.get(key, "")
    if {one.strip() for one in data.split(",")} != {one.strip() for one in offsets.split(",")}:
        override = "producer.override.bootstrap.servers"
        raise ConfigError(
            f"{override} names another cluster than that of the worker's offsets, and a transaction cannot span both. "
            "Remove it, or disable exactly.once.source.support",
            override,
        )


def find_forwarding_admin(name: str) -> str | None:
    """Return ``name`` if there is such a class."""
    return name if name == DEFAULT_FORWARDING_ADMIN or name in offered(_FORWARDING_ADMINS) else None


def known_forwarding_admins() -> list[str]:
    """Return the names of all classes, and how to add one."""
    how = f"and classes in Python with an entry point in {_FORWARDING_ADMINS}"
    return [DEFAULT_FORWARDING_ADMIN, *offered(_FORWARDING_ADMINS), how]


def _forwards(props: Mapping[str, str]) -> bool:
    """Return whether a config names another class than Java's default."""
    return props.get(_FORWARDING_KEY, DEFAULT_FORWARDING_ADMIN).strip() != DEFAULT_FORWARDING_ADMIN


def open_admin(props: Mapping[str, str], settings: ConnectionSettings, cluster: str, *remedy: str) -> Admin:
    """Return the admin of a connector's cluster, which the caller closes; ``remedy`` is what :class:`Admin` advises if
    a replication factor is too high.

    A package provides a class through an entry point of ``heliograph.forwarding_admins``. The entry point refers to a
    callable, usually a subclass of :class:`~connect.kafka.log.topic_admin.Admin`, that takes the connector's whole
    config with references resolved, the settings of the connection, and the alias of the cluster. It overrides
    ``create_topics``, ``create_partitions``, ``alter_topic_configs``, ``delete_topics``, ``create_acls`` or
    ``delete_acls``; what it does not override goes to the cluster. Its methods raise or return errors of
    :mod:`connect.core.errors`.

    Raises ConfigError if the class is unknown, rejects ``props`` or makes something else.
    """
    # Loaded here, because checking a file needs the names only.
    from connect.kafka.log.topic_admin import Admin

    if not _forwards(props):
        return Admin(settings, cluster, *remedy)
    name = props[_FORWARDING_KEY].strip()
    admin = make(_FORWARDING_KEY, name, {}, _FORWARDING_ADMINS, props, settings, cluster)
    if not isinstance(admin, Admin):
        what = f"is a {type(admin).__name__}; it has to be a subclass of {Admin.__module__}.{Admin.__name__}"
        raise ConfigError(f"{_FORWARDING_KEY} {name} {what}", _FORWARDING_KEY)
    return admin
