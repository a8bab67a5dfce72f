"""Rounds of the group: joining, assigning, catching up, and how a membership ends."""

from dataclasses import replace

import pytest

from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import logger_record, restart_record
from connect.core.herder import events
from connect.core.herder.membership import (
    COMPATIBLE,
    CONFIG_MISMATCH,
    EAGER,
    SESSIONED,
    Allocation,
    WorkerMetadata,
    decode_assignment,
)
from connect.core.herder.state import HerderMode
from connect.core.herder_api import ALGORITHM_HEADER, SIGNATURE_HEADER, BadRequest, Forbidden, Signature
from connect.core.model import RestartRequest, State, Status, TargetState, TaskId
from connect.core.status_and_offset_topics import status_record
from tests.kit.herding import OTHER_URL, URL, Bench, kinds, leading_bench, none, only, ready_bench
from tests.kit.work import worker_config

TASKS = (TaskId("c", 0), TaskId("c", 1))
ALL = Allocation(("c",), TASKS)


def at_work(config: WorkerConfig | None = None) -> Bench:
    """One connector with two tasks, all of it here; somebody else leads."""
    bench = ready_bench(config, "c", tasks=2)
    bench.joined(ALL)
    return bench


@pytest.mark.parametrize(
    ("protocol", "offered"),
    [("eager", [EAGER]), ("compatible", [COMPATIBLE, EAGER]), ("sessioned", [SESSIONED, COMPATIBLE, EAGER])],
)
def test_it_joins_once_the_topics_are_read(protocol: str, offered: list[str]) -> None:
    bench = Bench(worker_config(connect_protocol=protocol))
    assert bench.step(events.ConfigLogReset()) == []
    bench.connector()
    assert bench.herder.next_deadline_ms() is None
    join = only(bench.step(events.Ready()), events.Join)
    assert [name for name, _ in join.protocols] == offered
    claimed = bench.claimed()
    assert (claimed.url, claimed.config_offset, claimed.allocation) == (URL, 1, None)
    assert claimed.lease_ms == 5_000
    assert not bench.herder.is_ready


def test_revoked_work_is_stopped_before_the_rest_starts_and_the_next_round_hands_it_out() -> None:
    bench = at_work()
    bench.connector("d")
    effects = bench.joined(Allocation(("d",)), Allocation(("c",), TASKS[1:]))
    assert kinds(effects) == ["StopWork", "StartConnector", "Join"]
    assert only(effects, events.StopWork) == events.StopWork(("c",), TASKS[1:])
    claimed = bench.claimed().allocation
    assert claimed is not None
    assert (claimed.connectors, claimed.tasks) == (("d",), TASKS[:1])


def test_work_of_a_deleted_connector_forgets_its_topics_once_it_is_down() -> None:
    bench = at_work()
    effects = bench.record(("connector-c", None))
    assert kinds(effects) == ["Join"]
    effects = bench.joined(revoked=ALL)
    assert effects[:2] == [events.StopWork(("c",), TASKS), events.ForgetTopics("c")]


def test_eager_members_stop_everything_before_they_join() -> None:
    bench = ready_bench(worker_config(connect_protocol="eager"), "c", tasks=1)
    bench.joined(Allocation(("c",), TASKS[:1]), protocol=EAGER)
    effects = bench.step(events.RebalanceBegun())
    assert kinds(effects) == ["StopWork", "Join"]
    effects = bench.joined(Allocation(("c",)), protocol=EAGER)
    assert effects == [events.StartConnector("c", TargetState.STARTED)]


def test_nobody_works_while_a_group_leaves_the_cooperative_protocols() -> None:
    """Metadata of the eager protocol tells the leader who still does."""
    bench = at_work()
    bench.step(events.RebalanceBegun())
    assign = only(bench.elected([WorkerMetadata(OTHER_URL, 0)], EAGER), events.Assign)
    for data in assign.assignments.values():
        assignment = decode_assignment(data)
        assert (assignment.error, bool(assignment.assigned)) == (CONFIG_MISMATCH, False)
    effects = bench.joined(leader="ours", protocol=EAGER, error=CONFIG_MISMATCH)
    assert only(effects, events.StopWork) == events.StopWork(("c",), TASKS)
    read = only(effects, events.ReadConfig)
    only(bench.step(events.ConfigRead(read.token, ok=True)), events.Join)
    assign = only(bench.elected([WorkerMetadata(OTHER_URL, 0)], EAGER), events.Assign)
    assert all(decode_assignment(data).assigned for data in assign.assignments.values())


