"""What is known of a flow's last verification (``heliograph verify``), and its words, which all places share."""

from __future__ import annotations

from dataclasses import dataclass

from connect.core.wording import age_text, counted, named
from connectors.formats.types import Wired


@dataclass(frozen=True, slots=True)
class VerifiedFacts(Wired):
    """What the last verification found, and what was copied since.

    Args:
        ended_ms: When the last run over all topics ended, in milliseconds since 1970; -1 if only some were verified.
        records: Source records compared since the last full run.
        differences: All that were found in them.
        unread: Partitions that could not be compared.
        new_offsets: Source offsets copied since, in partitions that were compared; -1 if unknown. Heartbeats do not
            count, here and below.
        new_partitions: Partitions with copies of which nothing was compared.
        rest_s: About how long a verification of all this would take; -1 if unknown.
        recreated: Source topics that were recreated since, or whose copies were.
    """

    ended_ms: int
    records: int
    differences: int
    unread: int = 0
    new_offsets: int = -1
    new_partitions: int = 0
    rest_s: float = -1.0
    recreated: tuple[str, ...] = ()


def verified_text(facts: VerifiedFacts, at_ms: int) -> str:
    """Return when the flow was verified, what was found, and how much is new since.

    >>> verified_text(VerifiedFacts(0, 5, 0, new_offsets=2), 7_200_000)
    'Last verified 2 h 0 min ago: equal, 5 records compared. 2 records copied since are not verified.'
    """
    when = "Some topics were verified"
    if facts.ended_ms >= 0:
        when = f"Last verified {age_text(max(at_ms - facts.ended_ms, 0))} ago"
    found = "equal"
    if facts.differences:
        found = differences_text(facts)
    if facts.unread:
        found += f" in what could be compared, {counted(facts.unread, 'partition')} could not"
    return f"{when}: {found}, {counted(facts.records, 'record')} compared.{_recreated(facts)}{_new(facts)}"


def _recreated(facts: VerifiedFacts) -> str:
    if not (topics := facts.recreated):
        return ""
    return f" Recreated since at the source or the target, so not verified: {named(topics)}."


def _new(facts: VerifiedFacts) -> str:
    if facts.new_offsets < 0:
        return ""
    new = [counted(facts.new_offsets, "record")] if facts.new_offsets else []
    new += [counted(facts.new_partitions, "partition")] if facts.new_partitions else []
    if not new:
        return " Nothing was copied since."
    is_one = facts.new_offsets + facts.new_partitions == 1
    return f" {' and '.join(new)} copied since {'is' if is_one else 'are'} not verified."


def differences_text(facts: VerifiedFacts) -> str:
    return counted(facts.differences, "difference")


def rest_text(facts: VerifiedFacts | None) -> str:
    """Return how long a verification of the rest would take, ``about 12.0 s`` or ``an unknown time``."""
    return "an unknown time" if facts is None or facts.rest_s < 0 else f"about {age_text(round(facts.rest_s * 1000))}"
