"""What a task runner runs: a task that is polled, or one that owns its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from connect.core.model import State
from connect.runtime.control import TaskControl

#: Tells that the task is RUNNING or PAUSED now.
Tell = Callable[[State], None]


class Work(Protocol):
    """One life of a task. After :meth:`start` was called :meth:`close` is, whatever happens between."""

    async def start(self) -> None:
        """Everything up to RUNNING. Raises what makes it impossible, Interrupted where it was told to stop."""
        ...

    async def execute(self, control: TaskControl, tell: Tell) -> None:
        """Work until ``control`` wants the end; pauses in between. Raises what ends the task."""
        ...

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        """Go on with another config, references resolved; False: that takes a new life. Called while it executes."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Let go of everything; what fails is logged. ``timeout_s`` is for what is still to be sent. After a close that
        was cancelled it is called again, for what that left."""
        ...

    async def abandon(self) -> None:
        """The task was given time enough: send and store nothing more, whatever its author's code still does, which is
        not waited for. A :meth:`close` may be under way, or follow."""
        ...
