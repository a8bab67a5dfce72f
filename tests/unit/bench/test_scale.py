"""The model of scale finds the costs of which loads were made, and says what a rate takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scale
from bench.rows import BUSY, IDLE, Held, Partitions, Rows
from bench.scale import Costs, Point
from tests.kit import late as late_run
from tests.kit import scale as scale_run
from tests.unit.bench.samples import result, run

COSTS = Costs(running_cores=0.2, gb_s=0.5, batch_s=2e-6, record_s=50e-9)


def point(gb_per_s: float, batches: float, records: float, costs: Costs = COSTS) -> Point:
    return Point("load", batches, records, costs.cores(gb_per_s, batches, records) / gb_per_s, gb_per_s)


def test_costs_are_found_again() -> None:
    loads = [(0.1, 1e6, 1e6), (0.2, 1e3, 1e6), (0.3, 6e4, 1e6), (0.2, 6e4, 1e7), (0.4, 1e3, 1e7)]
    found = scale.fit([point(*load) for load in loads])
    assert found.running_cores == pytest.approx(0.2)
    assert (found.gb_s, found.batch_s, found.record_s) == pytest.approx((0.5, 2e-6, 50e-9))


def test_no_cost_is_below_nothing() -> None:
    odd = Costs(running_cores=0.2, gb_s=0.5, batch_s=-1e-7, record_s=50e-9)
    loads = [(0.1, 1e6, 1e6), (0.2, 1e3, 1e6), (0.3, 6e4, 1e6), (0.2, 6e4, 1e7)]
    found = scale.fit([point(*load, odd) for load in loads])
    assert found.batch_s == 0
    assert min(found.running_cores, found.gb_s, found.record_s) >= 0


def test_four_costs_need_four_loads() -> None:
    with pytest.raises(ValueError, match="4 costs"):
        scale.fit([point(0.1, 1e3, 1e6)] * 3)


def test_points_are_of_loads_whose_topic_and_copy_were_measured() -> None:
    rows = Rows()
    rows.add(run("a"), result("rf3-8-one", "heliograph", 1, 100_000, 2.0))
    rows.add(run("a"), result("rf3-8-16k", "heliograph", 1, 100_000, 2.0))
    rows.add(run("a"), Held(load="rf3-8-one", records=10, record_bytes=1000, batch_bytes=2000))
    (found,) = scale.points(rows)
    assert (found.name, found.batches, found.records) == ("rf3-8-one", 500_000, 1_000_000)
    assert found.cores == pytest.approx(0.2)


def test_partitions_cost_what_the_long_runs_have_measured() -> None:
    rows = Rows()
    for number, cores in ((1, 0.05), (2, 0.07)):
        rows.add(run("a"), Partitions(load=IDLE, round=number, partitions=2000, cores=cores))
    assert scale.partition_cores(rows, IDLE) == pytest.approx(30e-6)
    assert ["a partition that is idle, at worker, Spark and slices", "30 us a second"] in scale.costs_table(
        COSTS, rows
    ).rows
    idle, busy = scale.partitions_text(rows).splitlines()
    assert "measured with 2,000 of them (`make scale`)" in idle
    assert "not measured yet, and left out (`make late`)" in busy
    with_idle, without = (scale.aim_table(COSTS, some).rows[0][2] for some in (rows, Rows()))
    assert int(with_idle) - int(without) == 3


def test_the_worker_is_a_wall_once_busy_partitions_were_measured() -> None:
    rows = Rows()
    assert "worker" not in str(scale.walls_table(rows).rows)
    rows.add(run("a"), Partitions(load=BUSY, partitions=2000, cores=0.1))
    assert scale.walls_table(rows).rows[0] == ["worker: busy partitions", "20,000 partitions for each worker"]


def test_plot_is_drawn(tmp_path: Path) -> None:
    scale.draw(COSTS, [point(0.1, 1e6, 1e6)], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 1000


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
