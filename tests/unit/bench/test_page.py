"""The page holds what was measured, says what was not, and the committed one is made of the committed results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import page, plots, tables
from bench.ciphers import measure_ciphers
from bench.latency import shares
from bench.rows import IDLE, Ceiling, Ciphers, Held, Partitions, Rows, Started
from tests.unit.bench.samples import latency, result, run

RUN = run("a", "python -m bench --all")


@pytest.fixture
def rows() -> Rows:
    """Something of every kind: two rounds on two loads, distance, TLS, latency, starts."""
    found = Rows()
    for number, ours, tuned in ((1, 400, 100), (2, 600, 200)):
        for load in ("rf3-8-one", "tiny-8-100ms"):
            found.add(RUN, result(load, "heliograph", number, ours, 2.0))
            found.add(RUN, result(load, "mm2-tuned", number, tuned, 40.0))
        rate: dict[str, Any] = {"records_per_s": 800.0, "wire_mb_per_s": 0.8, "target_cpu_s_per_gb": 1.0}
        found.add(RUN, Ceiling(load="rf3-8-one", round=number, variant="1 connection", **rate))
        found.add(RUN, result("far-target-8-0ms", "heliograph", number, 1000))
        found.add(RUN, result("far-target-8-100ms", "heliograph", number, 900))
        found.add(RUN, result("secured-plaintext", "heliograph", number, 1000, 2.0))
        found.add(RUN, result("secured-tls", "heliograph", number, 500, 3.5))
        found.add(RUN, Ciphers(load="secured-tls", round=number, cpu_s_per_gb=1.0, tls_cpu_s_per_gb=3.0))
        times: dict[str, Any] = {"first_record_s": 5.0 + number, "stop_s": 1.0, "busy_before_percent": 20.0}
        found.add(RUN, Started(load="start", contender="heliograph", round=number, **times))
    found.add(RUN, Held(load="rf3-8-one", records=1000, record_bytes=1100, batch_bytes=1100))
    for who, ms in (("mm2-default", 10.0), ("heliograph", 5.0)):
        found.add(RUN, latency(who, ms))
    return found


def cells(table: tables.Table | None, row: int) -> dict[str, str]:
    assert table is not None
    return dict(zip(table.headings, table.rows[row], strict=True))


def test_summary_has_the_medians_of_ratios_within_rounds(rows: Rows) -> None:
    found = cells(tables.copied(rows, "replicated"), 0)
    assert found["rec/s"] == "500"
    assert found["of ceiling"] == "62%"
    assert found["x MM2 tuned"] == "3.50"
    assert found["CPU x MM2 tuned"] == "0.050"


def test_a_ratio_of_two_runs_is_marked(rows: Rows) -> None:
    for number in (1, 2):
        rows.add(run("b"), result("rf3-8-one", "heliograph", number, 300))
    assert cells(tables.copied(rows, "replicated"), 0)["x MM2 tuned"] == "2.00†"


def test_page_says_what_is_missing_and_links_plots_that_are_drawn(rows: Rows, tmp_path: Path) -> None:
    text = page.text(page.TEMPLATE, rows)
    assert "`python -m bench --all`" in text
    assert "Not measured yet: `tiny-1-100ms`." in text
    assert "2 of the" in text
    drawn = {f"images/benchmarks/{file.name}" for file in plots.draw(rows, tmp_path)}
    linked = {part.partition(")")[0] for part in text.split("](") if part.startswith("images/benchmarks/")}
    assert {link for link in linked if link.endswith(".png")} == drawn
    assert all(file.stat().st_size > 1000 for file in tmp_path.iterdir())


def test_what_another_command_measured_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    page.keep(file, RUN, [Partitions(load=IDLE, partitions=2000, cores=0.05)])
    page.keep(file, run("b", "make scale"), [Partitions(load=IDLE, partitions=10_000, cores=0.2)])
    (kept,) = Rows.read(file).of(Partitions, IDLE)
    assert (kept.run, kept.partitions) == ("b", 10_000)


@pytest.mark.parametrize(("made", "template"), [(page.PAGE, page.TEMPLATE), (page.SCALE_PAGE, page.SCALE_TEMPLATE)])
def test_the_committed_pages_are_made_of_the_committed_results(made: Path, template: Path) -> None:
    assert made.read_text() == page.text(template, Rows.read(page.RESULTS))


def test_percentiles_are_of_records() -> None:
    found = shares([float(number) for number in range(1000, 0, -1)])
    assert found == {"records": 1000, "p50_ms": 501, "p99_ms": 991, "p999_ms": 1000, "most_ms": 1000}
    assert shares([7.0])["p999_ms"] == 7.0


def test_ciphers_cost_cpu() -> None:
    found = measure_ciphers("secured-tls", 1, 50_000_000)
    assert 0.01 < found.cpu_s_per_gb < 100
    assert 0.01 < found.tls_cpu_s_per_gb < 100
