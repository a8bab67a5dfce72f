"""Defines the errors of this project, divided by whether a retry may succeed.

``str(error)`` is one line: what failed, where, why, what to do. It never contains a secret.
"""

from __future__ import annotations

from collections.abc import Collection


class HeliographError(Exception):
    """The base class of all errors of this project."""


class RetriableError(HeliographError):
    """A retry may succeed without any change."""


class PermanentError(HeliographError):
    """A retry fails until a setting, a file or the environment changes."""


def may_recover(error: BaseException) -> bool:
    """Return whether a retry may succeed. The cause decides for an error of this project that is neither retriable nor
    permanent. Other errors count as retriable, because nothing is known about them."""
    if isinstance(error, PermanentError):
        return False
    if isinstance(error, RetriableError) or not isinstance(error, HeliographError) or error.__cause__ is None:
        return True
    return may_recover(error.__cause__)


class UnreadableRecord(PermanentError):
    """A record of an internal topic cannot be decoded; readers log it and skip it."""


class ConfigError(PermanentError):
    """A setting is missing or invalid.

    Args:
        message: The cause and the remedy, without file and line.
        key: The setting's key as the user wrote it; the text begins with it unless ``message`` contains it.
        file: The file that contains it, if any.
        line: The line in that file, from 1.
    """

    def __init__(self, message: str, key: str | None = None, file: str | None = None, line: int | None = None) -> None:
        self.message = message
        self.key = key
        self.file = file
        self.line = line
        place = file if file is None or line is None else f"{file}:{line}"
        named = message if key is None or key in message else f"{key}: {message}"
        super().__init__(named if place is None else f"{place}: {named}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str | None, str | None, int | None]]:
        return type(self), (self.message, self.key, self.file, self.line)


class NoAnswer(RetriableError):
    """Brokers do not answer. ``message``: the request, and why there is no response. ``addresses``: the addresses of
    these brokers, as ``host:port``; empty if they are not known."""

    def __init__(self, message: str, addresses: Collection[str] = ()) -> None:
        super().__init__(message)
        self.addresses = frozenset(addresses)


class ClusterUnreachable(NoAnswer):
    """No broker of a cluster answers."""


class SecurityError(PermanentError):
    """A broker rejects the client's identity, the client rejects the broker's, or a key store cannot be used."""


class NotRunning(PermanentError):
    """A connector is not running here, or not started yet, so it cannot return its task configs."""


class TooManyTasks(PermanentError):
    """A connector configures more tasks than ``tasks.max`` allows (KIP-1004)."""

    def __init__(self, connector: str, tasks: int, tasks_max: int) -> None:
        super().__init__(
            f"The connector {connector} has generated {tasks} tasks, which is greater than {tasks_max}, the maximum "
            "number of tasks it is configured to create. This behaviour should be considered a bug and is disallowed. "
            "If necessary, it can be permitted by reconfiguring the connector with 'tasks.max.enforce' set to false; "
            "however, this option will be removed in a future release of Kafka Connect."
        )


class JavaNotFound(PermanentError):
    """There is no Java of a version that Spark and Kafka can run on."""


class DownloadFailed(RetriableError):
    """A required file could not be downloaded from its registry."""
