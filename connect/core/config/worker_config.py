"""Parses the config of a worker, checks the settings against each other, and says which keys have no effect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, Literal, Self

from connect.core.config import client_settings, rest_settings, worker_settings
from connect.core.config.config_def import Read, Values, split_list
from connect.core.config.connector_settings import SOURCE_CONNECTOR
from connect.core.config.properties import NOTHING, ConfigTransformer, Properties, ProviderFactory, provider_notice
from connect.core.config.security_settings import SECURITY, suites_notice
from connect.core.errors import ConfigError
from connect.core.model import NewTopic

#: The clients of connectors by kind, and the worker's own clients by role.
ClientKind = Literal["producer", "consumer", "admin"]
ClientRole = Literal["configs", "configs-leader", "offsets", "statuses", "shared-admin"]

_CLIENT_PREFIXES: Final = ("producer.", "consumer.", "admin.")
_LEASE_MS: Final = 5000
#: Names of topics (Kafka ``Topic.validate``).
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
NOT_SUPPORTED: Final = "is not supported yet and has no effect"
NOT_KNOWN: Final = "is not known and has no effect"
#: The security keys of https listeners; those that have an effect are in ``SUPPORTED_SECURITY``.
OF_LISTENERS: Final = frozenset(key for key in SECURITY.settings if key.startswith("ssl.")) | {
    rest_settings.CLIENT_AUTH
}
#: The listeners read these themselves, and no client, so a client's engine or provider means nothing to them.
IGNORED_BY_LISTENERS: Final = (client_settings.IGNORED_SECURITY & OF_LISTENERS) | {
    "ssl.engine.factory.class",
    "ssl.provider",
}
_USED_BY_PRODUCERS: Final = client_settings.PRODUCER_USED.settings.keys() | client_settings.COMPRESSION_LEVELS
_MIRRORS_ADMIN: Final = "forwarding.admin.class"
_OF_CONNECTORS: Final = SOURCE_CONNECTOR.settings.keys() | {_MIRRORS_ADMIN}
_OF_CONNECTORS_PREFIXES: Final = ("transforms.", "predicates.", "topic.creation.")
_PASSED_ON: Final = (*worker_settings.CONVERTER_PREFIXES, "spark.")


class ExactlyOnceSourceSupport(StrEnum):
    """The state of the group's migration to exactly-once source support (KIP-618)."""

    DISABLED = "disabled"
    PREPARING = "preparing"
    ENABLED = "enabled"


