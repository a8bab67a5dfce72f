"""Declares the configs of connectors, source connectors and their topic creation groups, and decides restarts.

Groups, their order and display names are those of Kafka's ``ConnectorConfig`` and ``SourceConnectorConfig``.

Automatic restarts follow Strimzi (``AbstractConnectOperator``): the first restart is immediate, the next ones follow
2, 6, 12, 20 ... minutes (n² + n) after the one before. The count returns to 0 when the connector or task has run for
longer than that pause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from connect.core.config.config_def import (
    REQUIRED,
    AtLeast,
    ConfigDef,
    Importance,
    OneOf,
    Required,
    Setting,
    Value,
    Width,
    class_name,
    flag,
    integer,
    long,
    short,
    split_list,
    strings,
    text,
)
from connect.core.config.validation import (
    PARTITIONS,
    REPLICATION_FACTOR,
    connector_name,
    java_patterns,
    non_empty,
    unique_aliases,
)
from connect.core.errors import ConfigError
from connect.core.model import Restarts

ENABLED: Final = "auto.restart.enabled"
MAX_RESTARTS: Final = "auto.restart.max.restarts"
MAX_BACKOFF_MINUTES: Final = "auto.restart.max.backoff.minutes"

_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM
COMMON_GROUP: Final = "Common"
TRANSFORMS_GROUP: Final = "Transforms"
PREDICATES_GROUP: Final = "Predicates"
ERROR_GROUP: Final = "Error Handling"
TOPIC_CREATION_GROUP: Final = "Topic Creation"
EXACTLY_ONCE_GROUP: Final = "Exactly Once Support"
OFFSETS_TOPIC_GROUP: Final = "offsets.topic"

#: These settings follow Kafka's own under their heading.
AUTO_RESTART: Final = ConfigDef.of(
    flag(
        ENABLED,
        False,
        "Restart a failed connector or task, unless a restart cannot fix the error; connect-mirror-maker sets true.",
    ).under(ERROR_GROUP, 6, "Restart automatically", Width.NONE),
    integer(
        MAX_RESTARTS, None, "Maximum consecutive automatic restarts; null: no limit.", check=AtLeast(0, nullable=True)
    ).under(ERROR_GROUP, 7, "Maximum restarts", Width.NONE),
    integer(MAX_BACKOFF_MINUTES, 60, "Longest pause between automatic restarts.", check=AtLeast(1)).under(
        ERROR_GROUP, 8, "Maximum pause in minutes", Width.NONE
    ),
)

PERMANENT_ERROR: Final = "a restart cannot fix this error"
NO_MORE: Final = f"{MAX_RESTARTS} is reached"


@dataclass(frozen=True, slots=True)
class AutoRestartRule:
    """The restart rule of a connector. ``max_restarts`` None: no limit."""

    max_restarts: int | None = None
    max_backoff_minutes: int = 60

    @classmethod
    def of(cls, config: Mapping[str, str]) -> AutoRestartRule | None:
        """Return the rule in a connector's config; None if it is never restarted automatically. Raises ConfigError if a
        value is invalid."""
        values = AUTO_RESTART.parse({key: config[key] for key in AUTO_RESTART.settings if key in config})
        if not values.boolean(ENABLED):
            return None
        return cls(values.integer_or_null(MAX_RESTARTS), values.integer(MAX_BACKOFF_MINUTES))

    @classmethod
    def applies(cls, config: Mapping[str, str]) -> bool:
        """Return whether a connector's config has a valid rule."""
        try:
            return cls.of(config) is not None
        except ConfigError:
            return False

    def backoff_ms(self, count: int) -> int:
        """Return the pause after restart ``count``, which is also the runtime after which ``count`` is reset."""
        return 60_000 * min(count * count + count, self.max_backoff_minutes)

    def after_failure(self, before: Restarts, now_ms: int, *, may_recover: bool) -> Restarts:
        """Return the time of the restart after a failure at ``now_ms``, or the reason not to restart."""
        pause_ms = self.backoff_ms(before.count)
        if before.count and now_ms - before.at_ms > pause_ms:
            before = Restarts(at_ms=before.at_ms)
        if not may_recover:
            return Restarts(before.count, before.at_ms, PERMANENT_ERROR)
        if self.max_restarts is not None and before.count >= self.max_restarts:
            return Restarts(before.count, before.at_ms, NO_MORE)
        # At most the pause, even if the clock was set back or is behind the previous owner's clock.
        at_ms = min(max(now_ms, before.at_ms + pause_ms), now_ms + pause_ms)
        return Restarts(before.count + 1, at_ms if before.count else now_ms)


def _converters(order: int, roles: Sequence[str]) -> Iterator[Setting]:
    for at, role in enumerate(roles):
        label, place = f"{role.capitalize()} converter", order + 2 * at
        converter = class_name(f"{role}.converter", None, f"Converter of {role}s; null: the worker's {role}.converter.")
        version = text(f"{role}.converter.plugin.version", None, f"Version of the converter of {role}s.")
        yield converter.under(COMMON_GROUP, place, f"{label} class", Width.SHORT)
        yield replace(version, visible=False).under(COMMON_GROUP, place + 1, f"{label} version", Width.SHORT)