def test_a_delay_ends_in_another_round() -> None:
    bench = at_work()
    bench.step(events.RebalanceBegun())
    bench.joined(delay_ms=5_000)
    assert bench.herder.next_deadline_ms() == bench.now_ms + 5_000
    assert bench.tick(4_999) == []
    only(bench.tick(1), events.Join)


def test_work_that_is_assigned_and_not_configured_any_more_is_not_started() -> None:
    bench = ready_bench(connectors="c")
    effects = bench.joined(Allocation(("c", "gone"), TASKS))
    assert effects == [events.StartConnector("c", TargetState.STARTED)]


def test_records_that_share_out_nothing_do_not_ask_for_another_round() -> None:
    bench = at_work()
    bench.record(("what", b"{}"))
    assert "the key is unknown" in bench.said[0].line
    bench.step(events.RebalanceBegun())
    behind = bench.herder.snapshot.offset
    bench.key()
    assert none(bench.joined(offset=behind), events.Join)
    assert bench.herder.mode is HerderMode.MEMBER


def test_who_is_behind_reads_before_it_starts_anything() -> None:
    bench = ready_bench()
    read = only(bench.joined(Allocation(("c",)), offset=2), events.ReadConfig)
    assert read.timeout_ms == 3_000
    assert bench.connector() == []
    assert bench.step(events.ConfigRead(read.token, ok=True)) == [events.StartConnector("c", TargetState.STARTED)]


def test_who_cannot_read_stops_leaves_and_comes_back_later_and_later() -> None:
    bench = at_work()
    bench.step(events.RebalanceBegun())
    read = only(bench.joined(offset=99), events.ReadConfig)
    effects = bench.step(events.ConfigRead(read.token, ok=False))
    assert kinds(effects) == ["StopWork", "Leave"]
    assert bench.herder.leader_url is None
    pauses = []
    for _ in range(6):
        deadline_ms = bench.herder.next_deadline_ms()
        assert deadline_ms is not None
        pauses.append(deadline_ms - bench.now_ms)
        read = only(bench.tick(pauses[-1]), events.ReadConfig)
        assert none(bench.step(events.ConfigRead(read.token, ok=False)), events.Leave)
    assert pauses == [6_000, 7_500, 10_000, 15_000, 30_000, 6_000]
    read = only(bench.tick(7_500), events.ReadConfig)
    only(bench.step(events.ConfigRead(read.token, ok=True)), events.Join)
    assert bench.claimed().allocation == Allocation()


def test_eager_members_come_back_after_the_unsync_backoff() -> None:
    bench = ready_bench(worker_config(connect_protocol="eager", worker_unsync_backoff_ms="1234"))
    read = only(bench.joined(offset=99, protocol=EAGER), events.ReadConfig)
    bench.step(events.ConfigRead(read.token, ok=False))
    assert bench.herder.next_deadline_ms() == bench.now_ms + 1_234


@pytest.mark.parametrize("reads", [True, False])
def test_a_leader_that_is_behind_another_member_reads_first(reads: bool) -> None:
    bench = ready_bench()
    read = only(bench.elected([WorkerMetadata(OTHER_URL, 2)]), events.ReadConfig)
    if reads:
        bench.connector()
    assign = only(bench.step(events.ConfigRead(read.token, ok=reads)), events.Assign)
    assignments = [decode_assignment(data) for data in assign.assignments.values()]
    assert {each.config_offset for each in assignments} == {2}
    assert {each.error for each in assignments} == {0 if reads else CONFIG_MISMATCH}
    assert sum(len(each.assigned.connectors) for each in assignments) == reads
    assert {(each.leader, each.leader_url) for each in assignments} == {("ours", URL)}


