"""Words of messages: counts, times, lists of names cut short; and the times that users write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from connect.core.errors import ConfigError
from connect.core.model import FACTOR_KEYS


def counted(count: int, noun: str) -> str:
    """Format a count: ``1 partition``, ``2 partitions``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def too_few_brokers(brokers: int, factor: int, topics: Iterable[object]) -> str:
    """Say that topics need more brokers than a cluster has, with every key that may have to change."""
    return (
        f"replication factor {factor} is too high for {counted(brokers, 'broker')}: cannot create {named(topics, 3)}. "
        f"Set {', '.join(FACTOR_KEYS)} to {brokers}, or to -1 for the brokers' default"
    )


def in_utc(at_ms: int) -> str:
    """Format a time: ``2026-01-01 14:03:02 UTC``."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def parsed_time_ms(text: str, option: str) -> int:
    """Return an ISO 8601 time in milliseconds since 1970. Raises ConfigError, which names the option."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"'{text}' is not a time such as 2026-11-20T11:00Z", option) from None
    if when.tzinfo is None:
        raise ConfigError(f"'{text}' has no time zone. Append Z for UTC", option)
    if when.timestamp() < 0:
        # Because Kafka's -1 and -2 stand for the end and the start of a log.
        raise ConfigError(f"'{text}' is before 1970. Use a later time", option)
    return int(when.timestamp() * 1000)


def named(names: Iterable[object], most: int = 5, between: str = ", ") -> str:
    """Join the first names: ``a, b and 3 more``."""
    texts = list(map(str, names))
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more
