"""What a flow's state is called: a row of facts for each state, and the whole text that users read."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from connect.cli.main import app
from connect.core.model import TaskId
from connectors.flow_facts import FlowFacts, LagFacts, OtherFacts, PartitionFacts, TaskFacts, VerifiedFacts
from connectors.flow_progress import ClusterContact, Contact
from connectors.flow_verdict import FlowVerdict, FlowWord, judge
from connectors.formats.types import QUARANTINED, FlowName, TopicPartition

PROGRAM: Any = get_command(app)
AT_MS = 1_767_276_182_000  # 2026-01-01T14:03:02Z
ANSWERS = ClusterContact(answers=True, answered_ms=AT_MS)
SILENT = ClusterContact(answers=False, answered_ms=AT_MS, reason="no answer within 5 s")
COPIED = LagFacts(partitions=6, waiting=0, records=0, ms=0, known_ms=AT_MS)
ORDERS = TopicPartition("orders", 3)
BEHIND = LagFacts(6, 2, 120_000, -1, 90_000, furthest=ORDERS, furthest_records=100_000, known_ms=AT_MS)
RUNS = TaskFacts(0, "RUNNING", "w:8083")
WELL = FlowFacts(
    FlowName("us", "eu"),
    AT_MS + 60_000,
    connector_state="RUNNING",
    tasks=(RUNS, replace(RUNS, task=1)),
    has_worker=True,
    heartbeat_ms=AT_MS + 59_000,
    contact=Contact(ANSWERS, ANSWERS),
    lag=COPIED,
    rest="http://w:8083/us/eu",
    file="mm2.properties",
)
FAILED = TaskFacts(1, "FAILED", "w:8083", "OSError: disk full")
TWICE = (OtherFacts("Mirror Checks", 0, "refused"), OtherFacts("Mirror Checks", 2, "refused"))
REFUSED = PartitionFacts(ORDERS, "QUARANTINED", "eu refuses offset 41: RecordTooLarge")
SLOW = replace(BEHIND, growth_per_s=250.0)

#: Of a failover, where a row says nothing else.
USUAL = "Failover: A failover could start now, and no record would be lost."
#: Facts of a flow that is well, changed, and the text of their verdict, with any line breaks.
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "all well": ({}, "running, ok: us->eu runs: everything in 6 partitions is copied."),
    "source frozen": (
        {"contact": Contact(SILENT, ANSWERS), "lag": replace(COPIED, records=-1, ms=-1), "checkpoint_ms": AT_MS},
        """unreachable, error: us->eu copies nothing, and its lag is unknown: the source us does not answer (last
        answer 1 min 0 s ago): no answer within 5 s.
        Do: cluster us: check its brokers and the network: heliograph check mm2.properties
        Failover: A failover could start now with --source-gone us. What us got in the last 1 min 0 s would
        be lost, and so would what waited before. Groups would continue at their last checkpoint, written
        1 min 0 s ago.""",
    ),
    "target frozen": (
        {"contact": Contact(ANSWERS, SILENT)},
        """unreachable, error: us->eu copies nothing: the target eu does not answer (last answer 1 min 0 s ago): no
        answer within 5 s.
        Do: cluster eu: check its brokers and the network: heliograph check mm2.properties
        Failover: No failover could start now: the target eu does not answer, so its groups cannot be changed.""",
    ),
    "task failed": (
        {"tasks": (RUNS, FAILED)},
        """failed, error: us->eu does not copy the partitions of 1 of 2 tasks: task 1 failed: OSError: disk full.
        Do: task 1 of MirrorSourceConnector: remove the cause, then restart: heliograph connectors restart
        MirrorSourceConnector --tasks --failed --rest http://w:8083/us/eu""",
    ),
    "connector failed, and its tasks run on": (
        {"connector_state": "FAILED"},
        """failed, error: us->eu does not follow changes of its topics: connector MirrorSourceConnector failed.
        Do: connector MirrorSourceConnector: remove the cause, then restart it: heliograph connectors restart
        MirrorSourceConnector --rest http://w:8083/us/eu""",
    ),
    "no task yet": (
        {"tasks": (), "lag": replace(COPIED, waiting=1, records=5)},
        """starting, warning: us->eu copies nothing: connector MirrorSourceConnector has no task yet.
        Do: connector MirrorSourceConnector: wait for refresh.topics.interval.seconds, or restart it: heliograph
        connectors restart MirrorSourceConnector --rest http://w:8083/us/eu
        Failover: A failover could start now, and copies what waits first. If us were lost now, 5 records of 1 partition
        not copied yet would be lost.""",
    ),
    "no worker, and records wait": (
        {"has_worker": False, "tasks": (), "lag": replace(COPIED, waiting=1, records=5, ms=-1), "others": TWICE},
        """ended, error: us->eu copies nothing: no worker runs it, and its last heartbeat was 1.0 s ago.
        It lacks tasks 0, 2 of Mirror Checks, which failed: refused.
        Do: the worker of us->eu: start it: heliograph mirror mm2.properties
        Do: tasks 0, 2 of Mirror Checks: remove the cause, then restart it: heliograph connectors restart
        'Mirror Checks' --tasks --failed --rest http://w:8083/us/eu
        Failover: No failover could finish now, because no worker runs the flow, and what waits would not be copied. If
        us were lost now, 5 records of 1 partition not copied yet would be lost.""",
    ),
    "connector failed": (
        {"connector_state": "FAILED", "connector_reason": "topics is missing.", "tasks": ()},
        """failed, error: us->eu copies nothing: connector MirrorSourceConnector failed: topics is missing.
        Do: connector MirrorSourceConnector: remove the cause, then restart it: heliograph connectors restart
        MirrorSourceConnector --rest http://w:8083/us/eu""",
    ),
    "partition quarantined": (
        {"stopped": (REFUSED,), "stopped_count": 1, "lag": replace(SLOW, waiting=1)},
        """degraded, error: us->eu does not copy 1 partition: orders-3 is QUARANTINED: eu refuses offset 41:
        RecordTooLarge.
        It is 120,000 records behind, the oldest 1 min 30 s old. Most wait in orders-3: 100,000.
        Do: partition orders-3: remove the cause, or set errors.tolerance = all, then restart its tasks: heliograph
        connectors restart MirrorSourceConnector --tasks --rest http://w:8083/us/eu
        Failover: A failover could start now, and copies first what waits in other partitions. If us were lost now,
        120,000 records of 1 partition not copied yet would be lost. Groups that read orders-3 could not move, because
        it is not copied to its end.""",
    ),
    "gap, and the partition has stopped": (
        {
            "stopped": (PartitionFacts(ORDERS, "source-gap", "offsets 3 to 9 were deleted", "continue after N"),),
            "stopped_count": 1,
        },
        """degraded, error: us->eu does not copy 1 partition: orders-3 is source-gap: offsets 3 to 9 were deleted.
        Do: partition orders-3: continue after N
        Failover: A failover could start now, and no record would be lost. Groups that read orders-3 could not move,
        because it is not copied to its end.""",
    ),
    "partition waits": (
        {"waiting": (replace(REFUSED, state="waiting", reason="no leader"),), "waiting_count": 2},
        """degraded, warning: us->eu waits with 2 partitions, which will continue without help: orders-3: no leader, and
        1 other.""",
    ),
    "gap skipped": (
        {"lost": 7},
        """running, warning: us->eu has lost 7 offsets of us, deleted before the copy.
        Do: lost offsets: find them as docs/runbooks/stopped-partition.md says""",
    ),
    "another connector failed": (
        {"others": (OtherFacts("MirrorCheckpointConnector", 0, "DESCRIBE is missing"),)},
        """degraded, error: us->eu lacks task 0 of MirrorCheckpointConnector, which failed: DESCRIBE is
        missing.
        Do: task 0 of MirrorCheckpointConnector: remove the cause, then restart it: heliograph connectors restart
        MirrorCheckpointConnector --tasks --failed --rest http://w:8083/us/eu""",
    ),
    "Spark lost one task": (
        {"tasks": (RUNS, TaskFacts(1, "RECOVERING", "w:8083", "its slice has ended"))},
        "recovering, warning: us->eu starts 1 of 2 tasks again after an error: its slice has ended.",
    ),
    "starting": (
        {"tasks": (TaskFacts(0, "STARTING"), TaskFacts(1, "STARTING"))},
        "starting, warning: us->eu starts 2 of 2 tasks, and reads where they continue.",
    ),
    "records left out": ({"skipped": 2}, "running, warning: us->eu has left out 2 records that eu refuses."),
    "worker killed": (
        {"tasks": (RUNS, TaskFacts(1, "UNASSIGNED"))},
        """recovering, warning: us->eu takes over 1 of 2 tasks: a worker has ended or restarts them, and the group
        assigns them within scheduled.rebalance.max.delay.ms.""",
    ),
    "no worker": (
        {"has_worker": False, "heartbeat_ms": AT_MS, "connector_state": "", "tasks": ()},
        """ended, error: us->eu copies nothing: no worker runs it, and its last heartbeat was 1 min 0 s ago.
        Do: the worker of us->eu: start it: heliograph mirror mm2.properties""",
    ),
    "Spark gone": (
        {"spark": "its driver ended with code 1"},
        """recovering, warning: us->eu copies nothing at the moment: Spark does not run, and the worker starts it again:
        its driver ended with code 1.""",
    ),
    "paused": (
        {"connector_state": "PAUSED"},
        """paused, warning: us->eu copies nothing: connector MirrorSourceConnector is PAUSED.
        Do: connector MirrorSourceConnector: resume it: heliograph connectors resume MirrorSourceConnector --rest
        http://w:8083/us/eu""",
    ),
    "stopped": (
        {"connector_state": "STOPPED", "tasks": (), "rest": ""},
        """stopped, warning: us->eu copies nothing: connector MirrorSourceConnector is STOPPED.
        Do: connector MirrorSourceConnector: run heliograph failback if this is after a failover, otherwise resume it:
        heliograph connectors resume MirrorSourceConnector --rest URL""",
    ),
    "stopped by a failover, and nothing runs": (
        {
            "connector_state": "STOPPED",
            "has_worker": False,
            "tasks": (),
            "stopped_by": "failover",
            "stopped_by_ms": AT_MS - 60_000,
            "checkpoint_ms": AT_MS,
        },
        """stopped, warning: us->eu copies nothing: a failover to eu stopped it 2 min 0 s ago. The live direction is
        eu->us.
        Do: flow us->eu: leave it stopped; to move groups back to us: heliograph failback mm2.properties --to us
        Failover: No failover has to start: the last failover was to eu.""",
    ),
    "stopped by a failback": (
        {"connector_state": "STOPPED", "tasks": (), "stopped_by": "failback", "stopped_by_ms": AT_MS},
        """stopped, warning: us->eu copies nothing: a failback to eu stopped it 1 min 0 s ago. The live direction is
        eu->us.
        Do: flow us->eu: leave it stopped; to move groups back to us: heliograph failover mm2.properties --to us
        Failover: No failover has to start: the last failback was to eu.""",
    ),
    "behind": (
        {"lag": SLOW, "checkpoint_ms": AT_MS + 50_000},
        """behind, error: us->eu is 120,000 records behind, the oldest 1 min 30 s old, and falls back by 250 records a
        second: 2 tasks cannot copy as fast as records arrive. Most wait in orders-3: 100,000.
        Do: flow us->eu: raise tasks.max, or start another node
        Failover: A failover could start now, and copies what waits first. If us were lost now, 120,000 records of 2
        partitions not copied yet would be lost. Groups would continue at their last checkpoint, written 10.0 s
        ago.""",
    ),
    "behind, and it is not known whether it grows": (
        {"lag": BEHIND},
        """behind, warning: us->eu is 120,000 records behind, the oldest 1 min 30 s old. Most wait in orders-3: 100,000.
        Do: flow us->eu: look whether the lag grows: heliograph lag mm2.properties --watch
        Failover: A failover could start now, and copies what waits first. If us were lost now, 120,000 records of 2
        partitions not copied yet would be lost.""",
    ),
    "catching up": (
        {"lag": replace(BEHIND, growth_per_s=-1000.0)},
        """catching up, warning: us->eu is 120,000 records behind, the oldest 1 min 30 s old, and catches up in about
        2 min 0 s at 1,000 records a second.
        Failover: A failover could start now, and copies what waits first. If us were lost now, 120,000 records of 2
        partitions not copied yet would be lost.""",
    ),
    "behind, because of a quota": (
        {"lag": SLOW, "contact": Contact(ClusterContact(True), ClusterContact(True, throttled=0.83))},
        """behind, error: us->eu is 120,000 records behind, the oldest 1 min 30 s old, and falls back by 250 records a
        second: a quota of eu delays it 83% of the time. Most wait in orders-3: 100,000.
        Do: the quota of eu: raise it for the user of the flow
        Failover: A failover could start now, and copies what waits first. If us were lost now, 120,000 records of 2
        partitions not copied yet would be lost.""",
    ),
    "behind, because of a quota, and it is not known whether it grows": (
        {"lag": BEHIND, "contact": Contact(ClusterContact(True, throttled=0.2), ClusterContact(True, throttled=0.1))},
        """behind, warning: us->eu is 120,000 records behind, the oldest 1 min 30 s old: a quota of us delays it 20% of
        the time. Most wait in orders-3: 100,000.
        Do: the quota of us: raise it for the user of the flow
        Failover: A failover could start now, and copies what waits first. If us were lost now, 120,000 records of 2
        partitions not copied yet would be lost.""",
    ),
    "verified, and differences were found": (
        {"verified": VerifiedFacts(AT_MS, 1_500, 2, 1, 0, 1)},
        """running, warning: us->eu differs from its source, as its last verification found: 2 differences.
        Do: differences: look at them, and add --full once they are repaired: heliograph verify mm2.properties --flow
        'us->eu'
        Failover: A failover could start now, and no record would be lost.
        Copy: Last verified 1 min 0 s ago: 2 differences in what could be compared, 1 partition could not, 1,500 records
        compared. 1 partition copied since is not verified.""",
    ),
    "verified": (
        {"verified": VerifiedFacts(AT_MS, 1, 0, 0, 0)},
        """running, ok: us->eu runs: everything in 6 partitions is copied.
        Failover: A failover could start now, and no record would be lost.
        Copy: Last verified 1 min 0 s ago: equal, 1 record compared. Nothing was copied since.""",
    ),
    "no topics": (
        {"lag": replace(COPIED, partitions=0), "tasks": ()},
        """idle, warning: us->eu copies nothing: no source topic is selected.
        Do: flow us->eu: check its topics and topics.exclude: heliograph check mm2.properties
        Failover: No failover could start now: the flow copies no topic.""",
    ),
    "unknown": (
        {"lag": LagFacts(), "unchecked": ("cluster us: DESCRIBE is missing",)},
        """unknown, unknown: us->eu has an unknown lag: cluster us: DESCRIBE is missing.
        Failover: Whether a failover could start now is unknown, because the lag is unknown.""",
    ),
    "several at once: the worst gives the word, and a failed task explains the lag": (
        {"tasks": (RUNS, FAILED), "lag": SLOW, "skipped": 1},
        """failed, error: us->eu does not copy the partitions of 1 of 2 tasks: task 1 failed: OSError: disk full.
        It is 120,000 records behind, the oldest 1 min 30 s old. Most wait in orders-3: 100,000.
        It has left out 1 record that eu refuses.
        Do: task 1 of MirrorSourceConnector: remove the cause, then restart: heliograph connectors restart
        MirrorSourceConnector --tasks --failed --rest http://w:8083/us/eu
        Failover: No failover could finish now, because task 1 failed, and what waits would not be copied. If us were
        lost now, 120,000 records of 2 partitions not copied yet would be lost.""",
    ),
}


