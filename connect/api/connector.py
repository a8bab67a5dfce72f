"""What the author of a connector sees: a connector says what is to be done, its tasks do it.

The names and the contract are Kafka Connect's (``Connector``, ``Task``, ``ConnectorContext``); calls are coroutines.
A task here drives itself: it runs until it is told to stop, and stores its own positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Props = Mapping[str, str]


class ConnectorContext(Protocol):
    """What the runtime lends a connector."""

    def request_task_reconfiguration(self) -> None:
        """The task configs changed: ask for them again and restart what runs."""


class Connector(Protocol):
    """One connector instance."""

    async def start(self, context: ConnectorContext) -> None:
        """Begin; raises what makes it impossible. Connect counts a connector as started when this returns."""

    def task_configs(self, max_tasks: int) -> Sequence[Props]:
        """The configs of at most ``max_tasks`` tasks, from what is known now."""

    async def stop(self) -> None:
        """End what ``start`` began; tasks are stopped before."""


class Task(Protocol):
    """One task instance."""

    async def run(self) -> None:
        """Work until :meth:`stop`; an error that comes out of here makes the task FAILED."""

    def stop(self) -> None:
        """Ask ``run`` to end cleanly and soon."""
