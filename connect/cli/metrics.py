"""What ``/metrics`` shows of a process: its workers, its mirrors, and Python itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connect.runtime.distributed import DistributedWorker
from connect.runtime.loop_watch import LoopWatch
from connect.runtime.metrics import worker_metrics
from connectors.source.host import MirrorHost
from connectors.source.metrics import mirror_metrics
from connectors.written_metrics import written_metrics

#: The workers of the process now, each with what it lends its mirrors.
Workers = Callable[[], Sequence[tuple[DistributedWorker, MirrorHost]]]


class ProcessMetrics:
    """Gives the text of ``/metrics``, one at a time: looks in the loop, a few partitions in a turn, and writes the
    text in a thread."""

    def __init__(self, workers: Workers, watch: LoopWatch) -> None:
        self._workers = workers
        self._watch = watch
        self._asked = asyncio.Lock()

    async def __call__(self) -> bytes:
        async with self._asked:
            now_ms, pairs = time.time_ns() // 1_000_000, self._workers()
            registry = CollectorRegistry(auto_describe=False)
            found = [
                *await worker_metrics([worker for worker, _ in pairs], now_ms),
                *await mirror_metrics([host for _, host in pairs], now_ms),
                *written_metrics([host.written for _, host in pairs], now_ms),
                *self._of_loop(),
            ]
            for collector in (_Found(found), ProcessCollector(registry=None), PlatformCollector(registry=None)):
                registry.register(collector)
            return await asyncio.to_thread(_text_of, registry, found)

    def _of_loop(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "heliograph_loop_stalls", "How often something held up the loop for over a second.", self._watch.stalls
        )
        yield CounterMetricFamily(
            "heliograph_loop_stalled_seconds", "For how long in all, as far as it is over.", self._watch.stalled_s
        )
        leases = self._watch.leases
        yield GaugeMetricFamily(
            "heliograph_loop_longest_stall_seconds",
            "For how long the worker's loop came late at most since the start.",
            leases.longest_stall_s,
        )
        yield GaugeMetricFamily(
            "heliograph_lease_longest_beat_seconds",
            "The longest time since the start between two turns of the thread that renews leases.",
            leases.longest_beat_s,
        )


def _text_of(registry: CollectorRegistry, found: Sequence[Metric]) -> bytes:
    """The text of what was found. A family after the other is let go of: all at once are 60 ms of the loop."""
    text = generate_latest(registry)
    for metric in found:
        metric.samples.clear()
    return text


class _Found(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics

    def describe(self) -> Iterator[Metric]:
        # What there is changes with the workers; nothing is described before it is collected.
        return iter(())
