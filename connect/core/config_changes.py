"""What a record of the config topic has changed, as its fold (:mod:`connect.core.configlog`) says it."""

from __future__ import annotations

from dataclasses import dataclass

from connect.core.model import RestartRequest


@dataclass(frozen=True, slots=True)
class ConnectorChanged:
    """A connector has appeared, or its config was written again, perhaps the same."""

    name: str


@dataclass(frozen=True, slots=True)
class ConnectorRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class TasksChanged:
    """A connector's tasks were committed, or found inconsistent."""

    name: str


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """An existing connector is to do something else; not said of one that is new or removed."""

    name: str


@dataclass(frozen=True, slots=True)
class SessionKeyChanged:
    pass


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """To be passed over while the log is read for the first time: it was asked of earlier workers."""

    request: RestartRequest


@dataclass(frozen=True, slots=True)
class LoggerChanged:
    """To be passed over while the log is read for the first time."""

    namespace: str
    level: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record was passed over; ``why`` is for the log and names no value."""

    why: str


Change = (
    ConnectorChanged
    | ConnectorRemoved
    | TasksChanged
    | TargetChanged
    | SessionKeyChanged
    | RestartAsked
    | LoggerChanged
    | Unreadable
)