@dataclass(frozen=True, repr=False)
class WorkerConfig:
    """The config of a worker. ``raw`` holds the properties of the file, ``props`` the same with references resolved,
    including secrets. ``transformer`` resolves references in connector configs. ``warnings`` are messages for the
    log."""

    raw: Mapping[str, str]
    props: Mapping[str, str]
    values: Values
    transformer: ConfigTransformer
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def parse(
        cls,
        props: Mapping[str, str],
        providers: Mapping[str, ProviderFactory] = NOTHING,
        trusted: Iterable[Mapping[str, str]] = (),
    ) -> Self:
        """Parse the properties of a file; ``providers`` are further classes of config providers by name, ``trusted``
        the connector configs that have the same owner. Raises ConfigError if a setting is missing or invalid, or two
        settings contradict each other; it names both keys."""
        resolved: dict[str, str] = {}
        try:
            transformer = ConfigTransformer(props, providers, trusted)
            resolved |= transformer.transform(props)
            values = worker_settings.WORKER.parse(resolved)
            config = cls(props, resolved, values, transformer, (*values.warnings, *ineffective(resolved)))
            _check(config)
        except ConfigError as error:
            raise _located(error, props, resolved) from None
        return config

    def located(self, error: ConfigError) -> ConfigError:
        """Return the error with the file and line of its key, if there is a file, and without resolved secrets."""
        return error if error.file is not None else _located(error, self.raw, self.props)

    #: Whether FileStreamSource is available.
    may_read_files = Read("file.stream.source.enable", Values.boolean)

    # the group

    group_id = Read("group.id", Values.string)
    #: ``client.id``; empty if it is not set.
    client_id = Read("client.id", Values.string)

    @property
    def connect_protocol(self) -> str:
        """eager, compatible or sessioned."""
        return self.values.string("connect.protocol").lower()

    session_timeout_ms = Read("session.timeout.ms", Values.integer)
    rebalance_timeout_ms = Read("rebalance.timeout.ms", Values.integer)
    heartbeat_interval_ms = Read("heartbeat.interval.ms", Values.integer)
    sync_timeout_ms = Read("worker.sync.timeout.ms", Values.integer)
    unsync_backoff_ms = Read("worker.unsync.backoff.ms", Values.integer)
    max_delay_ms = Read("scheduled.rebalance.max.delay.ms", Values.integer)

    @property
    def max_delay_is_set(self) -> bool:
        """Whether the file sets it. Unless it does, work under a lease is reassigned without delay."""
        return "scheduled.rebalance.max.delay.ms" in self.raw

    @property
    def lease_ms(self) -> int:
        """How long work continues without a response from the coordinator; at most the session timeout. The default is
        half of it, so that work has the other half to stop, but at least 1.5 heartbeat intervals, so that a slightly
        late heartbeat does not stop work. It is at most 5 s."""
        value = self.values["worker.lease.ms"]
        if isinstance(value, int):
            return value
        half_ms, late_ms = self.session_timeout_ms // 2, self.heartbeat_interval_ms * 3 // 2
        return min(_LEASE_MS, max(half_ms, late_ms), self.session_timeout_ms)

    #: How long the loop may block before leases and the group membership are no longer renewed.
    progress_timeout_ms = Read("worker.progress.timeout.ms", Values.integer)
    key_algorithm = Read("inter.worker.key.generation.algorithm", Values.string)
    key_size_bits = Read("inter.worker.key.size", Values.integer_or_null)
    key_ttl_ms = Read("inter.worker.key.ttl.ms", Values.integer)
    signature_algorithm = Read("inter.worker.signature.algorithm", Values.string)
    verification_algorithms = Read("inter.worker.verification.algorithms", Values.strings)

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

    @property
    def audit_topic(self) -> NewTopic | None:
        """The topic of who changed what; None if nothing is recorded."""
        if not self.values.boolean("audit.enable"):
            return None
        name = self.values.string("audit.topic") or f"mm2-audit.{self.group_id}.internal"
        configs = {"cleanup.policy": "delete", "retention.ms": str(self.values.integer("audit.retention.ms"))}
        return NewTopic(name, 1, self.config_topic.replication_factor, configs)

    # work

    @property
    def exactly_once(self) -> ExactlyOnceSourceSupport:
        return ExactlyOnceSourceSupport(self.values.string("exactly.once.source.support").lower())

    @property
    def exactly_once_enabled(self) -> bool:
        return self.exactly_once is ExactlyOnceSourceSupport.ENABLED

    @property
    def transactional_leader(self) -> bool:
        """Whether the leader writes the config topic in transactions."""
        return self.exactly_once is not ExactlyOnceSourceSupport.DISABLED

    @property
    def transactional_id(self) -> str:
        return f"connect-cluster-{self.group_id}"

    #: The time for all tasks together to stop.
    task_shutdown_timeout_ms = Read("task.shutdown.graceful.timeout.ms", Values.integer)
    offset_flush_interval_ms = Read("offset.flush.interval.ms", Values.integer)
    offset_flush_timeout_ms = Read("offset.flush.timeout.ms", Values.integer)
    topic_creation_enable = Read("topic.creation.enable", Values.boolean)
    topic_tracking_enable = Read("topic.tracking.enable", Values.boolean)
    topic_tracking_allow_reset = Read("topic.tracking.allow.reset", Values.boolean)
    #: The name or class for :func:`connect.core.config.client_settings.make_policy`.
    override_policy = Read("connector.client.config.override.policy", Values.string)
    override_allowlist = Read("connector.client.config.override.allowlist", Values.strings)

    # REST

    @property
    def listeners(self) -> tuple[rest_settings.RestListener, ...]:
        return tuple(map(rest_settings.parse_listener, self.values.strings("listeners")))

    @property
    def admin_listeners(self) -> tuple[rest_settings.RestListener, ...] | None:
        """None: same as ``listeners``; empty: no listener for loggers."""
        value = self.values["admin.listeners"]
        return tuple(map(rest_settings.parse_listener, value)) if isinstance(value, tuple) else None

    # clients

    def internal_client(self, role: ClientRole) -> dict[str, str]:
        """Return the properties of one of the worker's own clients, with Java's client id
        (``ConnectUtils.clientIdBase``)."""
        named = f"{self.client_id}-" if self.client_id else ""
        return {**self.props, "client.id": f"{self.group_id}-{named}{role}"}

    def client_props(self, kind: ClientKind) -> dict[str, str]:
        """Return the properties that the worker's file sets for clients of connectors (``Worker.adminConfigs`` etc.).
        An admin client also gets the worker's own client configs; the others get only ``bootstrap.servers``."""
        if kind == "admin":
            base = {key: value for key, value in self.props.items() if not key.startswith(_CLIENT_PREFIXES)}
        else:
            base = {"bootstrap.servers": ",".join(self.values.strings("bootstrap.servers"))}
        return base | self.with_prefix(f"{kind}.")

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the resolved properties whose keys begin with ``prefix``, with the prefix removed."""
        return {key[len(prefix) :]: value for key, value in self.props.items() if key.startswith(prefix)}

    def _topic(self, prefix: str, partitions: int) -> NewTopic:
        declared = ("topic", "partitions", "replication.factor", "cleanup.policy")
        configs = {key: value for key, value in self.with_prefix(prefix).items() if key not in declared}
        factor = self.values.integer(f"{prefix}replication.factor")
        return NewTopic(self.values.string(f"{prefix}topic"), partitions, factor, configs)


def _located(error: ConfigError, props: Mapping[str, str], resolved: Mapping[str, str]) -> ConfigError:
    key, message = error.key, error.message
    if key is None:
        return error
    if key in props and resolved.get(key, props[key]) != props[key]:
        message = message.replace(resolved[key], props[key])
    return props.error(message, key) if isinstance(props, Properties) else ConfigError(message, key)


def _check(config: WorkerConfig) -> None:
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
            f"worker.lease.ms ({config.lease_ms}) must not be above session.timeout.ms ({session_ms}): work would "
            "continue after the group has assigned it to another worker",
            "worker.lease.ms",
        )
    rest_settings.check_access(config.values, config.props)
    if (
        config.connect_protocol != "sessioned"
        and rest_settings.serves_others(config.listeners)
        and not config.values.boolean(rest_settings.INSECURE)
    ):
        raise ConfigError(
            f"connect.protocol is {config.connect_protocol}: requests between workers would not be signed, and other "
            f"machines could change tasks. Set sessioned, or {rest_settings.INSECURE} = true",
            "connect.protocol",
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
            raise ConfigError(f"{key} and {names[topic]} are both {topic}; use a different topic for each", key)
        names[topic] = key
    if (audit := config.audit_topic) is not None:
        if audit.name in names:
            raise ConfigError(f"audit.topic and {names[audit.name]} are both {audit.name}; use another", "audit.topic")
        if _TOPIC.fullmatch(audit.name) is None:
            raise ConfigError(f"audit.topic is '{audit.name}', which cannot be a topic; name another", "audit.topic")
    if not config.group_id:
        raise ConfigError("group.id is empty; name the group", "group.id")


def ineffective(props: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each property without effect; it begins with the key."""
    for key, value in props.items():
        text = _of_key(key, value, props)
        if text is not None:
            yield f"{key} {text}"