def test_a_task_that_no_member_holds_is_without_a_worker_whatever_its_status_says() -> None:
    name = WELL.connector
    held = {TaskId(name, 0), TaskId("other", 1)}
    assert [one.state for one in WELL.with_lost_tasks(held).tasks] == ["RUNNING", "UNASSIGNED"]


@pytest.mark.parametrize(("changes", "text"), ROWS.values(), ids=ROWS)
def test_each_state_has_its_words(changes: dict[str, Any], text: str) -> None:
    facts = replace(WELL, **changes)
    whole = text if "Failover:" in text else f"{text} {USUAL}"
    assert _text(judge(facts)) == " ".join(whole.split())
    # As a worker's report brings it to another process.
    again = FlowFacts.from_wire(json.loads(json.dumps(facts.to_wire())))
    assert FlowVerdict.from_wire(json.loads(json.dumps(judge(again).to_wire()))) == judge(facts)


def _text(found: FlowVerdict) -> str:
    actions = [f"Do: {one}" for one in found.actions]
    said = [f"{found.state}, {found.urgency}: {found.sentence}", *found.also, *actions]
    copy = [f"Copy: {found.verified}"] if found.verified else []
    return " ".join([*said, f"Failover: {found.failover.sentence}", *copy])


def test_only_those_records_are_promised_that_were_counted() -> None:
    sentence = judge(replace(WELL, lag=replace(COPIED, not_checked=2))).failover.sentence
    assert sentence == (
        "A failover could start now, and no record that was counted would be lost. What waits in 2 partitions that "
        "could not be checked is not counted."
    )


