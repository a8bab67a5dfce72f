"""What the framework takes from a source connector's config, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connect.core.connector_defs import SOURCE_CONNECTOR
from connect.runtime.boundaries import Boundaries, ConnectorBoundaries, IntervalBoundaries, PollBoundaries
from connect.runtime.error_handling import ErrorSettings


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """``boundary`` is poll, interval or connector; ``offsets_topic`` None is the worker's."""

    tasks_max: int
    tasks_max_enforced: bool
    errors: ErrorSettings
    boundary: str
    boundary_interval_ms: int | None
    offsets_topic: str | None

    def boundaries(self, flush_interval_ms: int) -> Boundaries:
        """Where the transactions of a task end; ``flush_interval_ms`` is the worker's."""
        match self.boundary:
            case "poll":
                return PollBoundaries()
            case "interval":
                interval_ms = self.boundary_interval_ms
                return IntervalBoundaries(flush_interval_ms if interval_ms is None else interval_ms)
            case _:
                return ConnectorBoundaries()


def source_settings(props: Mapping[str, str]) -> SourceSettings:
    """The settings in a connector's resolved config. Raises ConfigError for one that is missing or refused."""
    values = SOURCE_CONNECTOR.parse(props)
    interval_ms, offsets_topic = values["transaction.boundary.interval.ms"], values["offsets.storage.topic"]
    return SourceSettings(
        tasks_max=values.integer("tasks.max"),
        tasks_max_enforced=values.boolean("tasks.max.enforce"),
        errors=ErrorSettings(
            retry_timeout_ms=values.integer("errors.retry.timeout"),
            retry_delay_max_ms=values.integer("errors.retry.delay.max.ms"),
            tolerates_all=values.string("errors.tolerance") == "all",
            log_enabled=values.boolean("errors.log.enable"),
            log_includes_messages=values.boolean("errors.log.include.messages"),
        ),
        boundary=values.string("transaction.boundary").lower(),
        boundary_interval_ms=interval_ms if isinstance(interval_ms, int) else None,
        offsets_topic=offsets_topic if isinstance(offsets_topic, str) else None,
    )
