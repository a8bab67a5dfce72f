"""Rows for tests."""

from __future__ import annotations

from bench.rows import Result, Run


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
        window_s=1.0,
        records_per_s=records_per_s,
        wire_mb_per_s=records_per_s / 1000,
        cpu_s_per_gb=cpu_s_per_gb,
        source_cpu_s_per_gb=1.0,
        target_cpu_s_per_gb=1.0,
        memory_peak_mb=1.0,
        first_record_s=1.0,
        target_batch_bytes=1.0,
        stop_s=1.0,
        busy_before_percent=0.0,
    )