@pytest.mark.parametrize("event", [events.LeaseLost(), events.MembershipLost("UNKNOWN_MEMBER_ID")])
def test_whoever_may_have_been_dropped_stops_at_once_and_joins_with_nothing(event: events.Event) -> None:
    bench = at_work()
    effects = bench.step(event)
    assert kinds(effects) == ["StopWork", "Join"]
    assert only(effects, events.StopWork) == events.StopWork(("c",), TASKS)
    assert bench.claimed().allocation == Allocation()
    assert (bench.herder.is_leader, bench.herder.leader_url, bench.herder.assignment) == (False, None, Allocation())


def test_a_join_under_way_does_not_claim_what_was_stopped_meanwhile() -> None:
    bench = at_work()
    stale = only(bench.step(events.RebalanceBegun()), events.Join)
    assert kinds(bench.step(events.LeaseLost())) == ["StopWork", "Join"]
    assert bench.joined(token=stale.token) == []
    assert bench.herder.mode is HerderMode.JOINING
    assert bench.joined(Allocation(("c",))) == [events.StartConnector("c", TargetState.STARTED)]


def test_rounds_that_come_to_nothing_follow_each_other_with_pauses() -> None:
    """The topic may have been made anew, or a member say what it likes."""
    bench = at_work()
    bench.step(events.RebalanceBegun())
    assert kinds(bench.joined(error=CONFIG_MISMATCH)) == ["Join"]
    for _ in range(3):
        assert bench.joined(error=CONFIG_MISMATCH) == []
        assert bench.herder.next_deadline_ms() == bench.now_ms + 250
        assert bench.tick(249) == []
        assert kinds(bench.tick(1)) == ["Join"]
    bench.joined()
    bench.step(events.RebalanceBegun())
    assert kinds(bench.joined(error=CONFIG_MISMATCH)) == ["Join"]


def test_a_change_that_the_assignment_does_not_know_asks_for_another_round_before_anything_starts() -> None:
    bench = at_work()
    bench.step(events.RebalanceBegun())
    behind = bench.herder.snapshot.offset
    bench.connector("d")
    assert kinds(bench.joined(Allocation(("d",)), offset=behind)) == ["Join"]


def test_assignments_that_cannot_be_read_are_asked_for_again_with_pauses() -> None:
    bench = at_work()
    bench.step(events.RebalanceBegun())
    garbage = events.Joined(bench.joining().token, 9, "ours", "other", SESSIONED, b"?")
    assert kinds(bench.step(garbage)) == ["Join"]
    assert bench.step(replace(garbage, token=bench.joining().token)) == []
    assert kinds(bench.tick(250)) == ["Join"]


def test_a_name_too_long_for_the_protocol_is_left_out_and_the_others_have_workers() -> None:
    bench = Bench()
    bench.connector()
    bench.connector("x" * 32_768)
    bench.tasks([{"n": "0"}], "x" * 32_768)
    bench.connector("y" * 32_767)
    bench.ready()
    assign = only(bench.elected(), events.Assign)
    assert decode_assignment(assign.assignments["ours"]).assigned == Allocation(("c", "y" * 32_767))


def test_a_config_topic_that_begins_anew_takes_all_work_until_it_is_read() -> None:
    bench = Bench()
    bench.connector("gone")
    bench.connector()
    bench.tasks([{"n": "0"}])
    bench.ready()
    bench.lead()
    assert bench.herder.running.connectors == {"c", "gone"}
    bench.connector("new")
    bench.lead()
    assert kinds(bench.step(events.ConfigLogReset())) == ["StopWork", "Leave"]
    assert (bench.herder.mode, bench.herder.snapshot.connectors()) == (HerderMode.AWAY, ())
    bench.offset = 0
    history = (restart_record(RestartRequest("c", False, True)), logger_record("root", "DEBUG"))
    assert bench.connector(config={"name": "c", "v": "2"}) + bench.record(*history) == []
    read = only(bench.tick(250), events.ReadConfig)
    assert kinds(bench.step(events.ConfigRead(read.token, ok=True))) == ["Join"]
    assert [said.level for said in bench.said] == ["error"]
    assert "2 connectors are no longer in the config topic and were stopped: gone, new; if" in bench.said[0].line
    assert bench.claimed().config_offset == 3
    bench.lead()
    assert bench.herder.running.freeze() == Allocation(("c",))
    assert not bench.herder.rebalance_expected
    # What comes from now on is news again.
    assert only(bench.record(logger_record("root", "INFO")), events.SetLevel).level == "INFO"


