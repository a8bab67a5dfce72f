"""Rows of a table as families of Prometheus: a name, what it means, and how a thing gives its value at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily

_Of = TypeVar("_Of")
Rows = tuple[tuple[str, str, Callable[[_Of, int], float]], ...]


class Gauges(Generic[_Of]):
    """One family for each row; iterating gives them. Names begin with ``prefix``."""

    def __init__(self, prefix: str, labels: Sequence[str], rows: Rows[_Of]) -> None:
        self._rows = [(GaugeMetricFamily(prefix + name, text, labels=labels), value) for name, text, value in rows]

    def __iter__(self) -> Iterator[GaugeMetricFamily]:
        return (family for family, _ in self._rows)

    def add(self, labels: Sequence[str], one: _Of, now_ms: int) -> None:
        """The values of one thing, a series in each family."""
        for family, value in self._rows:
            family.add_metric(labels, value(one, now_ms))
