"""What a worker was told, typed, and checked as a whole before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, Literal, Self

from connect.core.config.client_settings import ADMIN
from connect.core.config.config_def import Values
from connect.core.config.properties import NOTHING, ConfigTransformer, Properties, ProviderFactory
from connect.core.config.rest_settings import RestListener, parse_listener
from connect.core.config.security_settings import suites_notice
from connect.core.config.worker_settings import UNHEEDED, WORKER, WORKER_PREFIXES
from connect.core.errors import ConfigError
from connect.core.model import NewTopic

#: A worker's clients: those of connectors by kind, its own by what they are for.
ClientKind = Literal["producer", "consumer", "admin"]
ClientRole = Literal["configs", "configs-leader", "offsets", "statuses", "shared-admin"]

_CLIENT_PREFIXES: Final = ("producer.", "consumer.", "admin.")
_LEASE_MS: Final = 5000


class ExactlyOnceSourceSupport(StrEnum):
    """How far the group is on the way to exactly-once source support (KIP-618)."""

    DISABLED = "disabled"
    PREPARING = "preparing"
    ENABLED = "enabled"


@dataclass(frozen=True, repr=False)
class WorkerConfig:
    """A worker's settings; milliseconds as the names say.

    ``raw`` is what the file says, ``props`` the same with references resolved, secrets included. ``transformer``
    resolves references in connector configs. ``warnings`` are sentences for the log.
    """

    raw: Mapping[str, str]
    props: Mapping[str, str]
    values: Values
    transformer: ConfigTransformer
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def parse(cls, props: Mapping[str, str], providers: Mapping[str, ProviderFactory] = NOTHING) -> Self:
        """The settings in a file; ``providers`` are classes of config providers beside Java's, by name.

        Raises:
            ConfigError: A setting is missing or refused, or two do not fit together; both keys are named.
        """
        resolved: dict[str, str] = {}
        try:
            transformer = ConfigTransformer(props, providers)
            resolved |= transformer.transform(props)
            values = WORKER.parse(resolved)
            config = cls(props, resolved, values, transformer, (*values.warnings, *_notices(resolved)))
            _check(config)
        except ConfigError as error:
            raise _told(error, props, resolved) from None
        return config

    def located(self, error: ConfigError) -> ConfigError:
        """The same error with file and line of its key, where there is a file, and without resolved secrets."""
        return _told(error, self.raw, self.props)

    @property
    def may_read_files(self) -> bool:
        """Whether FileStreamSource is among the plugins."""
        return self.values.boolean("file.stream.source.enable")

    # the group

    @property
    def group_id(self) -> str:
        return self.values.string("group.id")

    @property
    def client_id(self) -> str:
        """As the file names it, empty where it does not."""
        return self.values.string("client.id")

    @property
    def connect_protocol(self) -> str:
        """eager, compatible or sessioned."""
        return self.values.string("connect.protocol").lower()

    @property
    def session_timeout_ms(self) -> int:
        return self.values.integer("session.timeout.ms")

    @property
    def rebalance_timeout_ms(self) -> int:
        return self.values.integer("rebalance.timeout.ms")

    @property
    def heartbeat_interval_ms(self) -> int:
        return self.values.integer("heartbeat.interval.ms")

    @property
    def sync_timeout_ms(self) -> int:
        return self.values.integer("worker.sync.timeout.ms")

    @property
    def unsync_backoff_ms(self) -> int:
        return self.values.integer("worker.unsync.backoff.ms")

    @property
    def max_delay_ms(self) -> int:
        """``scheduled.rebalance.max.delay.ms``."""
        return self.values.integer("scheduled.rebalance.max.delay.ms")

    @property
    def max_delay_is_set(self) -> bool:
        """Whether the file names it; lost work under a lease of ours waits only then."""
        return "scheduled.rebalance.max.delay.ms" in self.raw

    @property
    def lease_ms(self) -> int:
        """How long work goes on without word from the group; never above the session timeout.

        By default half of it, so that work has the other half to end in; but a heartbeat that is a little late costs
        nothing.
        """
        value = self.values["worker.lease.ms"]
        if isinstance(value, int):
            return value
        half_ms, late_ms = self.session_timeout_ms // 2, self.heartbeat_interval_ms * 3 // 2
        return min(_LEASE_MS, max(half_ms, late_ms), self.session_timeout_ms)

    @property
    def progress_timeout_ms(self) -> int:
        """How long the loop may stand still before nothing is renewed."""
        return self.values.integer("worker.progress.timeout.ms")

    @property
    def key_algorithm(self) -> str:
        return self.values.string("inter.worker.key.generation.algorithm")

    @property
    def key_size_bits(self) -> int | None:
        value = self.values["inter.worker.key.size"]
        return value if isinstance(value, int) else None

    @property
    def key_ttl_ms(self) -> int:
        return self.values.integer("inter.worker.key.ttl.ms")

    @property
    def signature_algorithm(self) -> str:
        return self.values.string("inter.worker.signature.algorithm")

    @property
    def verification_algorithms(self) -> tuple[str, ...]:
        return self.values.strings("inter.worker.verification.algorithms")

    # topics

    @property
    def config_topic(self) -> NewTopic:
        return self._topic("config.storage.", 1)

    @property
    def offset_topic(self) -> NewTopic:
        return self._topic("offset.storage.", self.values.integer("offset.storage.partitions"))

    @property
    def status_topic(self) -> NewTopic:
        return self._topic("status.storage.", self.values.integer("status.storage.partitions"))

    # work

    @property
    def exactly_once(self) -> ExactlyOnceSourceSupport:
        return ExactlyOnceSourceSupport(self.values.string("exactly.once.source.support").lower())

    @property
    def exactly_once_enabled(self) -> bool:
        """Whether source tasks write in transactions."""
        return self.exactly_once is ExactlyOnceSourceSupport.ENABLED

    @property
    def transactional_leader(self) -> bool:
        """Whether the leader writes the config topic in transactions."""
        return self.exactly_once is not ExactlyOnceSourceSupport.DISABLED

    @property
    def transactional_id(self) -> str:
        """That of the leader's producer."""
        return f"connect-cluster-{self.group_id}"

    @property
    def task_shutdown_timeout_ms(self) -> int:
        """For all stopping tasks together."""
        return self.values.integer("task.shutdown.graceful.timeout.ms")

    @property
    def offset_flush_interval_ms(self) -> int:
        return self.values.integer("offset.flush.interval.ms")

    @property
    def offset_flush_timeout_ms(self) -> int:
        return self.values.integer("offset.flush.timeout.ms")

    @property
    def topic_creation_enable(self) -> bool:
        return self.values.boolean("topic.creation.enable")

    @property
    def topic_tracking_enable(self) -> bool:
        return self.values.boolean("topic.tracking.enable")

    @property
    def topic_tracking_allow_reset(self) -> bool:
        return self.values.boolean("topic.tracking.allow.reset")

    @property
    def override_policy(self) -> str:
        """A name or class for :func:`connect.core.config.client_settings.make_policy`."""
        return self.values.string("connector.client.config.override.policy")

    @property
    def override_allowlist(self) -> tuple[str, ...]:
        return self.values.strings("connector.client.config.override.allowlist")

    # REST

    @property
    def listeners(self) -> tuple[RestListener, ...]:
        return tuple(map(parse_listener, self.values.strings("listeners")))

    @property
    def admin_listeners(self) -> tuple[RestListener, ...] | None:
        """None: with the others; empty: nowhere."""
        value = self.values["admin.listeners"]
        return tuple(map(parse_listener, value)) if isinstance(value, tuple) else None

    # clients

    def internal_client(self, role: ClientRole) -> dict[str, str]:
        """The properties of one of the worker's own clients, under Java's client id (``ConnectUtils.clientIdBase``)."""
        named = f"{self.client_id}-" if self.client_id else ""
        return {**self.props, "client.id": f"{self.group_id}-{named}{role}"}

    def client_props(self, kind: ClientKind) -> dict[str, str]:
        """What the worker's file gives to the clients of connectors (Kafka's ``Worker.adminConfigs`` and its kin).

        An admin client gets the worker's own keys as well, the others only its address.
        """
        if kind == "admin":
            base = {key: value for key, value in self.props.items() if not key.startswith(_CLIENT_PREFIXES)}
        else:
            base = {"bootstrap.servers": ",".join(self.values.strings("bootstrap.servers"))}
        return base | self.with_prefix(f"{kind}.")

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """The resolved properties whose keys begin with ``prefix``, without it."""
        return {key[len(prefix) :]: value for key, value in self.props.items() if key.startswith(prefix)}

    def _topic(self, prefix: str, partitions: int) -> NewTopic:
        declared = ("topic", "partitions", "replication.factor", "cleanup.policy")
        configs = {key: value for key, value in self.with_prefix(prefix).items() if key not in declared}
        factor = self.values.integer(f"{prefix}replication.factor")
        return NewTopic(self.values.string(f"{prefix}topic"), partitions, factor, configs)


