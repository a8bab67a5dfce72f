"""Words of messages: counts, and lists of names cut short."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """Format a count: ``1 partition``, ``2 partitions``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(names: Iterable[object], most: int = 5, between: str = ", ") -> str:
    """Join the first names: ``a, b and 3 more``."""
    texts = list(map(str, names))
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more
