"""What ``heliograph status`` says of a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from connect.cli.commands.rest_client import RestClient
from connect.cli.commands.status import FlowStatus, failures_of, judged, show_statuses
from connectors.formats.types import FlowName
from connectors.heartbeat import Age, FlowHealth, FlowState

FILE = Path("mm2.properties")
LAG: dict[str, Any] = {
    "records": 0, "ms": 0, "lost": 0, "problem": None, "unknown": {},
    "furthest": [{"topic": "orders", "partition": 3, "records": 12}],
}  # fmt: skip


def health(state: FlowState) -> FlowHealth:
    return FlowHealth("us", "eu", state, Age(0.4, at_least=False), in_file=True)


@pytest.mark.parametrize(
    ("state", "lag", "said", "action"),
    [
        (FlowState.ALIVE, {}, "running", ""),
        (FlowState.ALIVE, {"records": 12, "ms": 59_999}, "running", ""),
        (FlowState.ALIVE, {"records": 12, "ms": 60_000}, "behind", "12 records wait in orders-3. If this grows"),
        (FlowState.STOPPED, {"ms": 70_000}, "stopped", "Start one: heliograph mirror mm2.properties"),
        (FlowState.NONE, {}, "never started", "Start one: heliograph mirror mm2.properties"),
        (FlowState.OFF, {}, "heartbeats are off", ""),
        (FlowState.ALIVE, {"problem": "it is PAUSED; resume it"}, "copies nothing", "it is PAUSED; resume it"),
        (FlowState.ALIVE, {"lost": 3}, "running", "the source deleted 3 offsets"),
    ],
)
def test_each_state_has_its_action(state: FlowState, lag: dict[str, Any], said: str, action: str) -> None:
    found = judged(health(state), {**LAG, **lag}, [], FILE)
    assert (found.flow, found.state, found.last_heartbeat) == ("us->eu", said, "0.4 s ago")
    assert bool(found.actions) == bool(action)
    assert action in "".join(found.actions)


def test_what_could_not_be_read_is_said_once() -> None:
    found = judged(health(FlowState.UNKNOWN), {**LAG, "unknown": {"a-0": "no answer", "a-1": "no answer"}}, [], FILE)
    assert found.unknown == ("no answer",)


class Worker:
    """Answers like a worker with a failed task and a stopped partition of us->eu, and a connector of another flow."""

    shown_url = "http://localhost:8083/us/eu"
    path = staticmethod(RestClient.path)

    def ask(self, _method: str, path: str) -> Any:
        assert path == "/connectors/source/partitions"
        stopped = {"topic": "orders", "partition": 2, "state": "source-gap", "reason": "7 lost", "advice": "skip it"}
        return {"partitions": [stopped, {"topic": "orders", "partition": 0, "state": "running"}]}

    def connectors(self, _: str) -> dict[str, Any]:
        failed = {"id": 1, "state": "FAILED", "trace": "Traceback x\nOSError: disk full"}
        return {
            "source": self._one("us", "eu", "a.b.MirrorSourceConnector", [{"id": 0, "state": "RUNNING"}, failed]),
            "other": self._one("ap", "eu", "MirrorSourceConnector", [failed]),
        }

    def _one(self, source: str, target: str, kind: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        config = {"connector.class": kind, "source.cluster.alias": source, "target.cluster.alias": target}
        return {"info": {"config": config}, "status": {"connector": {"state": "RUNNING"}, "tasks": tasks}}


def test_failed_tasks_and_stopped_partitions_of_the_flow_are_named_with_their_remedies() -> None:
    restart = f"heliograph connectors restart source --tasks --failed --rest {Worker.shown_url}"
    assert list(failures_of(cast("RestClient", Worker()), FlowName("us", "eu"))) == [
        f"source, task 1 failed: OSError: disk full. When the cause is gone: {restart}",
        "orders-2 is source-gap: 7 lost; skip it",
    ]


def test_the_table_and_the_actions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_statuses([FlowStatus("us->eu", "behind", 12, 61_000, "0.4 s ago", ("too slow",), ("no answer",))])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "us->eu behind 12 records, 1 min 1 s 0.4 s ago" in lines
    assert lines[-2:] == ["us->eu: too slow", "us->eu: not checked: no answer"]
