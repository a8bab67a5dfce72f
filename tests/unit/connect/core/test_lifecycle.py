"""The table of a connector's life."""

from __future__ import annotations

import pytest

from connect.core.model import Phase, State, TargetState, step_to


@pytest.mark.parametrize(
    ("phase", "target", "call", "after", "shown"),
    [
        (Phase.INIT, TargetState.STARTED, "start", Phase.STARTED, State.RUNNING),
        (Phase.INIT, TargetState.PAUSED, None, Phase.PAUSED, State.PAUSED),
        (Phase.STARTED, TargetState.PAUSED, "stop", Phase.PAUSED, State.PAUSED),
        (Phase.PAUSED, TargetState.STARTED, "start", Phase.STARTED, State.RUNNING),
        (Phase.STOPPED, TargetState.STARTED, "start", Phase.STARTED, State.RUNNING),
        (Phase.STOPPED, TargetState.PAUSED, None, Phase.PAUSED, State.PAUSED),
    ],
)
def test_a_step(phase: Phase, target: TargetState, call: str | None, after: Phase, shown: State) -> None:
    step = step_to(phase, target)
    assert step is not None
    assert (step.call, step.phase, step.state, step.phase_on_error) == (call, after, shown, Phase.FAILED)


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.STARTED, Phase.PAUSED, Phase.FAILED])
def test_stopped_is_reached_from_everywhere_and_counts_even_where_the_stop_raises(phase: Phase) -> None:
    step = step_to(phase, TargetState.STOPPED)
    assert step is not None
    assert (step.call, step.phase, step.phase_on_error) == ("stop", Phase.STOPPED, Phase.STOPPED)


@pytest.mark.parametrize("target", [TargetState.STARTED, TargetState.PAUSED])
def test_only_stopped_leads_out_of_failed(target: TargetState) -> None:
    assert step_to(Phase.FAILED, target) is None


@pytest.mark.parametrize("phase", [Phase.STARTED, Phase.PAUSED, Phase.STOPPED])
def test_nothing_is_done_where_it_is_so_already(phase: Phase) -> None:
    assert step_to(phase, TargetState(phase)) is None
