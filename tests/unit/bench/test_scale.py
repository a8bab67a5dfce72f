"""The model of scale finds the costs of which loads were made, and says what a rate takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench import scale
from bench.rows import BUSY, IDLE, Held, Partitions, Rows
from bench.scale import Costs, NoModel, Point
from tests.kit import late as late_run
from tests.kit import scale as scale_run
from tests.unit.bench.samples import result, run

COSTS = Costs(running_cores=0.2, gb_s=0.5, batch_s=2e-6, record_s=50e-9)


def point(gb_per_s: float, batches: float, records: float, costs: Costs = COSTS) -> Point:
    return Point("load", batches, records, costs.cores(gb_per_s, batches, records) / gb_per_s, gb_per_s)


LOADS = ((0.1, 1e6, 1e6), (0.2, 1e3, 1e6), (0.3, 6e4, 1e6), (0.2, 6e4, 1e7), (0.4, 1e3, 1e7))


def test_costs_are_found_again() -> None:
    found = scale.fit([point(*load) for load in LOADS])
    assert found.running_cores == pytest.approx(0.2)
    assert (found.gb_s, found.batch_s, found.record_s) == pytest.approx((0.5, 2e-6, 50e-9))


def test_no_cost_is_below_nothing_and_the_others_are_the_best_with_that() -> None:
    odd = Costs(running_cores=-0.005, gb_s=0.5, batch_s=-2e-8, record_s=50e-9)
    loads = [point(*load, odd) for load in LOADS]
    found = scale.fit(loads)
    assert (found.running_cores, found.batch_s) == (0, 0)
    for share in (0.99, 1.01):
        assert error(found, loads) < error(replace(found, gb_s=share * found.gb_s), loads)
        assert error(found, loads) < error(replace(found, record_s=share * found.record_s), loads)


def error(costs: Costs, loads: Sequence[Point]) -> float:
    return sum((costs.cores(one.gb_per_s, one.batches, one.records) / one.cores - 1) ** 2 for one in loads)


def test_a_gigabyte_costs_at_least_what_only_passing_it_on_does() -> None:
    cheap = Costs(running_cores=0.2, gb_s=0.2, batch_s=2e-6, record_s=50e-9)
    found = scale.fit([point(*load, cheap) for load in LOADS])
    assert found.gb_s == scale.LEAST_GB_S
    assert found.record_s == pytest.approx(50e-9, rel=0.2)
    assert ["a GB that is copied unchanged", "0.25 CPU-s (the bound)"] in scale.costs_table(found, Rows()).rows


def test_a_load_that_the_costs_do_not_meet_is_named() -> None:
    loads = [point(*load) for load in LOADS for _ in range(3)]
    loads.append(Point("odd one", 1e3, 1e6, 3.0, 0.2))
    with pytest.raises(NoModel, match="`odd one` is off by -"):
        scale.fit(loads)


def test_as_many_loads_as_costs_are_too_few() -> None:
    with pytest.raises(NoModel, match="5 loads of one day are needed, and the fullest day has 4"):
        scale.fit([point(*load) for load in LOADS[:4]])


def test_the_model_is_of_the_rows_of_one_day() -> None:
    """Six loads of two runs of a day, a seventh of the next day that is ten times as dear."""
    rows = Rows()
    sizes = {
        "rf3-1-one": (1e3, 1e3),
        "rf3-1-16k": (1.6e4, 1e3),
        "rf3-1-1m": (1e6, 1e3),
        "rf3-8-one": (1e3, 1e3),
        "rf1-small": (1.6e4, 1e2),
        "rf1-medium": (4e3, 2e2),
        "rf3-8-16k": (1.6e4, 1e3),
    }
    for number, (load, (batch_bytes, record_bytes)) in enumerate(sizes.items(), start=1):
        gb_per_s = number / 20
        cpu_s = COSTS.cores(gb_per_s, 1e9 / batch_bytes, 1e9 / record_bytes) / gb_per_s
        began, times = ("2026-11-02 10:00:00", 10) if load == "rf3-8-16k" else (f"2026-11-01 1{number % 2}:00:00", 1)
        rows.add(run(began), result(load, "heliograph", 1, gb_per_s * 1e6, times * cpu_s))
        rows.add(run(began), Held(load=load, records=10, record_bytes=record_bytes, batch_bytes=batch_bytes))
    found = scale.model(rows)
    assert sorted(one.id for one in found.runs) == ["2026-11-01 10:00:00", "2026-11-01 11:00:00"]
    assert len(found.loads) == 6
    assert found.costs.gb_s == pytest.approx(0.5)
    assert "6 loads of one day, 2026-11-01: `python -m bench`" in scale.fitted_text(found)


def test_partitions_cost_what_the_long_runs_have_measured() -> None:
    rows = Rows()
    for number, cores in ((1, 0.05), (2, 0.07)):
        rows.add(run("a"), Partitions(load=IDLE, round=number, partitions=2000, cores=cores))
    assert scale.partition_cores(rows, IDLE) == pytest.approx(30e-6)
    assert ["an idle partition, in worker, Spark and slices", "30 us a second"] in scale.costs_table(COSTS, rows).rows
    idle, busy = scale.partitions_text(rows).splitlines()
    assert "measured with 2,000 partitions (`make scale`)" in idle
    assert "not measured yet, so not included (`make late`)" in busy
    with_idle, without = (scale.aim_table(COSTS, some).rows[0][2] for some in (rows, Rows()))
    assert int(with_idle) - int(without) == 3


def test_the_long_runs_give_rows_of_what_they_have_watched() -> None:
    watched = scale_run.Measured(0, 200, 10_000, 2, (0.0, 0.0, 0.0))
    for seconds, cpu in ((15.0, {"worker": 0.02, "slice": 0.03}), (60.0, {"worker": 0.07})):
        watched.idle.append(scale_run.Idle(seconds, cpu, {}, 0.0, 0.0, 0.0))
    assert [(row.round, row.partitions, row.cores) for row in scale_run.rows_of(watched)] == [
        (1, 10_000, 0.05),
        (2, 10_000, 0.07),
    ]
    late = late_run.Measured(0, 1000, 2000, 1, "nothing beside it", (0.0, 0.0, 0.0))
    assert late_run.rows_of(late) == [], "the part was not played"
    late.worker_cores = 0.3
    (row,) = late_run.rows_of(late)
    assert (row.load, row.partitions, row.cores) == (BUSY, 2000, 0.3)