#: Configs of every connector.
CONNECTOR: Final = ConfigDef.of(
    text("name", REQUIRED, "Name of the connector, unique in the worker group.", _HIGH, connector_name).under(
        COMMON_GROUP, 1, "Connector name"
    ),
    text(
        "connector.class",
        REQUIRED,
        "Class of the connector: the full name, the simple name, or the simple name without Connector.",
        _HIGH,
    ).under(COMMON_GROUP, 2, "Connector class", Width.LONG),
    text("connector.plugin.version", None, "Version of the connector, or a range of versions.", _MEDIUM).under(
        COMMON_GROUP, 3, "Connector version"
    ),
    integer("tasks.max", 1, "Maximum number of tasks.", _HIGH, AtLeast(1)).under(
        COMMON_GROUP, 4, "Tasks max", Width.SHORT
    ),
    flag(
        "tasks.max.enforce",
        True,
        "Fail a connector that generates more tasks than tasks.max; false only logs a warning.",
    ).under(COMMON_GROUP, 5, "Enforce tasks max", Width.SHORT),
    *_converters(6, ("key", "value", "header")),
    strings(
        "transforms",
        (),
        "Aliases of transformations; each has transforms.<alias>.type and its own settings.",
        check=unique_aliases,
    ).under(TRANSFORMS_GROUP, 12, "Transforms", Width.LONG),
    strings(
        "predicates",
        (),
        "Aliases of predicates; each has predicates.<alias>.type and its own settings.",
        check=unique_aliases,
    ).under(PREDICATES_GROUP, 13, "Predicates", Width.LONG),
    text(
        "config.action.reload",
        "restart",
        "Whether to restart the connector when a config provider's value changes.",
        check=OneOf(("none", "restart")),
    ).under(COMMON_GROUP, 14, "Reload Action"),
    long("errors.retry.timeout", 0, "How long a failed operation is retried, in ms; -1: without end.", _MEDIUM).under(
        ERROR_GROUP, 1, "Retry Timeout for Errors"
    ),
    long("errors.retry.delay.max.ms", 60_000, "Longest wait between retries of a failed operation.", _MEDIUM).under(
        ERROR_GROUP, 2, "Maximum Delay Between Retries for Errors"
    ),
    text(
        "errors.tolerance", "none", "all: skip records that fail; none: fail the task.", _MEDIUM, OneOf(("none", "all"))
    ).under(ERROR_GROUP, 3, "Error Tolerance", Width.SHORT),
    flag("errors.log.enable", False, "Log every failed operation.", _MEDIUM).under(
        ERROR_GROUP, 4, "Log Errors", Width.SHORT
    ),
    flag("errors.log.include.messages", False, "Include the failed record in the log.", _MEDIUM).under(
        ERROR_GROUP, 5, "Log Error Details", Width.SHORT
    ),
    *AUTO_RESTART.settings.values(),
)

#: Configs of a source connector.
SOURCE_CONNECTOR: Final = CONNECTOR | ConfigDef.of(
    strings(
        "topic.creation.groups",
        (),
        "Topic creation groups; a new topic uses the first group that includes it, else the group default.",
        check=unique_aliases,
    ).under(TOPIC_CREATION_GROUP, 1, "Topic Creation Groups", Width.LONG),
    text(
        "exactly.once.support",
        "requested",
        "required: reject the connector if it does not support exactly-once.",
        _MEDIUM,
        OneOf(("REQUIRED", "REQUESTED"), any_case=True),
    ).under(EXACTLY_ONCE_GROUP, 2, "Exactly once support", Width.SHORT),
    text(
        "transaction.boundary",
        "poll",
        "Where exactly-once transactions end: after each poll, after an interval, or where the connector decides.",
        _MEDIUM,
        OneOf(("INTERVAL", "POLL", "CONNECTOR"), any_case=True),
    ).under(EXACTLY_ONCE_GROUP, 3, "Transaction Boundary", Width.SHORT),
    long(
        "transaction.boundary.interval.ms",
        None,
        "Interval of transactions with transaction.boundary=interval; null: the worker's offset.flush.interval.ms.",
        check=AtLeast(0, nullable=True),
    ).under(EXACTLY_ONCE_GROUP, 4, "Transaction boundary interval", Width.SHORT),
    text(
        "offsets.storage.topic",
        None,
        "Topic of this connector's source offsets; null: the worker's offset.storage.topic.",
        check=non_empty,
    ).under(OFFSETS_TOPIC_GROUP, 1, "Offsets topic", Width.LONG),
)


def uses_topic_creation(props: Mapping[str, str | None]) -> bool:
    return any(key.startswith("topic.creation.") for key in props)


def topic_creation(props: Mapping[str, str]) -> ConfigDef:
    """Return the configs of a connector's topic creation groups, including the group default (KIP-158). Raises
    ConfigError if a config of the default group, to which the other groups fall back, is missing or invalid."""
    default = topic_group("default", REQUIRED, REQUIRED, include=(".*",))
    values = default.parse(props)
    factor = values["topic.creation.default.replication.factor"]
    partitions = values["topic.creation.default.partitions"]
    for group in dict.fromkeys(split_list(props.get("topic.creation.groups", ""))):
        if group != "default":
            default |= topic_group(group, factor, partitions)
    return default


def topic_group(
    name: str, factor: Value | Required, partitions: Value | Required, include: tuple[str, ...] = ()
) -> ConfigDef:
    """Return the configs of a topic creation group with the defaults for its numbers."""
    form, prefix = f"{TOPIC_CREATION_GROUP}: {name}", f"topic.creation.{name}."
    settings = (
        strings("include", include, "Topics in the group: names and regular expressions.", check=java_patterns),
        strings("exclude", (), "Topics excluded from the group; takes precedence over include.", check=java_patterns),
        short("replication.factor", factor, "Replication factor; -1: the broker's.", check=REPLICATION_FACTOR),
        integer("partitions", partitions, "Number of partitions; -1: the broker's.", check=PARTITIONS),
    )
    return ConfigDef.of(*(replace(each, order=order) for order, each in enumerate(settings))).embedded(prefix, form, 1)
