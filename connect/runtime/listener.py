"""What a worker tells of the connectors and tasks that run on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from connect.core.errors import may_recover
from connect.core.model import State, TaskId
from connect.runtime.traces import Secrets


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a connector or a task is FAILED: the whole text of the error, free of resolved secrets, and whether a
    restart may help. ``is_at_end``: it was to end, so no restart follows; another may run by then."""

    trace: str
    may_recover: bool
    is_at_end: bool = False

    @classmethod
    def of(cls, error: Exception, secrets: Secrets, *, is_at_end: bool = False) -> Failure:
        return cls(secrets.trace(error), may_recover(error), is_at_end)


class WorkerListener(Protocol):
    """Hears of every change, in order, within the worker's loop; must neither block nor raise.

    ``failure`` is given with FAILED; ``version`` is that of the connector's plugin.
    """

    def connector_changed(self, name: str, state: State, failure: Failure | None, version: str | None) -> None:
        """An instance is RUNNING, PAUSED, STOPPED, FAILED, or gone from here (UNASSIGNED)."""
        ...

    def connector_failed(self, name: str) -> None:
        """An instance that was to run is FAILED; not said of one that fails as it ends: another may start by then."""
        ...

    def task_changed(self, task: TaskId, state: State, failure: Failure | None, version: str | None) -> None:
        """A task is RUNNING, PAUSED, FAILED, or gone from here (UNASSIGNED)."""
        ...

    def task_configs_wanted(self, name: str) -> None:
        """A connector has reached STARTED, or asks for its tasks to be configured anew."""
        ...

    def topic_used(self, topic: str, task: TaskId) -> None:
        """A task has written a record to a topic, its first one there since it began (KIP-558)."""
        ...
