"""Rows are kept and replaced by what they are about; ratios are made within a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.rows import Result, Rows, ratio
from tests.unit.bench.samples import latency, result, run

FIRST, SECOND = run("2026-11-01 10:00:00"), run("2026-11-02 10:00:00")


def test_a_partial_run_replaces_its_rows_only() -> None:
    rows = Rows()
    for number in (1, 2):
        rows.add(FIRST, result("rf3-8-one", "heliograph", number, 100))
        rows.add(FIRST, result("rf3-8-one", "mm2-tuned", number, 50))
        rows.add(FIRST, result("rf1-small", "heliograph", number, 30))
    for number in (1, 2, 3):
        rows.add(SECOND, result("rf3-8-one", "heliograph", number, 200))
    assert [row.records_per_s for row in rows.of(Result, "rf3-8-one", "heliograph")] == [200, 200, 200]
    assert len(rows.of(Result, "rf3-8-one", "mm2-tuned")) == 2
    assert len(rows.of(Result, "rf1-small")) == 2
    assert {row.run for row in rows.rows} == {FIRST.id, SECOND.id}


def test_a_file_gives_back_what_it_took_and_forgets_runs_without_rows(tmp_path: Path) -> None:
    rows = Rows(runs={FIRST.id: FIRST})
    rows.add(SECOND, result("rf1-small", "heliograph", 1, 10))
    rows.add(SECOND, latency("heliograph", 1.0))
    file = tmp_path / "folder" / "results.json"
    rows.write(file)
    again = Rows.read(file)
    assert again.rows == rows.rows
    assert again.runs == {SECOND.id: SECOND}
    assert Rows.read(tmp_path / "none.json").rows == []


def test_ratio_is_the_median_of_the_rounds_that_have_both() -> None:
    mine = [
        result("rf1-small", "heliograph", number, rate) for number, rate in ((1, 400), (2, 600), (3, 500), (4, 9000))
    ]
    theirs = [result("rf1-small", "mm2-tuned", number, rate) for number, rate in ((1, 100), (2, 200), (3, 50))]
    found = ratio(mine, theirs, lambda row: row.records_per_s)
    assert found is not None
    assert found.value == 4
    assert found.same_run
    assert ratio(mine, [], lambda row: row.records_per_s) is None


def test_ratio_of_two_runs_is_that_of_the_medians_and_says_so() -> None:
    mine = [result("rf1-small", "heliograph", number, rate, run="b") for number, rate in ((1, 100), (2, 300), (3, 200))]
    theirs = [result("rf1-small", "mm2-tuned", 1, 50, run="a")]
    found = ratio(mine, theirs, lambda row: row.records_per_s)
    assert found is not None
    assert found.value == 4
    assert not found.same_run


def test_spread_is_a_share_of_the_median() -> None:
    rows = Rows(
        rows=[result("rf1-small", "heliograph", number, rate) for number, rate in ((1, 80), (2, 100), (3, 130))]
    )
    assert rows.spread(Result, "rf1-small", "heliograph", lambda row: row.records_per_s) == pytest.approx(0.5)
    assert rows.spread(Result, "rf1-small", "mm2-tuned", lambda row: row.records_per_s) is None
    assert rows.median(Result, "rf1-small", "heliograph", lambda row: row.records_per_s) == 100
