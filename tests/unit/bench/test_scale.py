"""The model of scale finds the costs of which loads were made, and says what a rate takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scale
from bench.rows import Held, Rows
from bench.scale import Costs, Point
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


def test_idle_partitions_take_their_share() -> None:
    idle = COSTS.cores(0, 1e3, 1e6, partitions=100_000)
    assert idle == pytest.approx(0.2 + 100_000 * scale.IDLE_PARTITION_CORES)


def test_plot_is_drawn(tmp_path: Path) -> None:
    scale.draw(COSTS, [point(0.1, 1e6, 1e6)], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 1000