def _told(error: ConfigError, props: Mapping[str, str], resolved: Mapping[str, str]) -> ConfigError:
    """See :meth:`WorkerConfig.located`."""
    key, message = error.key, error.message
    if key is None:
        return error
    if key in props and resolved.get(key, props[key]) != props[key]:
        message = message.replace(resolved[key], props[key])
    return props.error(message, key) if isinstance(props, Properties) else ConfigError(message, key)


def _check(config: WorkerConfig) -> None:
    """What settings owe each other."""
    if config.signature_algorithm not in config.verification_algorithms:
        raise ConfigError(
            f"Invalid value {config.signature_algorithm} for configuration inter.worker.signature.algorithm: Signature "
            "algorithm must be present in inter.worker.verification.algorithms list",
            "inter.worker.signature.algorithm",
        )
    session_ms = config.session_timeout_ms
    for key, value in (("session.timeout.ms", session_ms), ("rebalance.timeout.ms", config.rebalance_timeout_ms)):
        if value <= 0:
            raise ConfigError(f"{key} is {value}; it must be above 0", key)
    if not 0 < config.heartbeat_interval_ms < session_ms:
        raise ConfigError(
            f"heartbeat.interval.ms ({config.heartbeat_interval_ms}) must be above 0 and below session.timeout.ms "
            f"({session_ms}), best at a third of it",
            "heartbeat.interval.ms",
        )
    if config.lease_ms > session_ms:
        raise ConfigError(
            f"worker.lease.ms ({config.lease_ms}) must not be above session.timeout.ms ({session_ms}): work would go "
            "on after the group has given it to another worker",
            "worker.lease.ms",
        )
    if config.values.strings("rest.extension.classes"):
        raise ConfigError(
            "rest.extension.classes names Java classes, which cannot be loaded here; what they protect would be open, "
            "so remove the key and guard the REST API by other means, such as a proxy",
            "rest.extension.classes",
        )
    _check_topics(config)


