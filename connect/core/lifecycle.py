"""The life of a connector's instance as a table (Kafka's ``WorkerConnector``): what to call, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from connect.core.model import State, TargetState


class Phase(StrEnum):
    """Where an instance stands. INIT: made, and told nothing yet."""

    INIT = "INIT"
    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Step:
    """What a change of target asks of an instance.

    ``call`` is made first, where there is one (``stop`` only on what was started). Then the instance is ``phase`` and
    shows ``state``; where the call raised, it is ``phase_on_error`` and shows FAILED, unless that is STOPPED, which
    counts even then.
    """

    call: Literal["start", "stop"] | None
    phase: Phase
    state: State
    phase_on_error: Phase = Phase.FAILED


_RUN: Final = Step("start", Phase.STARTED, State.RUNNING)
_WAIT: Final = Step(None, Phase.PAUSED, State.PAUSED)
_REST: Final = Step("stop", Phase.STOPPED, State.STOPPED, Phase.STOPPED)

#: A pair that is missing asks for nothing: the instance is there already, or has failed and is not stopped.
_STEPS: Final = {
    (Phase.INIT, TargetState.STARTED): _RUN,
    (Phase.INIT, TargetState.PAUSED): _WAIT,
    (Phase.INIT, TargetState.STOPPED): _REST,
    (Phase.STARTED, TargetState.PAUSED): Step("stop", Phase.PAUSED, State.PAUSED),
    (Phase.STARTED, TargetState.STOPPED): _REST,
    (Phase.PAUSED, TargetState.STARTED): _RUN,
    (Phase.PAUSED, TargetState.STOPPED): _REST,
    (Phase.STOPPED, TargetState.STARTED): _RUN,
    (Phase.STOPPED, TargetState.PAUSED): _WAIT,
    # Only this, or a restart, leads out of FAILED.
    (Phase.FAILED, TargetState.STOPPED): _REST,
}


def step_to(phase: Phase, target: TargetState) -> Step | None:
    """What an instance in ``phase`` has to do for ``target``; None: nothing."""
    return _STEPS.get((phase, target))
