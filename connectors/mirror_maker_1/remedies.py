"""What to do about a partition that stopped, in words of this command: a connector's are its settings and its REST API.
Pure."""

from __future__ import annotations

from typing import Final

from connectors.dataplane import refusals
from connectors.dataplane.plan import QUARANTINED, TopicPartition
from connectors.dataplane.verdicts import facts
from connectors.gaps import GapKind

_WORDS: Final = {
    refusals.SKIP: "or set --abort.on.send.failure false to leave out what is refused",
    refusals.LEAVE_OUT: "leave it out with --include or --exclude",
    refusals.AGAIN: "then start kafka-mirror-maker again",
}
_LEAVES_OUT: Final = "with --abort.on.send.failure false such records are left out, named and counted"
#: States of a partition that is copied to that of its number, and goes on only where somebody says.
_BY_RESET: Final = frozenset({GapKind.TARGET_TRUNCATED.label, GapKind.SOURCE_TRUNCATED.label})
_THE_SAME: Final = " (the same again, if the target is as it should be)"


def told(state: str, source: TopicPartition, reason: str, group_id: str) -> str:
    """The ``reason`` of a partition that is copied to that of its number, with what to do; one that was told stays as
    it is."""
    what = _worded(facts(reason))
    remedy = _until_reset(source, group_id)
    if state in _BY_RESET and remedy not in what:
        return f"{what}; {remedy}{_THE_SAME}"
    return what


def told_at_end(state: str, source: TopicPartition, reason: str, group_id: str) -> str:
    """As :func:`told`, where the process ends of it."""
    what = told(state, source, reason, group_id)
    # What the target refuses has its advice; the others are records that a message handler fails on.
    has_advice = any(words in what for words in _WORDS.values())
    return f"{what}; {_LEAVES_OUT}" if state == QUARANTINED and not has_advice else what


def _worded(reason: str) -> str:
    """What a target refuses, with this command's options."""
    for theirs, ours in _WORDS.items():
        reason = reason.replace(theirs, ours)
    return reason


def _until_reset(source: TopicPartition, group_id: str) -> str:
    return (
        f"nothing more of {source} is copied until group {group_id} is without members and its offset of {source} was "
        "set with kafka-consumer-groups --reset-offsets to where the copy is to go on"
    )