def meant(key: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a question that names the key in ``known`` that is like ``key``; empty if there is none."""
    return "".join(f"; is {prefix}{name} meant?" for name in get_close_matches(key, known, 1, 0.8))


def listener_notice(key: str, prefix: str) -> str | None:
    """Return why a key of https listeners, here without its ``prefix``, has no effect; None if it has one."""
    if key in OF_LISTENERS:
        return NOT_SUPPORTED if key in IGNORED_BY_LISTENERS else None
    return NOT_KNOWN + meant(key, OF_LISTENERS, prefix)


def unlisted_step(key: str, listed: str, prefix: str = "") -> str | None:
    """Return why a key such as ``transforms.mask.type`` has no effect: ``listed``, the value of ``transforms``,
    does not name the step; None if it does. ``prefix`` is what the file has before both keys."""
    names, _, rest = key.partition(".")
    # What a reference stands for is not known here.
    if "${" in listed or any(rest.startswith(f"{one}.") for one in split_list(listed)):
        return None
    return f"has no effect: {prefix}{names} does not name '{rest.partition('.')[0]}'"


def override_notice(kind: str, name: str, needed: str) -> str | None:
    """Return why the key ``name`` of a connector's override has no effect; None if it has one. ``needed``: the keys
    without one of which the connector has no such client; empty if it has one."""
    prefix = f"{kind}.override."
    if needed and name in client_settings.CLIENTS[kind].settings:
        return f"has no effect without {needed}"
    return _of_client(kind, name, prefix)


def _of_key(key: str, value: str, props: Mapping[str, str]) -> str | None:
    for prefix in (rest_settings.ADMIN_HTTPS_PREFIX, rest_settings.HTTPS_PREFIX):
        if key.startswith(prefix):
            return listener_notice(key.removeprefix(prefix), prefix) or suites_notice(key, value)
    kind, dot, name = key.partition(".")
    if dot and kind in client_settings.CLIENTS and key not in worker_settings.WORKER:
        return _of_client(kind, name, f"{kind}.") or suites_notice(key, value)
    if key.startswith(("internal.key.converter", "internal.value.converter")):
        return "has no effect: internal converters are JsonConverter without schemas"
    if key in ("plugin.path", "plugin.discovery"):
        return "has no effect: plugins here are Python packages, found by their entry points"
    if key.startswith(worker_settings.STORAGE_PREFIXES):
        return worker_settings.storage_notice(key)
    if key.startswith("config.providers."):
        return provider_notice(key, props)
    if key.startswith(worker_settings.METRICS_CONTEXT) or worker_settings.why_ignored(key) is not None:
        return worker_settings.why_ignored(key)
    if key in client_settings.ADMIN and (key not in worker_settings.WORKER or key in client_settings.IGNORED_SECURITY):
        return NOT_SUPPORTED
    if key in worker_settings.WORKER or key in worker_settings.LINK or key.startswith(_PASSED_ON):
        return suites_notice(key, value) or worker_settings.converter_notice(key)
    if key in _OF_CONNECTORS or key.startswith(_OF_CONNECTORS_PREFIXES):
        place = "a mirror's connector, or a mm2.properties" if key == _MIRRORS_ADMIN else "a connector"
        return f"has no effect in a worker's file: set it in the config of {place}"
    if key.startswith(f"metrics.{rest_settings.HTTPS_PREFIX}"):
        return f"{NOT_KNOWN}; https addresses of metrics.listeners use {key.removeprefix('metrics.')}"
    return NOT_KNOWN + meant(key, (*worker_settings.WORKER.settings, *worker_settings.LINK))


def _of_client(kind: str, name: str, prefix: str) -> str | None:
    """Return why a key of connectors' clients has no effect; None if it has one. ``prefix`` is what the config has
    before it."""
    known = client_settings.CLIENTS[kind].settings
    if name.startswith("override."):
        of_all = f"{kind}.{name.removeprefix('override.')}"
        return f"has no effect in a worker's file: set it in a connector's config, or {of_all} for all connectors"
    if name not in known:
        return NOT_KNOWN + meant(name, known, prefix)
    if name in client_settings.OF_CONNECTIONS or (
        name in SECURITY.settings and name not in client_settings.IGNORED_SECURITY
    ):
        return None  # a consumer's too, because it reads the offset topic that a connector has of its own
    if kind == "consumer":
        return "has no effect: sinks, which would use it, do not run here"
    if name == "interceptor.classes":
        return "has no effect: Java classes cannot be loaded here"
    if kind == "producer" and name in _USED_BY_PRODUCERS:
        return None
    return worker_settings.why_ignored(name) or NOT_SUPPORTED
