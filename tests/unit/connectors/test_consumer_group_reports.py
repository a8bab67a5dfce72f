"""What reports say of groups: their lag on both sides, how they are translated, and why they are not synced; and the
checklist of a move: go or no-go with reasons, and where a move that was begun stands."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import ConfigError
from connect.kafka.log.committed_offsets import CLASSIC, SHARE, GroupListing
from connectors import consumer_group_reports
from connectors.config.connector_configs import CheckpointSettings, checkpoint_settings
from connectors.connector_base import KeptReports
from connectors.consumer_group_reports import (
    GroupsSeen,
    MoveLook,
    checklist,
    checklist_as_json,
    groups_as_json,
    look_at_move,
    sync_state,
)
from connectors.failover import execute
from connectors.failover.clusters_and_lease import LeaseRecord, turned_config
from connectors.failover.execute import Rehearsal
from connectors.failover.journal import FailoverRun, RunState
from connectors.failover.plan import FailoverOptions, Plan, plan
from connectors.failover.snapshot import DIFFERS, GroupFinding, GroupMove, GroupRule, Groups, How, SampleCheck, Snapshot
from connectors.flow_facts import VerifiedFacts
from connectors.plugins import consumer_group_report


async def test_what_is_wrong_or_of_another_connector_reads_nothing() -> None:
    assert await consumer_group_report({}, KeptReports(), "lag", {}, {}) is None
    with pytest.raises(ConfigError, match="top is 'all'"):
        await consumer_group_report({}, KeptReports(), "groups", {}, {"top": "all"})


def test_the_config_of_the_reverse_flow() -> None:
    config = {"source.cluster.alias": "us", "target.cluster.alias": "eu", "target.admin.x": "1", "topics": "source"}
    aliases = {"target.cluster.alias": "us", "source.cluster.alias": "eu"}
    assert turned_config(config) == {**aliases, "source.admin.x": "1", "topics": "source"}


IDLE, ACTIVE = GroupListing(CLASSIC, "consumer", "Empty"), GroupListing(CLASSIC, "consumer", "Stable")


def settings(**changed: str) -> CheckpointSettings:
    own = {key.replace("_", "."): value for key, value in changed.items()}
    addresses = {f"{side}.cluster.bootstrap.servers": f"{side}:9092" for side in ("source", "target")}
    props = {"name": "m", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
    return checkpoint_settings({**props, **addresses, "sync.group.offsets.enabled": "true", **own})


def moved(group: str, partition: int, at: int, before: int | None, after: int, how: How = How.EXACT) -> GroupMove:
    return GroupMove(group, ("orders", partition), at, ("us.orders", partition), before, "", after, "", how)


@pytest.mark.parametrize(
    ("changed", "group", "here", "there", "move", "why", "needs_attention"),
    [
        ({}, "mail", IDLE, IDLE, moved("mail", 0, 7, 5, 5), "", False),
        ({"sync_group_offsets_enabled": "false"}, "mail", IDLE, None, None, "off: sync.group.offsets.enabled", False),
        ({"emit_checkpoints_enabled": "false"}, "mail", IDLE, None, None, "off: emit.checkpoints.enabled", False),
        ({"groups_exclude": "mail"}, "mail", IDLE, None, None, "filtered: groups and groups.exclude", False),
        ({}, "mail", IDLE, ACTIVE, moved("mail", 0, 7, 5, 5), "on the target it has members", True),
        ({}, "mail", GroupListing(SHARE, "share", "Empty"), None, None, "a share group has no offset", True),
        ({}, "a,b", IDLE, None, moved("a,b", 0, 7, None, 5), "list separated by commas", True),
        ({}, "mail", IDLE, IDLE, moved("mail", 0, 7, 9, 5), "1 partition: it is ahead", True),
        ({}, "mail", IDLE, None, moved("mail", 0, 7, None, 5), "1 partition to be moved by a sync, every 60 s", False),
        ({}, "mail", IDLE, None, None, "no partition of it is mirrored", False),
    ],
)
def test_why_a_group_is_not_synced(
    changed: dict[str, str], group: str, here: Any, there: Any, move: Any, why: str, needs_attention: bool
) -> None:
    found = sync_state(settings(**changed), group, here, there, [] if move is None else [move])
    assert (found.why == "", found.needs_attention) == (why == "", needs_attention)
    assert why in found.why


def seen() -> GroupsSeen:
    moves = (
        moved("mail", 0, 60, 40, 40),
        moved("mail", 1, 10, None, 8, How.SYNCS),
        moved("billing", 0, 100, 80, 80),
        moved("audit", 0, 99, 70, 70),
    )
    findings = (
        GroupFinding("audit", GroupRule.USED_AT_TARGET, "on the target it has members"),
        GroupFinding("audit", GroupRule.NOT_MIRRORED, "reads logs, which no flow copies"),
    )
    names = ("audit", "billing", "mail")
    return GroupsSeen(
        read=names,
        groups=Groups(names, moves, findings),
        at_source=dict.fromkeys(names, IDLE),
        at_target={"audit": ACTIVE, "billing": IDLE, "mail": IDLE},
        source_ends={("orders", 0): 100, ("orders", 1): 30},
        target_ends={("us.orders", 0): 80, ("us.orders", 1): 28},
        checkpoint_ms={"mail": 5},
    )


def test_groups_that_need_attention_come_first_and_then_those_with_the_highest_lag() -> None:
    found = groups_as_json(settings(), seen(), 7, 2, with_partitions=False)
    assert [row["group"] for row in found["groups"]] == ["audit", "mail"], "a group without lag is left out"
    assert (found["matching"], found["read"], found["sync"]) == (7, 3, "every 60 s")
    audit, mail = found["groups"]
    assert audit["findings"] == ["reads logs, which no flow copies"], "its members are in its state"
    assert audit["why_not_synced"] == "on the target it has members (it is Stable)"
    assert (mail["source_lag"], mail["target_lag"], mail["not_on_target"]) == (60, 40, 1)
    assert (mail["exact"], mail["by_syncs"], mail["checkpoint_ms"], "partitions" in mail) == (1, 1, 5, False)


def test_a_group_has_its_partitions_with_both_positions() -> None:
    found = groups_as_json(settings(), seen(), 1, 1, with_partitions=True, search="ORD")
    (row,) = found["groups"][0]["partitions"]
    assert (row["topic"], row["offset"], row["source_lag"]) == ("orders", 99, 1)
    assert (row["to_topic"], row["old"], row["new"], row["target_lag"], row["by"]) == ("us.orders", 70, 70, 10, "exact")
    found = groups_as_json(settings(), seen(), 1, 1, with_partitions=True, search="payments")
    assert found["groups"][0]["partitions"] == []


NAMES = ("billing", "mail")


def planned(*findings: GroupFinding, **snapshot: Any) -> Plan:
    moves = tuple(GroupMove(name, ("t", 0), 1, ("us.t", 0), None, "", 1, "", How.EXACT) for name in NAMES)
    return plan(Snapshot("us", "eu", groups=Groups(NAMES, moves, findings), **snapshot), FailoverOptions())


def steps(found: Plan | None, *groups: str, **more: Any) -> dict[str, tuple[str, str, str, str]]:
    """Return word, tone, lines and command of each step."""
    look = MoveLook("us", "eu", groups, found, **more)
    rows = checklist(look, 1000, "http://worker:8083")
    return {one.name: (one.word, one.tone, "\n".join(line.text for line in one.lines), one.command) for one in rows}


IN_USE = GroupFinding("mail", GroupRule.USED_AT_SOURCE, "has members on cluster us (it is Stable)")


@pytest.mark.parametrize(
    ("found", "error", "word", "tone", "says"),
    [
        (planned(), "", "go", "good", "from us to eu: 2 groups ready, 0 blocked"),
        (planned(IN_USE), "", "go for 1 of 2", "warn", "stop its consumers at the source, then run the command again"),
        (planned(obstacles=("ann is working on this",)), "", "no-go", "bad", "blocked: ann is working on this"),
        (planned(source_error="timed out"), "", "no-go", "bad", "use --source-gone us"),
        (planned(notes=("only cluster us has quotas",)), "", "go", "good", "note: only cluster us has quotas"),
        (None, "cluster eu does not answer", "no-go", "bad", "cluster eu does not answer"),
    ],
)
def test_go_or_no_go_has_its_reasons(found: Plan | None, error: str, word: str, tone: str, says: str) -> None:
    step = steps(found, error=error)["Go or no-go"]
    assert step[:2] == (word, tone)
    assert says in step[2]


def test_commands_are_for_the_groups_that_were_asked() -> None:
    found = steps(planned(), "orders-mail", "a+b c")
    groups = "--group orders-mail --group 'a\\+b\\ c'"
    assert found["Go or no-go"][3] == f"heliograph failover mm2.properties --to eu {groups}"
    assert found["Rehearsal"][3].endswith(" --rehearse")
    assert found["Drain and move"][3].endswith(f"{groups} --rest http://worker:8083 --execute")
    assert found["Undo"][3] == "", "there is nothing to undo"


@pytest.mark.parametrize(
    ("to_copy", "word"), [(None, "unknown"), (-1, "unknown"), (0, "drained now"), (3, "3 records to copy")]
)
def test_the_drain_says_what_is_left_to_copy(to_copy: int | None, word: str) -> None:
    assert steps(planned(), to_copy=to_copy)["Drain and move"][0] == word


@pytest.mark.parametrize(("state", "word"), [(RunState.DONE, "moved"), (RunState.OPEN, "not finished")])
def test_a_move_in_the_journal_can_be_undone(state: RunState, word: str) -> None:
    run = FailoverRun("1", "us", "eu", "ann@host", "heliograph failover", 1000, state, groups={"mail": ()})
    found = steps(planned(), run=run, to_copy=0)
    assert found["Drain and move"][0] == word
    assert ("Run the same command again" in found["Drain and move"][2]) == (state is RunState.OPEN)
    assert found["Undo"][0] == "possible"
    assert "offsets of 1 group (mail)" in found["Undo"][2] and "changed by ann@host" in found["Undo"][2]
    assert found["Undo"][3] == "heliograph undo mm2.properties --to eu"


def test_an_operator_at_work_is_named_with_the_step() -> None:
    lease = LeaseRecord("ann@host", "host", 7, "heliograph failover", 0, 2000, "drain")
    word, tone, says, _ = steps(planned(), lease=lease)["Drain and move"]
    assert (word, tone) == ("running: drain", "warn")
    assert says.startswith("ann@host is working on this failover")


def test_a_rehearsal_shows_what_it_found_and_each_line_once() -> None:
    differs = SampleCheck("mail", "t-0 at 1", "us.t-0 at 1", 3, DIFFERS, "'1' against '2'")
    for proofs, word, proof in (((), "passed", "rehearsed"), ((differs,), "problems", "1 differ")):
        done = Rehearsal(planned(IN_USE), proofs, {"collect": 1.0}, {"stop": 2.0}, 1)
        found = steps(done.plan, rehearsal=done)
        assert (found["Rehearsal"][0], found["Proof"][0]) == (word, proof)
        assert "RTO: 3.0 s" in found["Rehearsal"][2]
        assert IN_USE.why not in found["Rehearsal"][2] and IN_USE.why in found["Go or no-go"][2]


@pytest.mark.parametrize(
    ("verified", "word", "says"),
    [
        (
            None,
            "by the command",
            "the copy was never verified; --verify compares every record once the flow is drained",
        ),
        (
            VerifiedFacts(0, 9, 0, 0, 3, 0, 12.5),
            "by the command",
            "records copied since are not verified. --verify compares what is left once the flow is drained, in about",
        ),
        (VerifiedFacts(0, 9, 1, 0, 0, 0, 10.0), "differences", "1 difference, 9 records compared. Nothing was copied"),
    ],
)
def test_the_proof_says_what_is_verified_and_offers_more(verified: VerifiedFacts | None, word: str, says: str) -> None:
    step = steps(planned(verified=verified))["Proof"]
    assert (step[0], step[3]) == (word, "heliograph verify mm2.properties --flow 'us->eu'")
    assert says in step[2]


async def test_no_value_of_a_record_is_in_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer of REST may have no right to read the topics."""
    differs = SampleCheck("mail", "t-0 at 1", "us.t-0 at 1", 3, DIFFERS, "'secret' against 'other secret'")

    def answers(answer: Any) -> Any:
        async def work(*_: Any, **__: Any) -> Any:
            return answer

        return work

    monkeypatch.setattr(execute, "collect", answers(planned().snapshot))
    monkeypatch.setattr(execute, "prove", answers([differs]))
    monkeypatch.setattr(execute, "_estimate", answers({}))
    monkeypatch.setattr(execute, "next_records", answers({("us.t", 0): []}))
    monkeypatch.setattr("connectors.failover.clusters_and_lease.look", answers(None))
    monkeypatch.setattr(consumer_group_reports, "read_runs", answers([]))
    flow = SimpleNamespace(source_alias="us", target_alias="eu", map_topic="map", flow="us->eu")
    site: Any = SimpleNamespace(flow=flow, target=None)
    look = await look_at_move(site, NAMES, rehearses=True)
    found = json.dumps(checklist_as_json(look, "checkpoints", 1000, 20))
    assert "the next records differ" in found and "secret" not in found


def test_rows_are_cut_and_counted_and_what_a_worker_cannot_check_is_said() -> None:
    found = checklist_as_json(MoveLook("us", "eu", (), planned()), "checkpoints", 1000, 1)
    assert [len(found["plan"]["moves"]), found["counts"]["moves"], found["counts"]["ready"]] == [1, 2, 2]
    assert "heliograph check mm2.properties" in found["not_checked"][0]
