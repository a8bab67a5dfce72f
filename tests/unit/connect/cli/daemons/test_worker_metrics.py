"""The text of ``/metrics`` of a process without workers."""

from __future__ import annotations

from connect.cli.daemons.worker_process import ProcessMetrics
from connect.kafka.threads import LeaseThread
from connect.runtime.event_loop_monitor import LoopWatch


async def test_the_loop_and_the_lease_thread_have_metrics() -> None:
    leases = LeaseThread(30.0)
    leases.start()
    metrics = ProcessMetrics(list, LoopWatch(leases))
    first, second = (await metrics()).decode(), (await metrics()).decode()
    await leases.stop()
    for name in (
        "heliograph_loop_stalls_total",
        "heliograph_loop_stalled_seconds_total",
        "heliograph_loop_longest_stall_seconds",
        "heliograph_lease_longest_beat_seconds",
    ):
        assert f"\n{name} " in first
        assert f"\n{name} " in second
