"""Takes a snapshot of all flows of a process for the dashboard: a slow flow shows what was last known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from connect.core.herder_api import HerderApi, NotFound
from connect.core.model import State
from connect.kafka.concurrency import gather_limited
from rest.ui.answers import KeptAnswers
from rest.ui.flows import SOURCE, Herders, UiFlow, flows_of
from rest.ui.workers import FlowWorkers, problems, rates_together

OVERVIEW: Final = "overview"
#: How long a snapshot waits for a flow.
_WITHIN_S: Final = 5.0
#: With more flows, their cards do not have the rates of other workers: that would be too many requests.
_MOST_SUMMED: Final = 20
#: Failed tasks whose errors a snapshot contains.
_MOST_ERRORS: Final = 3


class Snapshots:
    """Takes snapshots of a process's flows."""

    def __init__(self, answers: KeptAnswers, workers: FlowWorkers) -> None:
        self._answers = answers
        self._workers = workers

    async def take(self, herders: Herders) -> dict[str, Any]:
        """Return all flows by name: each its overview report and the states of its connectors."""
        flows = await flows_of(herders)
        are_summed = len(flows) <= _MOST_SUMMED
        shown = await gather_limited(lambda flow: self._shown(flow, is_summed=are_summed), flows.values())
        starting = [
            stage for herder in herders.values() if not herder.is_ready() and (stage := herder.stage() or "...")
        ]
        return {"flows": dict(zip(flows, shown, strict=True)), "starting": starting}

    async def _shown(self, flow: UiFlow, *, is_summed: bool) -> dict[str, Any]:
        """Return a flow of the snapshot; ``error`` says why its overview is old, or that there is none. Other flows are
        shown all the same."""
        name = flow.connectors[SOURCE]
        answer = await self._answers.get(
            (OVERVIEW, flow.prefix, name), lambda: flow.herder.connector_report(name, OVERVIEW, {}), within_s=_WITHIN_S
        )
        overview, error = answer.data, answer.problem
        if answer.late_s is not None:
            error = f"{flow.name} has given no overview for {answer.late_s:.0f} s."
        if overview is not None and error is not None:
            error = f"{error} What you see is {answer.age_s:.0f} s old."
        if overview is not None and is_summed:
            overview = await self._summed(flow, overview)
        states = {part: _state(flow.herder, name) for part, name in flow.connectors.items()}
        return {**flow.to_json(), "states": states, OVERVIEW: overview, "error": error}

    async def _summed(self, flow: UiFlow, overview: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an overview with the rates of all workers of the flow; those of stored positions if one is silent."""
        rates = overview.get("rates")
        if not rates or rates["is_whole"]:
            return overview
        reports = await self._workers.reports(flow)
        silent = problems(reports)
        found = {} if silent or not reports else {**rates_together(reports), "is_whole": True}
        return {**overview, "rates": {**rates, **found, "silent": silent}}


def _state(herder: HerderApi, name: str) -> dict[str, Any] | None:
    """Return the state of a connector, how many of its tasks are in which, and why some failed; None before it has a
    state."""
    try:
        info = herder.connector_status(name)
    except NotFound:
        return None
    parts = [("connector", info.connector), *((f"task {number}", status) for number, status in info.tasks.items())]
    failed = [(of, status) for of, status in parts if status.state == State.FAILED]
    return {
        "state": str(info.connector.state),
        "tasks": Counter(str(status.state) for status in info.tasks.values()),
        "errors": [{"of": of, "reason": first_line(status.trace)} for of, status in failed[:_MOST_ERRORS]],
    }


def first_line(trace: str | None) -> str:
    return (trace or "").strip().partition("\n")[0]
