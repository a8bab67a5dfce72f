"""The output of ``heliograph plan`` and ``heliograph takeover``."""

from __future__ import annotations

import pytest
from rich.console import Console

from connect.cli import tables
from connect.cli.commands.plan_and_takeover import show_drifts, show_plans, show_takeover, takeover_as_json
from connectors.inspection.flow_plan import Drift, DriftKind, FlowDrift, FlowPlan, Planned
from connectors.inspection.takeover_check import Met, PartitionStart, TakeoverCheck
from connectors.topic_sync.cluster_changes import CreateTopic


def test_80_columns_break_no_name_and_no_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=80, highlight=False))
    compacted = {"cleanup.policy": "compact", "max.compaction.lag.ms": "3600000"}
    internal = CreateTopic("mm2-offset-map.us.internal", "", 25, -1, compacted)
    mirrored = CreateTopic("us.orders", "orders", 3, -1, {"retention.ms": "604800000"})
    show_plans([FlowPlan("us->eu", (Planned("eu", internal), Planned("eu", mirrored)))], everything=False)
    printed = capsys.readouterr().out
    for whole in ("mm2-offset-map.us.internal", "retention.ms=604800000"):
        assert whole in printed
    assert "compaction.lag" not in printed
    assert "compacted internal topic" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


def test_80_columns_break_no_long_name_and_no_long_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=80, highlight=False))
    configs = {"message.timestamp.type": "LogAppendTime"}
    mirrored = CreateTopic("us.orders-of-the-whole-world", "orders-of-the-whole-world", 3, -1, configs)
    show_plans([FlowPlan("us->eu", (Planned("eu", mirrored),))], everything=False)
    printed = capsys.readouterr().out
    assert {"us.orders-of-the-whole-world", "message.timestamp.type=LogAppendTime"} <= set(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    left = Drift(DriftKind.CONFIG, "eu", "us.orders-of-the-whole-world", "compact,delete", "delete", "cleanup.policy")
    show_drifts([FlowDrift(FlowPlan("us->eu"), (left,))], everything=False)
    printed = capsys.readouterr().out
    assert {"us.orders-of-the-whole-world", "compact,delete"} <= set(printed.split())


def test_what_a_flow_that_mirrors_nothing_creates_topics_for(capsys: pytest.CaptureFixture[str]) -> None:
    heartbeats = CreateTopic("heartbeats", "", 1, -1, {})
    notes = ("this flow mirrors nothing and only writes heartbeats",)
    show_plans([FlowPlan("eu->us", (Planned("us", heartbeats),), notes=notes)], everything=False)
    printed = capsys.readouterr().out
    assert printed.startswith("eu->us mirrors nothing and only writes heartbeats: 1 topic to create")
    assert printed.count("mirrors nothing") == 1


def test_a_start_is_no_step_while_a_cluster_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    show_takeover(TakeoverCheck("us->eu", unknown=("no broker answers",)), everything=False)
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
    show_takeover(TakeoverCheck("us->eu", tuple(parts)), everything=False)
    said = capsys.readouterr().out
    assert said.count("heartbeats-0 ") == 2
    assert all(len(line) <= 80 for line in said.splitlines())


def test_json_has_the_keys_of_what_a_run_would_find() -> None:
    met = Met("source-recreated", "the source topic was recreated; a run stops there", stops=True)
    part = PartitionStart("orders", 0, "us.orders", 5, "position", 0, 9, met=(met,))

    [shown] = takeover_as_json(TakeoverCheck("us->eu", (part,)))["partitions"]

    assert list(shown["met"]) == [{"state": met.state, "reported": met.reported, "stops": True, "goes_on_at": -1}]
    assert (shown["stops"], shown["lag"], shown["lost"], shown["beyond"]) == (True, 4, 0, 0)
