"""A failover's plan and rehearsal in words and as JSON, the same for ``heliograph failover`` and for the dashboard."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final, NamedTuple

from connect.core.wording import counted, in_utc, named
from connectors.failover.execute import FailoverResult, Rehearsal
from connectors.failover.journal import FailoverRun
from connectors.failover.plan import GroupOutcome, Plan
from connectors.failover.snapshot import DIFFERS, NOT_COMPARED, SAME, GroupMove, SampleCheck, Snapshot
from connectors.flow_facts import rest_text, verified_text
from connectors.flow_progress import together

#: A value of --group that is a group's name: letters, digits, - and _, a dot between two of them, and any character
#: after a backslash. Every other value is a regular expression.
LITERAL_GROUP: Final = re.compile(r"(?:[\w-]|(?<=\w)\.(?=\w)|\\[^\w])+", re.ASCII)
_REASONS: Final = 10


def group_argument(group: str) -> str:
    """Return the value of ``--group`` that names one group."""
    return group if LITERAL_GROUP.fullmatch(group) else re.sub(r"([^\w-])", r"\\\1", group, flags=re.ASCII)


class Tone(StrEnum):
    PLAIN = ""
    WARN = "warn"
    BAD = "bad"


class Line(NamedTuple):
    """One sentence, and how much attention it needs."""

    text: str
    tone: Tone = Tone.PLAIN


def plan_as_json(plan: Plan, done: FailoverResult | None = None) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    found = plan.snapshot
    blocked = [
        {"group": one.group, "why": reason.why, "remedy": reason.remedy}
        for one in plan.blocked
        for reason in one.reasons
    ]
    return {
        "from": found.source,
        "to": found.target,
        "go": plan.can_go,
        "executed": done is not None,
        "obstacles": list(plan.obstacles),
        "notes": list(found.notes),
        "source": "gone" if found.is_gone else found.source_error or "answers",
        "copied_until_ms": None if found.copied_until_ms < 0 else found.copied_until_ms,
        "last_known": None if found.last_known is None else asdict(found.last_known),
        "lag": None if found.lag is None else found.lag.to_json(10),
        "not_mirrored": list(found.groups.not_mirrored),
        "groups": [one.group for one in plan.groups],
        "ready": [one.group for one in plan.ready],
        "in_place": [one.group for one in plan.of(GroupOutcome.IN_PLACE)],
        "blocked": blocked,
        "moves": [move_as_json(one) for one in plan.moves],
        "left": [{"group": one.group, "why": note} for one in plan.groups for note in one.notes],
        "verified": None if found.verified is None else found.verified.to_wire(),
        "verified_error": found.verified_error or None,
        "proof": None if done is None else [asdict(one) for one in done.proofs],
        "verification": None if done is None else done.verified or None,
        "written_late": None if done is None else done.late,
    }


def move_as_json(one: GroupMove) -> dict[str, Any]:
    """Return one partition of a group: ``old`` is its offset on the target now, ``new`` the one after a move."""
    return {
        "group": one.group,
        "topic": one.source[0],
        "partition": one.source[1],
        "offset": one.source_offset,
        "to_topic": one.target[0],
        "to_partition": one.target[1],
        "old": one.before,
        "new": one.after,
        "by": one.how.value,
        "done": one.is_done,
    }


def summary(plan: Plan) -> str:
    in_place = len(plan.of(GroupOutcome.IN_PLACE))
    parts = [f"{counted(len(plan.ready), 'group')} ready", f"{len(plan.blocked)} blocked"]
    parts += [f"{in_place} already in place"] if in_place else []
    return ", ".join(parts) + ("" if plan.can_go else "; nothing can be moved now")


def plan_lines(plan: Plan, now_ms: int) -> Iterator[Line]:
    """Say how far the copy is, and what is blocked."""
    found = plan.snapshot
    if found.lag is not None:
        whole = together(found.lag.partitions)
        count = counted(whole.partitions, "partition")
        behind = f"{counted(whole.records, 'record')} behind" if whole.records else "no lag"
        yield Line(f"{found.source}->{found.target}: {behind} in {count}")
        if whole.lost:
            lost = counted(whole.lost, "offset")
            yield Line(f"deleted on cluster {found.source} before they were copied: {lost}", Tone.BAD)
    yield from _last_known(found, now_ms)
    yield from blocked_lines(plan)


def _last_known(found: Snapshot, now_ms: int) -> Iterator[Line]:
    """Say until when all was copied and, if the source is lost, how far it was, with the age of that."""
    if found.copied_until_ms >= 0:
        yield Line(
            f"copied until {in_utc(found.copied_until_ms)} ({_ago(now_ms - found.copied_until_ms)}), by the last "
            f"mirrored heartbeat of {found.source}"
        )
    if (known := found.last_known) is None:
        return
    if not known.partitions:
        yield Line(f"last known lag: unknown, because cluster {found.target} has no stored position of the flow")
        return
    age = f", last stored {_ago(now_ms - known.stored_ms)}" if known.stored_ms >= 0 else ""
    ahead = f"at least {counted(known.ahead, 'record')} behind, by checkpoints"
    behind = ahead if known.ahead else "no checkpoint is ahead"
    yield Line(f"last known lag, by stored positions of {counted(known.partitions, 'partition')}{age}: {behind}")


def verified_line(found: Snapshot, now_ms: int) -> Line:
    """Say what the last verification proved and, if the source answers, that the command can verify the rest."""
    facts = found.verified
    is_offered = not found.is_gone and not found.source_error
    if facts is None:
        text = "the copy was never verified"
        if found.verified_error:
            text = f"what the last verification found could not be read: {found.verified_error}"
        return Line(f"{text}; --verify compares every record once the flow is drained" if is_offered else text)
    text = verified_text(facts, now_ms)
    if is_offered and (facts.new_offsets or facts.new_partitions or facts.unread):
        text += f" --verify compares what is left once the flow is drained, in {rest_text(facts)}."
    return Line(f"{text[0].lower()}{text[1:]}", Tone.BAD if facts.differences else Tone.PLAIN)


def _ago(age_ms: int) -> str:
    return f"{max(age_ms, 0) / 1000:.0f} s ago"


def blocked_lines(plan: Plan) -> list[Line]:
    """Say what blocks the move or a group, and the notes on groups; each once."""
    lines = [Line(f"blocked: {obstacle}", Tone.BAD) for obstacle in plan.obstacles]
    lines += [
        Line(f"blocked: group {one.group}: {reason.why}; {reason.remedy}", Tone.BAD)
        for one in plan.blocked
        for reason in one.reasons
    ]
    lines += [Line(f"note: group {one.group}: {note}", Tone.WARN) for one in plan.groups for note in one.notes]
    return list(dict.fromkeys(lines))


def rehearsal_lines(done: Rehearsal, now_ms: int, *, everything: bool = False) -> Iterator[Line]:
    """Say how long a failover would take, what it would lose, and what is blocked."""
    plan = done.plan
    yield Line(f"rehearsal from {plan.snapshot.source} to {plan.snapshot.target}: {summary(plan)}; nothing was changed")
    measured, estimated = (
        ", ".join(f"{step} {step_s:.1f} s" for step, step_s in some.items()) for some in (done.took_s, done.estimated_s)
    )
    yield Line(f"  RTO: {done.rto_s:.1f} s (measured: {measured}; estimated: {estimated})")
    until_ms = plan.snapshot.copied_until_ms
    ago = f"{max(now_ms - until_ms, 0) / 1000:.1f} s, by the last mirrored heartbeat" if until_ms >= 0 else "unknown"
    yield Line(f"  RPO, if {plan.snapshot.source} were lost now: {ago}")
    yield Line(f"  read from {done.read} of {len(plan.moves)} target offsets")
    yield from proof_lines(done.proofs, everything=everything)
    yield verified_line(plan.snapshot, now_ms)
    yield from (Line(f"  {text}", tone) for text, tone in blocked_lines(plan))


def proof_lines(proofs: Sequence[SampleCheck], *, everything: bool) -> Iterator[Line]:
    """Say how many samples are the same, each that differs, and why others were not compared."""
    counts = Counter(one.outcome for one in proofs)
    records = sum(one.records for one in proofs if one.outcome == SAME)
    yield Line(
        f"sample: {counts[SAME]} of {len(proofs)} target offsets match ({counted(records, 'record')}), "
        f"{counts[DIFFERS]} differ, {counts[NOT_COMPARED]} could not be compared"
    )
    together: dict[tuple[str, str], list[SampleCheck]] = {}
    for one in proofs:
        if one.outcome == DIFFERS:
            yield Line(f"  {one.outcome}: {_named(one)}: {one.why}", Tone.BAD)
        elif one.why and everything:
            yield Line(f"  {one.outcome}: {_named(one)}: {one.why}")
        elif one.why:
            together.setdefault((one.outcome, one.why), []).append(one)
    most = sorted(together.items(), key=lambda each: -len(each[1]))
    for (outcome, why), some in most[:_REASONS]:
        so_many = "" if len(some) == 1 else f"{len(some)} target offsets, such as "
        yield Line(f"  {outcome}: {so_many}{_named(some[0])}: {why}")
    if rest := sum(len(some) for _, some in most[_REASONS:]):
        yield Line(f"  and {rest} more, for other reasons: --all shows them")


def _named(one: SampleCheck) -> str:
    return f"group {one.group}, {one.source} and {one.target}"


def described(run: FailoverRun) -> str:
    """Describe what a run changed, who ran it, and when."""
    begins = counted(len(run.starts) + len(run.begins), "start")
    rules = f"ACLs of {counted(len(run.denied), 'topic')}"
    names = f" ({named(sorted(run.groups))})" if run.groups else ""
    what = f"offsets of {counted(len(run.groups), 'group')}{names}, {begins} of flows and {rules}"
    return what + (f"; changed by {run.owner} at {in_utc(run.updated_ms)}: {run.command}" if run.owner else "")
