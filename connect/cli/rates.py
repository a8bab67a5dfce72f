"""Rates and lag of flows from their counters, and the log line of a flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from connect.core.model import State
from connect.core.wording import age_text, bytes_text, counted
from connectors.flow_facts import FlowFacts, FlowProgress, LagFacts, Tally
from connectors.flow_verdict import FlowVerdict, FlowWord, Urgency, judge
from connectors.formats.types import FlowName

#: State of a flow whose connector found nothing to copy.
NO_TOPICS: Final = "without topics"
#: State of a flow whose worker has ended by itself.
ENDED: Final = "ended"
#: What the log calls the kinds of batches.
_BATCH_KINDS: Final = {"shallow": "unchanged", "merged": "merged", "rebuilt": "rebuilt", "dropped": "dropped"}
_NOTHING: Final = Tally()


@dataclass(frozen=True, slots=True)
class FlowRates:
    """The progress of one flow, and its rates."""

    progress: FlowProgress
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def flow(self) -> FlowName:
        return self.progress.flow


class RateMeter:
    """Rates over the last ``window_s`` seconds of a monotonic clock."""

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, dict[FlowName, Tally]]] = deque()

    def observe(self, now_s: float, flows: Iterable[FlowProgress]) -> list[FlowRates]:
        """Take the current counters and return the rates."""
        each = list(flows)
        self._samples.append((now_s, {one.flow: one.tally for one in each}))
        # One sample at or before the window's start stays, so that rates cover the whole window.
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()
        then_s, before = self._samples[0]
        seconds = now_s - then_s or float("inf")
        rates = []
        for one in each:
            was = before.get(one.flow, _NOTHING)
            records, size = one.tally.records - was.records, one.tally.bytes - was.bytes
            rates.append(FlowRates(one, max(0, records) / seconds, max(0, size) / seconds))
        return rates


def verdict_of(one: FlowProgress) -> FlowVerdict:
    """Return the verdict on what this process copies of a flow."""
    source, lag, tally = one.contact.source, LagFacts(), one.tally
    if one.state == NO_TOPICS and one.contact.knows_lag:
        lag = LagFacts(records=0, ms=0)
    elif tally.partitions and one.contact.knows_lag and one.state != FlowWord.STARTING:  # no slice has reported yet
        lag = LagFacts(partitions=tally.partitions, records=tally.lag_records, ms=tally.lag_ms, known_ms=one.at_ms)
    rest = "/".join(("URL", *one.flow))
    facts = FlowFacts(
        one.flow,
        one.at_ms,
        connector_state=one.state if one.state in (State.STOPPED, State.PAUSED) else "",
        has_worker=False if one.state == ENDED else None,
        contact=one.contact,
        lag=lag if one.contact.knows_lag else replace(lag, known_ms=source.answered_ms),
        skipped=tally.skipped,
        rest=rest,
    )
    return judge(facts.with_partitions(tally.not_copied))


def is_idle(verdict: FlowVerdict) -> bool:
    """Whether a flow copies nothing because of its connector or its worker."""
    return verdict.state in (FlowWord.ENDED, FlowWord.STOPPED, FlowWord.PAUSED, FlowWord.IDLE)


def flow_line(rates: FlowRates) -> str:
    """Format a flow's log line, with the ages of the last fetch and the last produce where they are known; what is
    wrong follows in the words of its verdict. Like ``us->eu running: 5 topics, 20 partitions, 1,200 records/s, 1.2
    MB/s, 35 records and 12 ms behind``."""
    progress, tally = rates.progress, rates.progress.tally
    verdict, moved = verdict_of(progress), moved_texts(progress.contact.to_json(progress.at_ms))
    sentences = " ".join((verdict.sentence, *verdict.also))
    if is_idle(verdict):
        ages = f" ({', '.join(moved)})" if moved else ""
        return f"{sentences} {verdict.actions[0]}{ages}"
    is_well = verdict.urgency in (Urgency.OK, Urgency.UNKNOWN)
    lag = verdict.lag
    if verdict.failover.records >= 0:
        lag = f"{tally.lag_records:,} records and {tally.lag_ms:,} ms behind"
    parts = (
        f"{rates.flow} {progress.state if is_well else verdict.state}: {counted(len(tally.topics), 'topic')}",
        counted(tally.partitions, "partition"),
        f"{rates.records_per_s:,.0f} records/s",
        f"{bytes_text(rates.bytes_per_s)}/s",
        lag,
        f"batches {' '.join(f'{word} {tally.batches.get(kind, 0):,}' for kind, word in _BATCH_KINDS.items())}",
        f"Spark job {progress.spark_epoch}",
        *moved,
    )
    return f"{', '.join(parts)}{'' if is_well else f'. {sentences}'}"


def moved_texts(contact: Mapping[str, Any]) -> list[str]:
    """Format the known ages, like ``last fetch 1.2 s ago``; ``contact`` in its JSON form."""
    ages = {what: contact[f"last_{what}_age_ms"] for what in ("fetch", "produce")}
    return [f"last {what} {age_text(age)} ago" for what, age in ages.items() if age is not None]
