"""Rows for tests."""

from __future__ import annotations

from typing import Any

from bench.rows import Latency, Result, Run

#: What no test looks at.
_OTHERS: dict[str, Any] = {
    "window_s": 1.0,
    **{f"{cluster}_cpu_s_per_gb": 1.0 for cluster in ("source", "target")},
    **dict.fromkeys(("memory_peak_mb", "first_record_s", "target_batch_bytes", "stop_s"), 1.0),
}


def run(began: str, command: str = "python -m bench") -> Run:
    return Run(began, command, {"processor": "2 cores"}, {"Kafka": "4.3.1"})


def result(
    load: str, contender: str, number: int, records_per_s: float, cpu_s_per_gb: float = 1.0, run: str = "a"
) -> Result:
    return Result(
        run=run,
        load=load,
        contender=contender,
        round=number,
        records_per_s=records_per_s,
        wire_mb_per_s=records_per_s / 1000,
        cpu_s_per_gb=cpu_s_per_gb,
        busy_before_percent=0.0,
        **_OTHERS,
    )


def latency(contender: str, p50_ms: float) -> Latency:
    times: dict[str, Any] = {"p50_ms": p50_ms, "p99_ms": 2 * p50_ms, "p999_ms": 3 * p50_ms, "most_ms": 40.0}
    return Latency(load="latency-rf1-200", contender=contender, records=9, busy_before_percent=0, **times)
