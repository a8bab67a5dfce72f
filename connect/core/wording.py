"""Words of messages: counts, times, lists of names cut short, text for a terminal; and the times that users write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from connect.core.errors import ConfigError
from connect.core.model import FACTOR_KEYS

_TRACE_CHARACTERS: Final = 200


def counted(count: int, noun: str) -> str:
    """Format a count: ``1 partition``, ``1,200 partitions``."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Replace control characters, because names, traces and contents of records may hold terminal commands."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


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


def age_text(ms: int) -> str:
    """Format an age in seconds, or in its two largest units; a negative age is unknown."""
    if ms < 0:
        return "unknown"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, hours, days = ms // 60_000, ms // 3_600_000, ms // 86_400_000
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {ms // 1000 % 60} s"


def bytes_text(count: float) -> str:
    """Format ``1234567`` as ``1.2 MB``, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def reason_of(trace: str | None) -> str:
    """Return the error in a trace: the first line in Java, the last in Python."""
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    if not lines:
        return ""
    found = lines[-1] if lines[0].startswith("Traceback ") else lines[0]
    return found if len(found) <= _TRACE_CHARACTERS else found[:_TRACE_CHARACTERS] + "…"
