"""What ``docs/operations.md`` shows that no cluster of a test prints: made of the values that it tells of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from connect.cli.check.check_file import show_report
from connect.cli.check.findings import CheckFinding, CheckOutcome, CheckReport, Level, SeenCluster
from connect.cli.commands import failover_view
from connect.cli.commands.plan import drift_as_json, plan_as_json
from connectors.failover.plan import GroupOutcome, Plan
from connectors.failover.snapshot import How
from connectors.inspection.flow_plan import Drift, DriftKind, FlowDrift, FlowPlan, Planned
from connectors.topic_sync.cluster_changes import AlterConfig, CreateTopic

_PAGE: Final = (Path(__file__).parents[4] / "docs" / "operations.md").read_text("utf-8")
_JSON: Final = re.compile(r"^    (\{\"format\": 1,.*\n(?:     .*\n)*)", re.MULTILINE)


def _documented() -> Iterator[dict[str, Any]]:
    return (json.loads(text) for text in _JSON.findall(_PAGE))


def _plan() -> dict[str, Any]:
    changes = (
        CreateTopic("us.orders", "orders", 3, 2, {"retention.ms": "1000"}),
        AlterConfig("us.items", "retention.ms", "1", "1000"),
    )
    return plan_as_json([FlowPlan("us->eu", tuple(Planned("eu", change) for change in changes))])


def _drift() -> dict[str, Any]:
    return drift_as_json(
        [FlowDrift(FlowPlan("us->eu"), (Drift(DriftKind.EXTRA_PARTITIONS, "eu", "us.orders", "3", "6"),))]
    )


def _failover() -> dict[str, Any]:
    lag = SimpleNamespace(to_json=lambda _: {"partitions": 1, "records": 0})
    move = SimpleNamespace(
        group="orders-mail", source=("orders", 0), source_offset=16, target=("us.orders", 0), before=None, after=16,
        how=How.EXACT, is_done=False,
    )  # fmt: skip
    group = SimpleNamespace(group="orders-mail", notes=())
    snapshot = SimpleNamespace(
        source="us", target="eu", notes=(), is_gone=False, source_error="", copied_until_ms=-1, last_known=None,
        lag=lag, groups=SimpleNamespace(not_mirrored=()), verified=None, verified_error="",
    )  # fmt: skip
    plan = SimpleNamespace(
        snapshot=snapshot, blocked=(), can_go=True, obstacles=(), groups=[group], ready=[group], moves=[move],
        of=lambda outcome: [] if outcome is GroupOutcome.IN_PLACE else None,
    )  # fmt: skip
    return failover_view.as_json(cast(Plan, plan), None)


def test_json_is_as_the_page_shows_it() -> None:
    assert list(_documented()) == [_plan(), _drift(), _failover()]


def test_a_check_is_as_the_page_shows_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    mirrors = (
        "mirrors topics orders, payments.*, orders as us.orders, in at most 4 task(s)",
        "writes offset syncs to mm2-offset-syncs.eu.internal on us",
        "translates the offsets of groups .*, and does not sync group offsets",
        "writes a heartbeat every 1 s to eu",
        "selects 3 of the 14 topics it can see now: orders, payments.de, payments.fr",
    )
    factor = "us->eu, cluster eu: replication factor 3 is too high for 1 broker: cannot create us.checkpoints.internal"
    unknown = "us->eu.use.defaults.fom is not known and has no effect; is use.defaults.from meant?"
    show_report(
        CheckReport(
            "mm2.properties",
            "mirror",
            "connect-mirror-maker",
            (
                CheckOutcome("us->eu", mirrors),
                CheckOutcome("eu->us", ("mirrors nothing; writes a heartbeat every 1 s to us",)),
            ),
            (
                SeenCluster("us", "us-kafka:9092", 3, "4.3", "gBu7uKB6RB2sbnuxKp64bA"),
                SeenCluster("eu", "eu-kafka:9092", 1, "4.3", "tcptFHLVQ16lxGNYeTt65g"),
            ),
            (CheckFinding(Level.ERROR, factor, line=4), CheckFinding(Level.WARNING, unknown, line=7)),
        )
    )
    printed = "".join(
        f"    {line.rstrip()}\n" if line.strip() else "\n" for line in capsys.readouterr().out.splitlines()
    )
    assert f"    $ heliograph check mm2.properties\n{printed}" in _PAGE, printed