def test_a_leader_ends_its_write_before_it_joins_a_round() -> None:
    bench = leading_bench(connectors="")
    effects = bench.ask(events.PutConnector("c", {}, None, True, "source"))
    assert bench.step(events.RebalanceBegun()) == []
    assert bench.herder.next_deadline_ms() == bench.now_ms + 50_000
    assert kinds(bench.wrote(effects)) == ["Reply", "Join"]


def test_whoever_writes_for_too_long_stops_before_the_coordinator_drops_it() -> None:
    bench = leading_bench(worker_config(rebalance_timeout_ms="15000", worker_lease_ms="10000"))
    effects = bench.ask(events.PutConnector("d", {}, None, True, "source"))
    bench.step(events.RebalanceBegun())
    assert bench.tick(4_999) == []
    assert kinds(bench.tick(1)) == ["StopWork"]
    write = only(effects, events.WriteConfig)
    effects = bench.step(events.ConfigWritten(write.token, TimeoutError("too late")))
    assert kinds(effects) == ["Reply", "Join"]


def test_a_new_leader_claims_the_writer_and_cleans_the_statuses() -> None:
    bench = Bench()
    bench.connector()
    bench.tasks([{"n": "0"}])
    for item in ("c", TaskId("c", 0), TaskId("c", 1), "gone", TaskId("gone", 0), TaskId("half", 3)):
        bench.statuses.apply(*status_record(item, Status(State.UNASSIGNED, "w", 1)))
    bench.ready()
    effects = bench.lead()
    cleaned = [
        effect.work for effect in effects if isinstance(effect, events.WriteStatus) and effect.state is State.DESTROYED
    ]
    assert cleaned == [TaskId("c", 1), "gone", TaskId("gone", 0), TaskId("half", 3)]
    only(effects, events.ClaimWriter)
    assert none(at_work().joined(), events.WriteStatus)


def test_stopping_stops_refuses_and_leaves() -> None:
    bench = at_work()
    bench.step(events.RebalanceBegun())
    assert bench.ask(events.RestartConnector("c")) == []
    effects = bench.step(events.Stopping())
    assert kinds(effects) == ["StopWork", "Reply", "Leave"]
    assert bench.herder.is_stopping
    assert str(only(effects, events.Reply).error) == "Worker is shutting down"
    assert str(only(bench.ask(events.RestartConnector("c")), events.Reply).error) == "Worker is shutting down"
    assert bench.step(events.Stopping()) == []
    assert bench.joined() == []


@pytest.mark.parametrize("protocol", ["sessioned", "compatible"])
def test_the_leader_of_a_sessioned_group_makes_a_key(protocol: str) -> None:
    bench = Bench(worker_config(connect_protocol=protocol))
    bench.step(events.Ready())
    name = SESSIONED if protocol == "sessioned" else COMPATIBLE
    assign = only(bench.elected(protocol=name), events.Assign)
    assert decode_assignment(assign.assignments["ours"]).error == 0
    effects = bench.joined(leader="ours", protocol=name)
    missing = Signature(None, None, b"")
    if protocol == "compatible":
        assert none(effects, events.MakeSessionKey)
        bench.herder.check_signature(missing)
        assert bench.herder.signer() is None
        with pytest.raises(Forbidden):
            bench.herder.check_forwarded(missing)
        return
    assert only(effects, events.MakeSessionKey).size == 32
    effects = bench.step(events.SessionKeyMade(b"k" * 32))
    assert only(effects, events.WriteConfig).steps[0][0][0] == "session-key"
    assert bench.wrote(effects) == []
    with pytest.raises(BadRequest):
        bench.herder.check_signature(missing)
    sign = bench.herder.signer()
    assert sign is not None
    headers = sign(b"x")
    bench.herder.check_forwarded(Signature(headers[SIGNATURE_HEADER], headers[ALGORITHM_HEADER], b"x"))
    assert bench.herder.next_deadline_ms() == bench.now_ms + 3_600_000
    only(bench.tick(3_600_000), events.MakeSessionKey)


