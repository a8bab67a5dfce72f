"""Tests of the output of ``heliograph takeover``."""

from __future__ import annotations

import pytest

from connect.cli import tables
from connect.cli.commands import takeover
from connectors.inspection.takeover_check import Met, PartitionStart, TakeoverCheck


def test_a_start_is_no_step_while_a_cluster_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    takeover._show(TakeoverCheck("us->eu", unknown=("no broker answers",)), everything=False)
    assert capsys.readouterr().out.splitlines() == [
        "us->eu: not everything could be checked",
        "  not checked: no broker answers",
        "  1. run this check again when everything can be checked",
    ]


def test_a_short_name_is_not_broken_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_PIPE_COLUMNS", 80)
    parts = [PartitionStart("heartbeats", 0, "us.heartbeats", end, "stored-offset", 0, end, end) for end in (93, 1000)]
    takeover._show(TakeoverCheck("us->eu", tuple(parts)), everything=False)
    said = capsys.readouterr().out
    assert said.count("heartbeats-0 ") == 2
    assert all(len(line) <= 80 for line in said.splitlines())


def test_json_has_the_keys_of_what_a_run_would_find() -> None:
    met = Met("source-recreated", "the source topic was recreated; a run stops there", stops=True)
    part = PartitionStart("orders", 0, "us.orders", 5, "position", 0, 9, met=(met,))

    [shown] = takeover._as_json(TakeoverCheck("us->eu", (part,)))["partitions"]

    assert list(shown["met"]) == [{"state": met.state, "reported": met.reported, "stops": True, "goes_on_at": -1}]
    assert (shown["stops"], shown["lag"], shown["lost"], shown["beyond"]) == (True, 4, 0, 0)
