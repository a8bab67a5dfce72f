"""Reports are kept for a few seconds, and the config of the reverse flow is that of the flow, turned."""

from __future__ import annotations

from typing import Any

import pytest

from connect.core.errors import ConfigError
from connectors.reports import flow_reports
from connectors.reports.flow_reports import FlowReports
from connectors.reports.flow_site import turned

PROPS = {"name": "checkpoints"}


def test_an_answer_is_given_again_for_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    reads: list[Any] = []

    def work(_: Any, kind: str, props: Any, asked: Any, top: int) -> Any:
        async def read() -> dict[str, Any]:
            reads.append((kind, asked["group"], top))
            return {"read": len(reads)}

        return read

    monkeypatch.setattr(FlowReports, "_work", work)
    monkeypatch.setattr("connectors.reports.flow_reports.time.monotonic", lambda: now_s)
    reports = FlowReports({})
    assert [reports.report("groups", PROPS, {}) for _ in range(3)] == [{"read": 1}] * 3
    assert reports.report("groups", PROPS, {"group": "mail", "top": "5000"}) == {"read": 2}
    now_s += flow_reports._FRESH_S
    assert reports.report("groups", PROPS, {}) == {"read": 3}
    assert reads == [("groups", "", 20), ("groups", "mail", 1000), ("groups", "", 20)]
    for number in range(100):
        reports.report("move", PROPS, {"group": str(number)})
    assert len(reports._answers) == flow_reports._KEPT


def test_what_is_wrong_or_of_another_connector_reads_nothing() -> None:
    assert FlowReports({}).report("lag", PROPS, {}) is None
    with pytest.raises(ConfigError, match="top is 'all'"):
        FlowReports({}).report("groups", PROPS, {"top": "all"})


def test_the_config_of_the_reverse_flow() -> None:
    config = {"source.cluster.alias": "us", "target.cluster.alias": "eu", "target.admin.x": "1", "topics": "source"}
    assert turned(config) == {
        "target.cluster.alias": "us",
        "source.cluster.alias": "eu",
        "source.admin.x": "1",
        "topics": "source",
    }