def test_a_key_that_cannot_be_written_is_tried_again_after_a_read() -> None:
    bench = Bench()
    bench.step(events.Ready())
    bench.lead()
    write = only(bench.step(events.SessionKeyMade(b"k" * 32)), events.WriteConfig)
    effects = bench.step(events.ConfigWritten(write.token, OSError("no")))
    read = only(effects, events.ReadConfig)
    effects = bench.step(events.ConfigRead(read.token, ok=True))
    # The writer may be somebody else's by now.
    assert kinds(effects) == ["ClaimWriter"]
    assert bench.herder.next_deadline_ms() == bench.now_ms + 250
    assert bench.tick(249) == []
    assert kinds(bench.tick(1)) == ["MakeSessionKey"]
    write = only(bench.step(events.SessionKeyMade(b"k" * 32)), events.WriteConfig)
    read = only(bench.step(events.ConfigWritten(write.token, OSError("no"))), events.ReadConfig)
    assert kinds(bench.step(events.ConfigRead(read.token, ok=False))) == ["Leave"]


def test_a_member_that_cannot_be_read_does_not_stop_the_others() -> None:
    bench = ready_bench(connectors="c")
    members = {"ours": dict(bench.joining().protocols)[SESSIONED], "odd": b"\x00"}
    assign = only(bench.step(events.LeaderElected(SESSIONED, "ours", members)), events.Assign)
    assert list(assign.assignments) == ["ours"]
    assert decode_assignment(assign.assignments["ours"]).assigned == Allocation(("c",))


# -- two workers under one address -------------------------------------------------------------------------------------


def warned(bench: Bench) -> list[str]:
    """Return the warnings of the last step that name the setting."""
    return [one.line for one in bench.said if one.level == "warning" and "rest.advertised.host.name" in one.line]


def test_a_leader_warns_once_of_a_member_with_its_own_address() -> None:
    bench = ready_bench()
    bench.elected([WorkerMetadata(OTHER_URL, 0)])
    assert warned(bench) == []
    bench.elected([WorkerMetadata(OTHER_URL, 0), WorkerMetadata(URL, 0)])
    (line,) = warned(bench)
    assert URL in line
    bench.elected([WorkerMetadata(URL, 0)])
    assert warned(bench) == []


def test_a_member_warns_of_a_leader_with_its_own_address() -> None:
    bench = ready_bench()
    bench.joined(leader_url=URL)
    assert len(warned(bench)) == 1


@pytest.mark.parametrize("protocol", [EAGER, SESSIONED])
def test_a_leader_gives_java_members_the_classes_that_it_does_not_have(protocol: str) -> None:
    bench = Bench(worker_config(connect_protocol="eager" if protocol == EAGER else "sessioned"))
    bench.herder.can_run = lambda config: config["connector.class"] != "JavaSink"
    bench.connector("j", {"connector.class": "JavaSink", "name": "j"})
    bench.connector("p")
    bench.ready()
    java, ours = WorkerMetadata("http://java/", 2), WorkerMetadata("http://second/", 2, lease_ms=5_000)
    assign = only(bench.elected([java, ours], protocol), events.Assign)
    got = {member: decode_assignment(data).assigned.connectors for member, data in assign.assignments.items()}
    assert "j" in got["other0"]
    assert "j" not in got["ours"] + got["other1"]
    assert bench.herder.java_urls == ("http://java/",)
