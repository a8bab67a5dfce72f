"""Say whether a failover to a flow's target could start now, and what would be lost if its source were lost now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connect.core.model import State
from connect.core.wording import age_text, counted, named
from connectors.flow_facts import FlowFacts
from connectors.flow_progress import UNKNOWN
from connectors.formats.types import Wired

#: Partitions and tasks that a sentence names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class FailoverReadiness(Wired):
    """Whether a failover to the target could start now (None: not known), and how many records of how many partitions
    would be lost if the source were lost now (-1 unknown)."""

    can_start: bool | None
    records: int
    partitions: int
    sentence: str


def readiness(facts: FlowFacts) -> FailoverReadiness:
    lag, (source, target) = facts.lag, facts.flow
    waiting = lag.waiting if lag.records >= 0 else UNKNOWN
    if facts.contact.target.answers is False:
        why = f"No failover could start now: the target {target} does not answer, so its groups cannot be changed."
        return FailoverReadiness(can_start=False, records=lag.records, partitions=waiting, sentence=why)
    if lag.records >= 0 and not lag.partitions:
        why = "No failover could start now: the flow copies no topic."
        return FailoverReadiness(can_start=False, records=0, partitions=0, sentence=why)
    if facts.stopped_by:
        why = f"No failover has to start: the last {facts.stopped_by} was to {target}."
        return FailoverReadiness(can_start=False, records=lag.records, partitions=waiting, sentence=why)
    groups = ""
    if facts.checkpoint_ms >= 0:
        groups = f" Groups would continue at their last checkpoint, written {ago(facts.checkpoint_ms, facts)}."
    if facts.contact.source.answers is False:
        lost = f"What {source} has and {target} has not is unknown, and would be lost."
        if lag.known_ms >= 0:
            age = age_text(max(facts.at_ms - lag.known_ms, 0))
            lost = f"What {source} got in the last {age} would be lost, and so would what waited before."
        text = f"A failover could start now with --source-gone {source}. {lost}{groups}"
        return FailoverReadiness(can_start=True, records=UNKNOWN, partitions=UNKNOWN, sentence=text)
    if lag.records < 0:
        text = "Whether a failover could start now is unknown, because the lag is unknown."
        return FailoverReadiness(can_start=None, records=UNKNOWN, partitions=UNKNOWN, sentence=text)
    blocked = ""
    if facts.stopped:
        which = ", ".join(str(one.source) for one in facts.stopped[:_NAMED])
        which += f" and {facts.stopped_count - _NAMED} more" if facts.stopped_count > _NAMED else ""
        why = "it is not copied to its end" if facts.stopped_count == 1 else "they are not copied to their ends"
        blocked = f" Groups that read {which} could not move, because {why}."
    if lag.not_checked:
        blocked += f" What waits in {counted(lag.not_checked, 'partition')} that could not be checked is not counted."
    if not lag.records:
        none = "no record would be lost" if not lag.not_checked else "no record that was counted would be lost"
        text = f"A failover could start now, and {none}.{blocked}"
        return FailoverReadiness(can_start=True, records=0, partitions=waiting, sentence=text)
    lost = f"{counted(lag.records, 'record')} of {counted(waiting, 'partition')} not copied yet would be lost"
    why_not = _why_not_copied(facts)
    if why_not:
        text = f"No failover could finish now, because {why_not}, and what waits would not be copied."
    else:
        # Only over REST does a failover start a flow that is stopped.
        if_rest = " with --rest" if facts.connector_state == State.STOPPED else ""
        first = "first what waits in other partitions" if facts.stopped else "what waits first"
        text = f"A failover could start now{if_rest}, and copies {first}."
    text += f" If {source} were lost now, {lost}.{groups}{blocked}"
    return FailoverReadiness(can_start=not why_not, records=lag.records, partitions=waiting, sentence=text)


def copies(facts: FlowFacts) -> bool:
    """Return whether a task of the flow runs."""
    return any(one.state == State.RUNNING for one in facts.tasks)


def _why_not_copied(facts: FlowFacts) -> str:
    """Return why what waits is not copied until an operator acts, so that a failover would wait for it in vain."""
    if facts.has_worker is False:
        return "no worker runs the flow"
    if facts.connector_state == State.PAUSED:
        return f"connector {facts.connector} is PAUSED"
    if facts.connector_state == State.FAILED and not copies(facts):
        return f"connector {facts.connector} has failed"
    failed = [one.task for one in facts.tasks if one.state == State.FAILED]
    return f"{'task' if len(failed) == 1 else 'tasks'} {named(failed, _NAMED)} failed" if failed else ""


def ago(at_ms: int, facts: FlowFacts) -> str:
    """Return how long ago something was: ``5.0 s ago``."""
    return f"{age_text(max(facts.at_ms - at_ms, 0))} ago"