def _check_topics(config: WorkerConfig) -> None:
    names: dict[str, str] = {}
    for kind in ("config", "offset", "status"):
        key = f"{kind}.storage.topic"
        topic = config.values.string(key)
        if not topic:
            raise ConfigError(f"{key} is empty; name a topic", key)
        if topic in names:
            raise ConfigError(f"{key} and {names[topic]} both name the topic {topic}; each needs its own", key)
        names[topic] = key
    if not config.group_id:
        raise ConfigError("group.id is empty; name the group", "group.id")


def _notices(props: Mapping[str, str]) -> Iterator[str]:
    """What the file says to no effect."""
    if "config.storage.partitions" in props:
        yield "config.storage.partitions has no effect: the config topic always has one partition"
    for kind in ("config", "offset", "status"):
        if f"{kind}.storage.cleanup.policy" in props:
            yield f"{kind}.storage.cleanup.policy has no effect: the topic is always compacted"
    for key, value in props.items():
        suites = suites_notice(key, value)
        if suites is not None:
            yield f"{key} {suites}"
        if key.startswith(("internal.key.converter", "internal.value.converter")):
            yield f"{key} has no effect: JsonConverter without schemas is used"
        elif key in ("plugin.path", "plugin.discovery"):
            yield f"{key} has no effect: plugins here are Python packages, found by their entry points"
        elif key in UNHEEDED:
            yield f"{key} {UNHEEDED[key]}"
        elif key not in WORKER and key not in ADMIN and not key.startswith(WORKER_PREFIXES):
            close = get_close_matches(key, WORKER.settings, 1, 0.8)
            yield f"{key} is not known and has no effect" + "".join(f"; is {name} meant?" for name in close)
