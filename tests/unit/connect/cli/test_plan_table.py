"""The table of ``heliograph plan`` on a narrow terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from connect.cli import tables
from connect.cli.commands.plan import show_drifts, show_plans
from connectors.inspection.flow_plan import Drift, DriftKind, FlowDrift, FlowPlan, Planned
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
