"""Measures metrics over a moving window, and converts tables of metrics to Prometheus families.

Windows follow Kafka's ``SampledStat``, with the time as an argument. A row of a table has a name, a description, and a
function that computes the value of an object at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

#: ``metrics.sample.window.ms`` and ``metrics.num.samples``.
WINDOW_MS: Final = 30_000
SAMPLES: Final = 2


@dataclass(slots=True)
class _Sample:
    began_ms: int
    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf


@dataclass(slots=True)
class Windowed:
    """A series of values over a moving window of about a minute. Results are NaN if nothing was recorded."""

    last: float = math.nan
    #: The number and the sum of all values since the start.
    recorded: int = 0
    total: float = 0.0
    _samples: deque[_Sample] = field(default_factory=deque)

    def record(self, value: float, now_ms: int) -> None:
        if not self._samples or now_ms - self._samples[-1].began_ms >= WINDOW_MS:
            self._samples.append(_Sample(now_ms))
        sample = self._kept(now_ms)[-1]
        sample.count += 1
        sample.total += value
        sample.least = min(sample.least, value)
        sample.most = max(sample.most, value)
        self.last = value
        self.recorded += 1
        self.total += value

    def least(self, now_ms: int) -> float:
        return min((sample.least for sample in self._kept(now_ms)), default=math.nan)

    def most(self, now_ms: int) -> float:
        return max((sample.most for sample in self._kept(now_ms)), default=math.nan)

    def mean(self, now_ms: int) -> float:
        count = sum(sample.count for sample in self._kept(now_ms))
        return sum(sample.total for sample in self._samples) / count if count else math.nan

    def rate(self, now_ms: int) -> float:
        """Return the sum per second. A window that has just begun counts as complete (Kafka's ``Rate.windowSize``)."""
        return self._per_second(sum(sample.total for sample in self._kept(now_ms)), now_ms)

    def frequency(self, now_ms: int) -> float:
        """Return the number of values per second."""
        return self._per_second(sum(sample.count for sample in self._kept(now_ms)), now_ms)

    def share(self, now_ms: int) -> float:
        """Return the mean of ones and zeros, 0 if there are none (Kafka's ``Frequencies``)."""
        mean = self.mean(now_ms)
        return 0.0 if math.isnan(mean) else mean

    def lack(self, now_ms: int) -> float:
        """Return the share of zeros among ones and zeros, 0 if there are none."""
        mean = self.mean(now_ms)
        return 0.0 if math.isnan(mean) else 1 - mean

    def _per_second(self, amount: float, now_ms: int) -> float:
        if not self._samples:
            return 0.0
        elapsed_ms = now_ms - self._samples[0].began_ms
        missing = max(SAMPLES - 1 - elapsed_ms // WINDOW_MS, 0)
        return amount * 1000 / max(elapsed_ms + missing * WINDOW_MS, 1)

    def _kept(self, now_ms: int) -> deque[_Sample]:
        """Return the samples of the window, and forget older ones."""
        while self._samples and now_ms - self._samples[0].began_ms >= SAMPLES * WINDOW_MS:
            self._samples.popleft()
        return self._samples


@dataclass(slots=True)
class StateTimes:
    """The time spent in each state since the first recorded state (Kafka's ``StateTracker``)."""

    _began_ms: int | None = None
    _since_ms: int = 0
    _state: Hashable = None
    _spent_ms: dict[Hashable, int] = field(default_factory=dict)

    def changed(self, state: Hashable, now_ms: int) -> None:
        if self._began_ms is None:
            self._began_ms = now_ms
        else:
            self._spent_ms[self._state] = self._spent_ms.get(self._state, 0) + now_ms - self._since_ms
        self._state, self._since_ms = state, now_ms

    def ratio(self, state: Hashable, now_ms: int) -> float:
        if self._began_ms is None or now_ms <= self._began_ms:
            return 0.0
        running_ms = now_ms - self._since_ms if state == self._state else 0
        return (self._spent_ms.get(state, 0) + running_ms) / (now_ms - self._began_ms)


_Of = TypeVar("_Of")
Rows = tuple[tuple[str, str, Callable[[_Of, int], float]], ...]


def over(field: str, how: Callable[[Windowed, int], float]) -> Callable[[Any, int], float]:
    """Return the function of a row that reads the :class:`Windowed` in ``field``, such as ``meters.poll_ms``."""
    read = attrgetter(field)
    return lambda one, now_ms: how(read(one), now_ms)


Family = CounterMetricFamily | GaugeMetricFamily


def new_family(name: str, text: str, labels: Sequence[str]) -> Family:
    """Return a counter for a name that ends with ``_total``, as Prometheus names counters; else a gauge."""
    return (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, text, labels=labels)


class Families(Generic[_Of]):
    """An iterable of one family for each row. Names begin with ``prefix``."""

    def __init__(self, prefix: str, labels: Sequence[str], rows: Rows[_Of]) -> None:
        self._rows = [(new_family(prefix + name, text, labels), value) for name, text, value in rows]

    def __iter__(self) -> Iterator[Family]:
        return (family for family, _ in self._rows)

    def add(self, labels: Sequence[str], one: _Of, now_ms: int) -> None:
        for family, value in self._rows:
            family.add_metric(labels, value(one, now_ms))
