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
    Check,
    ConfigDef,
    Importance,
    OneOf,
    Required,
    Setting,
    Type,
    Value,
    Width,
    integer,
    short,
    split_list,
    strings,
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
#: These settings follow Kafka's own under this heading.
_GROUP: Final = "Error Handling"

AUTO_RESTART: Final = ConfigDef.of(
    Setting(
        ENABLED,
        Type.BOOLEAN,
        False,
        "Restart a failed connector or task, unless a restart cannot fix the error; connect-mirror-maker sets true.",
        group=_GROUP,
        order=6,
        display_name="Restart automatically",
    ),
    Setting(
        MAX_RESTARTS,
        Type.INT,
        None,
        "Maximum consecutive automatic restarts; null: no limit.",
        AtLeast(0, nullable=True),
        group=_GROUP,
        order=7,
        display_name="Maximum restarts",
    ),
    Setting(
        MAX_BACKOFF_MINUTES,
        Type.INT,
        60,
        "Longest pause between automatic restarts.",
        AtLeast(1),
        group=_GROUP,
        order=8,
        display_name="Maximum pause in minutes",
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
        """Return the rule in a connector's config; None if it is never restarted automatically.

        Raises:
            ConfigError: A value is invalid.
        """
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


_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
COMMON_GROUP: Final = "Common"
TRANSFORMS_GROUP: Final = "Transforms"
PREDICATES_GROUP: Final = "Predicates"
ERROR_GROUP: Final = "Error Handling"
TOPIC_CREATION_GROUP: Final = "Topic Creation"
EXACTLY_ONCE_GROUP: Final = "Exactly Once Support"
OFFSETS_TOPIC_GROUP: Final = "offsets.topic"


@dataclass(frozen=True, slots=True)
class _Form:
    """A heading and the order of its next setting."""

    group: str
    order: int

    def field(
        self,
        name: str,
        type_: Type,
        default: Value | Required,
        doc: str,
        display_name: str,
        *,
        width: Width = Width.MEDIUM,
        check: Check | None = None,
        importance: Importance = _LOW,
        visible: bool = True,
    ) -> Setting:
        return Setting(
            name,
            type_,
            default,
            doc,
            check,
            importance,
            self.group,
            self.order,
            width,
            display_name=display_name,
            visible=visible,
        )


def _common(order: int) -> _Form:
    return _Form(COMMON_GROUP, order)


def _errors(order: int) -> _Form:
    return _Form(ERROR_GROUP, order)


def _converters(order: int, roles: Sequence[str]) -> Iterator[Setting]:
    for at, role in enumerate(roles):
        yield _common(order + 2 * at).field(
            f"{role}.converter",
            Type.CLASS,
            None,
            f"Converter of {role}s; null: the worker's {role}.converter.",
            f"{role.capitalize()} converter class",
            width=Width.SHORT,
        )
        yield _common(order + 2 * at + 1).field(
            f"{role}.converter.plugin.version",
            Type.STRING,
            None,
            f"Version of the converter of {role}s.",
            f"{role.capitalize()} converter version",
            width=Width.SHORT,
            visible=False,
        )


#: Configs of every connector.
CONNECTOR: Final = ConfigDef.of(
    _common(1).field(
        "name",
        Type.STRING,
        REQUIRED,
        "Name of the connector, unique in the worker group.",
        "Connector name",
        check=connector_name,
        importance=_HIGH,
    ),
    _common(2).field(
        "connector.class",
        Type.STRING,
        REQUIRED,
        "Class of the connector: the full name, the simple name, or the simple name without Connector.",
        "Connector class",
        width=Width.LONG,
        importance=_HIGH,
    ),
    _common(3).field(
        "connector.plugin.version",
        Type.STRING,
        None,
        "Version of the connector, or a range of versions.",
        "Connector version",
        importance=_MEDIUM,
    ),
    _common(4).field(
        "tasks.max",
        Type.INT,
        1,
        "Maximum number of tasks.",
        "Tasks max",
        width=Width.SHORT,
        check=AtLeast(1),
        importance=_HIGH,
    ),
    _common(5).field(
        "tasks.max.enforce",
        Type.BOOLEAN,
        True,
        "Fail a connector that generates more tasks than tasks.max; false only logs a warning.",
        "Enforce tasks max",
        width=Width.SHORT,
    ),
    *_converters(6, ("key", "value", "header")),
    _Form(TRANSFORMS_GROUP, 12).field(
        "transforms",
        Type.LIST,
        (),
        "Aliases of transformations; each has transforms.<alias>.type and its own settings.",
        "Transforms",
        width=Width.LONG,
        check=unique_aliases,
    ),
    _Form(PREDICATES_GROUP, 13).field(
        "predicates",
        Type.LIST,
        (),
        "Aliases of predicates; each has predicates.<alias>.type and its own settings.",
        "Predicates",
        width=Width.LONG,
        check=unique_aliases,
    ),
    _common(14).field(
        "config.action.reload",
        Type.STRING,
        "restart",
        "Whether to restart the connector when a config provider's value changes.",
        "Reload Action",
        check=OneOf(("none", "restart")),
    ),
    _errors(1).field(
        "errors.retry.timeout",
        Type.LONG,
        0,
        "How long a failed operation is retried, in ms; -1: without end.",
        "Retry Timeout for Errors",
        importance=_MEDIUM,
    ),
    _errors(2).field(
        "errors.retry.delay.max.ms",
        Type.LONG,
        60_000,
        "Longest wait between retries of a failed operation.",
        "Maximum Delay Between Retries for Errors",
        importance=_MEDIUM,
    ),
    _errors(3).field(
        "errors.tolerance",
        Type.STRING,
        "none",
        "all: skip records that fail; none: fail the task.",
        "Error Tolerance",
        width=Width.SHORT,
        check=OneOf(("none", "all")),
        importance=_MEDIUM,
    ),
    _errors(4).field(
        "errors.log.enable",
        Type.BOOLEAN,
        False,
        "Log every failed operation.",
        "Log Errors",
        width=Width.SHORT,
        importance=_MEDIUM,
    ),
    _errors(5).field(
        "errors.log.include.messages",
        Type.BOOLEAN,
        False,
        "Include the failed record in the log.",
        "Log Error Details",
        width=Width.SHORT,
        importance=_MEDIUM,
    ),
    *AUTO_RESTART.settings.values(),
)

#: Configs of a source connector.
SOURCE_CONNECTOR: Final = CONNECTOR | ConfigDef.of(
    _Form(TOPIC_CREATION_GROUP, 1).field(
        "topic.creation.groups",
        Type.LIST,
        (),
        "Topic creation groups; a new topic uses the first group that includes it, else the group default.",
        "Topic Creation Groups",
        width=Width.LONG,
        check=unique_aliases,
    ),
    _Form(EXACTLY_ONCE_GROUP, 2).field(
        "exactly.once.support",
        Type.STRING,
        "requested",
        "required: reject the connector if it does not support exactly-once.",
        "Exactly once support",
        width=Width.SHORT,
        check=OneOf(("REQUIRED", "REQUESTED"), any_case=True),
        importance=_MEDIUM,
    ),
    _Form(EXACTLY_ONCE_GROUP, 3).field(
        "transaction.boundary",
        Type.STRING,
        "poll",
        "Where exactly-once transactions end: after each poll, after an interval, or where the connector decides.",
        "Transaction Boundary",
        width=Width.SHORT,
        check=OneOf(("INTERVAL", "POLL", "CONNECTOR"), any_case=True),
        importance=_MEDIUM,
    ),
    _Form(EXACTLY_ONCE_GROUP, 4).field(
        "transaction.boundary.interval.ms",
        Type.LONG,
        None,
        "Interval of transactions with transaction.boundary=interval; null: the worker's offset.flush.interval.ms.",
        "Transaction boundary interval",
        width=Width.SHORT,
        check=AtLeast(0, nullable=True),
    ),
    _Form(OFFSETS_TOPIC_GROUP, 1).field(
        "offsets.storage.topic",
        Type.STRING,
        None,
        "Topic of this connector's source offsets; null: the worker's offset.storage.topic.",
        "Offsets topic",
        width=Width.LONG,
        check=non_empty,
    ),
)


def uses_topic_creation(props: Mapping[str, str | None]) -> bool:
    return any(key.startswith("topic.creation.") for key in props)


def topic_creation(props: Mapping[str, str]) -> ConfigDef:
    """Return the configs of a connector's topic creation groups, including the group default (KIP-158).

    Raises:
        ConfigError: A config of the default group, to which the other groups fall back, is missing or invalid.
    """
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
