"""What can go wrong, as a small tree: whether trying again may help is the first thing a caller asks.

``str(error)`` is one clear line: what, where, whose fault, what to do. No secret ever stands in it.
"""

from __future__ import annotations

from collections.abc import Collection


class HeliographError(Exception):
    """Base of every error that this project raises on purpose."""


class RetriableError(HeliographError):
    """The same attempt may succeed later, with nothing changed by anybody."""


class PermanentError(HeliographError):
    """Only a changed setting, file or machine helps."""


def may_recover(error: BaseException) -> bool:
    """Return whether a later attempt may succeed. An error of this project's that is neither retriable nor permanent
    only says what failed, and its cause decides; nothing is known of other errors, so they count as passing."""
    if isinstance(error, PermanentError):
        return False
    if isinstance(error, RetriableError) or not isinstance(error, HeliographError) or error.__cause__ is None:
        return True
    return may_recover(error.__cause__)


class UnreadableRecord(PermanentError):
    """A record of an internal topic is not what its readers know; they name it and go on without it."""


class ConfigError(PermanentError):
    """A setting is missing or wrong.

    Args:
        message: What is wrong and what to do, without the place.
        key: The setting's key as its user wrote it; named in the text unless ``message`` has it already.
        file: The file it stands in, if any.
        line: Its line in that file, from 1.
    """

    def __init__(
        self,
        message: str,
        key: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.message = message
        self.key = key
        self.file = file
        self.line = line
        place = file if file is None or line is None else f"{file}:{line}"
        named = message if key is None or key in message else f"{key}: {message}"
        super().__init__(named if place is None else f"{place}: {named}")

    def __reduce__(
        self,
    ) -> tuple[type[ConfigError], tuple[str, str | None, str | None, int | None]]:
        return type(self), (self.message, self.key, self.file, self.line)


class NoAnswer(RetriableError):
    """Brokers do not answer.

    Args:
        message: What was asked, and why there is no answer.
        addresses: Of these brokers, as ``host:port``; empty if they are not known.
    """

    def __init__(self, message: str, addresses: Collection[str] = ()) -> None:
        super().__init__(message)
        self.addresses = frozenset(addresses)


class ClusterUnreachable(NoAnswer):
    """No broker of a cluster answers."""


class SecurityError(PermanentError):
    """A broker refuses who we are, we refuse who it is, or a key store cannot be used."""


class NotRunning(PermanentError):
    """A connector is not here, or not started yet: it cannot say its tasks now."""


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
    """No Java of a version that Spark and Kafka can run on."""


class DownloadFailed(RetriableError):
    """A file that is needed could not be brought from its registry."""