def test_all_stopped_partitions_are_counted() -> None:
    every = [PartitionFacts(TopicPartition("t", number), QUARANTINED, "refused") for number in range(1000)]
    facts = WELL.with_partitions(every)
    assert "Groups that read t-0, t-1, t-2 and 997 more could not move" in judge(facts).failover.sentence


def _some(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_SIDES = _some(ANSWERS, SILENT, ClusterContact())
_FACTS = st.builds(
    FlowFacts,
    st.just(WELL.flow),
    st.just(WELL.at_ms),
    connector=_some("MirrorSourceConnector", "a b; rm $HOME", "it's"),
    connector_state=_some("", "RUNNING", "PAUSED", "STOPPED", "FAILED"),
    tasks=_some((), (RUNS,), (RUNS, FAILED), (FAILED,), (TaskFacts(0, "UNASSIGNED"), TaskFacts(1, "STARTING"))),
    others=_some((), TWICE, (OtherFacts("c", -1, ""),)),
    has_worker=_some(None, False, True),
    stopped_by=_some("", "failover", "failback"),
    contact=st.builds(Contact, _SIDES, _SIDES),
    spark=_some("", "its driver ended"),
    lag=_some(COPIED, LagFacts(), BEHIND, SLOW, replace(COPIED, records=10**15, ms=-1, waiting=1)),
    stopped=_some((), (REFUSED,)),
    stopped_count=st.just(1),
    waiting=_some((), (replace(REFUSED, state="waiting"),)),
    waiting_count=st.just(1),
    skipped=_some(0, 3),
    lost=_some(0, 3),
    verified=_some(None, VerifiedFacts(AT_MS, 9, 3)),
    unchecked=_some((), ("cluster us: DESCRIBE is missing",)),
    rest=_some("", "http://w:8083/us/eu", "http://w/?a&b"),
    file=_some("", "mm2.properties", "/my files/$(id).properties"),
)


@given(_FACTS)
def test_sentences_agree_and_commands_can_be_copied(facts: FlowFacts) -> None:
    found = judge(facts)
    said = " ".join((found.sentence, *found.also))
    assert not ("copies nothing" in said and re.search(r"copies,|runs:", said)), said
    assert "unknown old" not in said + found.failover.sentence
    assert found.state is not FlowWord.RUNNING or not facts.stopped
    stuck = facts.has_worker is False or facts.connector_state == "PAUSED"
    assert not (stuck and found.failover.records > 0 and found.failover.can_start)
    for command in filter(None, (one.command for one in found.actions)):
        _parse(shlex.split(command))


def _parse(words: list[str]) -> None:
    """Parse a command without running it, as its program would."""
    command, at = PROGRAM, 1
    while hasattr(command, "commands"):
        command, at = command.commands[words[at]], at + 1
    command.make_context(words[at - 1], words[at:])


def test_facts_of_a_worker_of_an_older_release_are_read() -> None:
    """As in a rolling upgrade: it sends no field that came later."""
    facts = FlowFacts(FlowName("us", "eu"), 5, verified=VerifiedFacts(1, 2, 3))
    sent = facts.to_wire()
    assert FlowFacts.from_wire({**sent, "later": 1}) == facts
    del sent["verified"]
    assert FlowFacts.from_wire(sent) == replace(facts, verified=None)
