"""Ratios are made within a round; the median is taken over the rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.bed import Contents
from bench.contenders import CONTENDERS
from bench.loads import LOADS
from bench.measure import Ceiling, Result
from bench.report import Report

LOAD = LOADS[0]
CONTENTS = {LOAD.name: Contents(3_000_000, 110.0, 16_500.0)}


def result(contender: str, number: int, records_per_s: float, cpu_s_per_gb: float = 1.0) -> Result:
    return Result(
        contender=contender,
        load=LOAD.name,
        round=number,
        window_s=1.0,
        records_per_s=records_per_s,
        wire_mb_per_s=1.0,
        cpu_s_per_gb=cpu_s_per_gb,
        source_cpu_s_per_gb=1.0,
        target_cpu_s_per_gb=1.0,
        memory_peak_mb=1.0,
        first_record_s=1.0,
        target_batch_bytes=1.0,
        stop_s=1.0,
        busy_before_percent=0.0,
    )


@pytest.fixture
def report() -> Report:
    results = [
        result("mm2-tuned", 1, 100, 40),
        result("heliograph", 1, 400, 4),
        result("mm2-tuned", 2, 200, 40),
        result("heliograph", 2, 600, 8),
        result("mm2-tuned", 3, 50, 40),
        result("heliograph", 3, 500, 2),
        result("heliograph", 4, 9000, 1),  # the round was cut short before MM2 ran
    ]
    ceilings = [Ceiling(LOAD.name, number, "merged", rate, 1, 1) for number, rate in ((1, 500), (2, 800))]
    return Report([LOAD], CONTENDERS, CONTENTS, results, ceilings)


def test_ratio_is_the_median_of_the_rounds_that_have_both(report: Report) -> None:
    assert report.ratio(LOAD, "heliograph", "mm2-tuned", lambda one: one.records_per_s) == 4
    assert report.ratio(LOAD, "heliograph", "mm2-tuned", lambda one: one.cpu_s_per_gb) == 0.1
    assert report.ratio(LOAD, "heliograph", "mm2-default", lambda one: one.records_per_s) is None


def test_share_of_the_ceiling_of_the_same_round(report: Report) -> None:
    assert report.ceiling_share(LOAD, "heliograph") == pytest.approx((400 / 500 + 600 / 800) / 2)
    assert report.ceiling_share(LOAD, "mm2-default") is None


def test_file_holds_every_run_and_the_ratios(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "folder" / "last.json"
    report.write(file)
    document = json.loads(file.read_text())
    assert len(document["results"]) == len(report.results)
    (medians,) = (row for row in document["medians"] if row["contender"] == "heliograph")
    assert medians["throughput_to_mm2-tuned"] == 4
    assert medians["throughput_to_mm2-default"] is None
    assert medians["spread"] == (9000 - 400) / 550


def test_contender_files_name_what_the_bench_relies_on() -> None:
    zstd = next(load for load in LOADS if load.name == "rf3-8-16k-zstd")
    for contender in CONTENDERS:
        properties = contender.properties("127.0.0.1:1", "127.0.0.1:2", zstd)
        assert properties["us->eu.enabled"] == "true"
        assert properties["us->eu.topics"] == zstd.topic
        assert properties["replication.factor"] == properties["offset.storage.replication.factor"] == "3"
        recompresses = properties.get("us->eu.producer.override.compression.type") == "zstd"
        assert recompresses == contender.keeps_codec


def test_scaled_load_keeps_something_in_every_partition() -> None:
    assert LOAD.scaled(0.1).records == LOAD.records // 10
    assert LOAD.scaled(1e-9).records == LOAD.partitions * 1000
