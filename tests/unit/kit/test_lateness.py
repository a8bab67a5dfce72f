"""How late workers were, over several looks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.kit import lateness
from tests.kit.lateness import Lateness

FIRST, SECOND = "the worker's loop was 251 ms late", "the worker's loop was 460 ms late in a place"
BEAT, STALL = "heliograph_lease_longest_beat_seconds", "heliograph_loop_longest_stall_seconds"


@pytest.mark.parametrize(
    ("reported", "text"),
    [
        ({}, "no worker told how late it was (0 did not answer)"),
        ({"a": (math.nan, math.nan)}, "no worker told how late it was (0 did not answer)"),
        ({"a": None}, "no worker told how late it was (1 did not answer)"),
        (
            {"a": (0.3, 0.25), "b": (1.0, 0.04), "c": None},
            "longest beat 1.00 s (goal 1 s), longest stall 250 ms (goal 250 ms), 2 looks, 1 unanswered",
        ),
        ({"a": (1.01, 0.1)}, "longest beat 1.01 s (goal 1 s), longest stall 100 ms (goal 250 ms), 1 looks: late"),
        (
            {"a": (0.3, 0.251)},
            "longest beat 0.30 s (goal 1 s), longest stall 251 ms (goal 250 ms), 1 looks: late " + f"({FIRST})",
        ),
        (
            {"a": (0.3, 0.31), "named": (0.3, 0.46)},
            "longest beat 0.30 s (goal 1 s), longest stall 460 ms (goal 250 ms), 2 looks: late " + f"({SECOND})",
        ),
    ],
)
def test_the_largest_of_all_looks_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reported: dict[str, tuple[float, float] | None], text: str
) -> None:
    log = tmp_path / "log"
    log.write_text(f"it starts\n12:00 INFO {FIRST}\n")
    named = tmp_path / "named"
    named.write_text(f"12:00 INFO {SECOND}\nit ends\n")

    def process_metric(url: str, name: str) -> float:
        values = reported[url]
        if values is None:
            raise ConnectionRefusedError
        return values[{BEAT: 0, STALL: 1}[name]]

    monkeypatch.setattr(lateness, "process_metric", process_metric)
    found = Lateness()
    for url in reported:
        of_one = Lateness()
        of_one.look(url, named if url == "named" else log)
        found.add(of_one)
    assert str(found) == text
