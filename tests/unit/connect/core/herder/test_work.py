"""Requests, changes of the config topic, and task configs on their way there."""

import pytest

from connect.core import herder_api
from connect.core.config.connector_settings import ENABLED
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import logger_record, restart_record
from connect.core.errors import NotRunning, TooManyTasks
from connect.core.herder import events
from connect.core.herder.membership import COMPATIBLE, NOTHING, Allocation, WorkerMetadata
from connect.core.model import ConnectorStateInfo, RestartRequest, State, Status, TargetState, TaskId
from connect.core.status_and_offset_topics import status_record
from tests.kit.herding import CONFIG, OTHER_URL, Bench, error_of, kinds, leading_bench, none, only, ready_bench
from tests.kit.work import worker_config

TASKS = (TaskId("c", 0), TaskId("c", 1))
ONE = ({"n": "0"},)
TWO = ({"n": "0"}, {"n": "1"})


def leading() -> Bench:
    """Alone, with one connector of two tasks, all of it started."""
    return leading_bench(tasks=2)


def following(assigned: Allocation = NOTHING, config: WorkerConfig | None = None) -> Bench:
    bench = ready_bench(config, "c", tasks=2)
    bench.joined(assigned)
    return bench


ALL = Allocation(("c",), TASKS)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (events.PutConnector("c", CONFIG, None, True, "source"), "Only the leader can set connector configs."),
        (events.DeleteConnector("c"), "Only the leader can delete connector configs."),
        (
            events.SetTargetState("c", TargetState.STOPPED),
            "Only the leader can transition connectors to the STOPPED state.",
        ),
        (events.RestartConnector("c"), "Only the leader can process restart requests."),
        (events.RestartTask(TASKS[0]), "Cannot restart task since it is not assigned to this member"),
        (events.Restart(RestartRequest("c")), "Only the leader can process restart requests."),
        (events.PutTaskConfigs("c", ()), "Only the leader may write task configurations."),
        (events.CheckOffsets("c"), "Only the leader can process external offsets modification requests"),
        (events.CheckFence("c"), "Only the leader may perform zombie fencing."),
        (events.PutTaskCount("c", 2, 0), "Only the leader may perform zombie fencing."),
    ],
)
def test_what_only_the_leader_can_do_names_it(operation: events.HerderOperation, message: str) -> None:
    refusal = error_of(following().ask(operation))
    assert isinstance(refusal, herder_api.NotLeader)
    assert (str(refusal), refusal.url) == (message, OTHER_URL)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (events.DeleteConnector("x"), "Connector x not found"),
        (events.SetTargetState("x", TargetState.PAUSED), "Unknown connector x"),
        (events.SetTargetState("x", TargetState.STOPPED), "Unknown connector x"),
        (events.RestartConnector("x"), "Unknown connector: x"),
        (events.RestartTask(TaskId("x", 0)), "Unknown connector: x"),
        (events.RestartTask(TaskId("c", 2)), "Unknown task: c-2"),
        (events.Restart(RestartRequest("x")), "Unknown connector: x"),
        (events.Restart(RestartRequest("c")), "Status for connector c not found"),
        (events.PutTaskConfigs("x", ()), "Connector x not found"),
        (events.CheckFence("x"), "Connector x not found"),
        (events.PutTaskCount("x", 2, 0), "Connector x not found"),
    ],
)
def test_what_is_not_there_is_not_found(operation: events.HerderOperation, message: str) -> None:
    refusal = error_of(leading().ask(operation))
    assert isinstance(refusal, herder_api.NotFound)
    assert str(refusal) == message


def test_a_new_connector_is_written_with_its_target_first_and_answered_once_it_is_there() -> None:
    bench = leading()
    effects = bench.ask(events.PutConnector("d", {"a": "b"}, TargetState.PAUSED, False, "source"))
    (step,) = only(effects, events.WriteConfig).steps
    assert [key for key, _ in step] == ["target-state-d", "connector-d"]
    assert none(effects, events.Reply)
    effects = bench.wrote(effects)
    put = only(effects, events.Reply).value
    assert isinstance(put, herder_api.Put)
    assert put.created
    assert (put.info.name, put.info.config, put.info.tasks, put.info.type) == ("d", {"a": "b"}, (), "source")
    only(effects, events.Join)


def test_a_connector_that_is_there_is_replaced_only_where_that_is_meant() -> None:
    bench = leading()
    refusal = error_of(bench.ask(events.PutConnector("c", CONFIG, None, False, "source")))
    assert isinstance(refusal, herder_api.AlreadyExists)
    assert str(refusal) == "Connector c already exists"
    effects = bench.wrote(bench.ask(events.PutConnector("c", {"x": "y"}, None, True, "source")))
    put = only(effects, events.Reply).value
    assert (put.created, put.info.tasks) == (False, TASKS)
    # Nothing is to be shared out anew, so the instance alone restarts.
    assert kinds(effects) == ["StopWork", "StartConnector", "Reply"]


def test_a_connector_is_deleted_with_its_target() -> None:
    bench = leading()
    effects = bench.ask(events.DeleteConnector("c"))
    assert only(effects, events.WriteConfig).steps == ((("connector-c", None), ("target-state-c", None)),)
    assert kinds(bench.wrote(effects)) == ["Reply", "Join"]


def test_a_connector_loses_its_tasks_before_it_is_stopped() -> None:
    bench = leading()
    effects = bench.ask(events.SetTargetState("c", TargetState.STOPPED))
    write = only(effects, events.WriteConfig)
    assert [[key for key, _ in step] for step in write.steps] == [["commit-c"], ["target-state-c"]]
    assert write.as_leader
    effects = bench.wrote(effects)
    assert kinds(effects) == ["StopWork", "ChangeTarget", "Reply", "Join"]
    assert only(effects, events.StopWork) == events.StopWork((), TASKS)


def test_anybody_pauses_at_any_time() -> None:
    bench = following(ALL)
    bench.step(events.RebalanceBegun())
    effects = bench.ask(events.SetTargetState("c", TargetState.PAUSED))
    assert not only(effects, events.WriteConfig).as_leader
    effects = bench.wrote(effects)
    assert effects == [events.ChangeTarget("c", TargetState.PAUSED), events.Reply(1)]
    write = only(bench.ask(events.SetLogger("root", "DEBUG")), events.WriteConfig)
    assert write.steps == ((logger_record("root", "DEBUG"),),)


def test_a_failed_write_is_answered_and_the_writer_claimed_anew() -> None:
    bench = leading()
    write = only(bench.ask(events.DeleteConnector("c")), events.WriteConfig)
    refused = OSError("fenced off")
    effects = bench.step(events.ConfigWritten(write.token, refused))
    assert error_of(effects) is refused
    assert kinds(effects) == ["Reply", "ClaimWriter"]
    assert kinds(bench.ask(events.DeleteConnector("c"))) == ["WriteConfig"]


def test_requests_wait_for_the_round_and_one_round_is_for_all_of_them() -> None:
    bench = leading()
    bench.step(events.RebalanceBegun())
    for name in ("d", "e", "f"):
        assert bench.ask(events.PutConnector(name, {}, None, True, "source")) == []
    effects = bench.lead()
    for _ in range(2):
        effects = bench.wrote(effects)
        assert none(effects, events.Join)
        assert bench.herder.rebalance_expected
    assert kinds(bench.wrote(effects)) == ["Reply", "Join"]
    assert not bench.herder.rebalance_expected


def test_a_round_is_not_put_off_for_ever() -> None:
    bench = leading()
    effects = bench.ask(events.PutConnector("d", {}, None, True, "source"))
    bench.ask(events.PutConnector("e", {}, None, True, "source"))
    write = only(effects, events.WriteConfig)
    bench.record(*write.steps[0])
    bench.now_ms += 1_000
    assert kinds(bench.step(events.ConfigWritten(write.token))) == ["Reply", "Join"]


def test_while_a_round_is_due_what_depends_on_it_is_refused() -> None:
    bench = leading()
    effects = bench.ask(events.PutConnector("d", {}, None, True, "source"))
    bench.ask(events.RestartConnector("c"))
    replies = [effect.error for effect in bench.wrote(effects) if isinstance(effect, events.Reply)]
    assert [type(error) for error in replies] == [type(None), herder_api.RebalanceExpected]


def test_a_request_that_was_withdrawn_is_not_begun() -> None:
    bench = leading()
    bench.step(events.RebalanceBegun())
    bench.ask(events.DeleteConnector("c"))
    effects = bench.withdraw()
    assert "timed out" in str(error_of(effects))
    assert none(bench.lead(), events.WriteConfig)
    effects = bench.ask(events.DeleteConnector("c"))
    assert bench.withdraw() == []
    assert only(bench.wrote(effects), events.Reply).error is None


def test_task_configs_of_another_worker() -> None:
    bench = leading()
    effects = bench.ask(events.PutTaskConfigs("c", ONE))
    write = only(effects, events.WriteConfig)
    assert [[key for key, _ in step] for step in write.steps] == [["task-c-0"], ["commit-c"]]
    assert only(bench.wrote(effects), events.Reply).error is None
    bench.lead()
    bench.wrote(bench.ask(events.SetTargetState("c", TargetState.STOPPED)))
    bench.lead()
    refusal = error_of(bench.ask(events.PutTaskConfigs("c", ONE)))
    assert isinstance(refusal, herder_api.BadRequest)
    assert str(refusal) == "Cannot submit non-empty set of task configs for stopped connector c"


def test_tasks_are_counted_only_while_they_are_the_same() -> None:
    bench = leading()
    write = only(bench.ask(events.PutTaskCount("c", 2, 0)), events.WriteConfig)
    assert write.steps[0][0][0] == "tasks-fencing-c"
    bench.step(events.ConfigWritten(write.token))
    assert isinstance(error_of(bench.ask(events.PutTaskCount("c", 2, 7))), herder_api.RequestConflict)


def test_offsets_are_checked_after_a_read() -> None:
    bench = leading()
    read = only(bench.ask(events.CheckOffsets("c")), events.ReadConfig)
    refusal = error_of(bench.step(events.ConfigRead(read.token, ok=True)))
    assert isinstance(refusal, herder_api.BadRequest)
    assert "must be in the STOPPED state" in str(refusal)
    read = only(bench.ask(events.CheckOffsets("x")), events.ReadConfig)
    assert isinstance(error_of(bench.step(events.ConfigRead(read.token, ok=True))), herder_api.NotFound)
    bench.wrote(bench.ask(events.SetTargetState("c", TargetState.STOPPED)))
    bench.lead()
    read = only(bench.ask(events.CheckOffsets("c")), events.ReadConfig)
    assert only(bench.step(events.ConfigRead(read.token, ok=True)), events.Reply).error is None
    read = only(bench.ask(events.CheckOffsets("c")), events.ReadConfig)
    effects = bench.step(events.ConfigRead(read.token, ok=False))
    assert "Failed to read to end of config topic" in str(error_of(effects))
    only(effects, events.ReadConfig)


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_restarted_connector_answers_when_it_has_started() -> None:
    bench = leading()
    effects = bench.ask(events.RestartConnector("c"))
    assert effects == [events.StopWork(("c",), ()), events.StartConnector("c", TargetState.STARTED)]
    assert only(bench.step(events.TaskConfigsWanted("c")), events.Reply) == events.Reply(1)
    bench.ask(events.RestartConnector("c"))
    assert str(error_of(bench.step(events.ConnectorFailed("c")))) == "Failed to start connector: c"
    bench.ask(events.RestartConnector("c"))
    assert isinstance(error_of(bench.step(events.LeaseLost())), herder_api.RequestConflict)
    paused = leading()
    paused.target(TargetState.PAUSED)
    assert only(paused.ask(events.RestartConnector("c")), events.Reply).error is None


def test_a_task_is_restarted_where_it_runs() -> None:
    bench = following(ALL)
    assert bench.ask(events.RestartTask(TASKS[1])) == [
        events.StopWork((), TASKS[1:]),
        events.StartTask(TASKS[1], TargetState.STARTED),
        events.Reply(1),
    ]


def test_the_leader_names_the_owner() -> None:
    bench = ready_bench(connectors="c", tasks=2)
    bench.lead(WorkerMetadata(OTHER_URL, 0))
    elsewhere = next(task for task in TASKS if task not in bench.herder.assignment.tasks)
    refusal = error_of(bench.ask(events.RestartTask(elsewhere)))
    assert isinstance(refusal, herder_api.NotAssigned)
    assert refusal.url == OTHER_URL


def with_statuses(bench: Bench, failed: tuple[str | TaskId, ...] = ()) -> Bench:
    for item in ("c", *TASKS):
        state = State.FAILED if item in failed else State.RUNNING
        bench.statuses.apply(*status_record(item, Status(state, "w", 1)))
    return bench


def test_a_restart_is_spread_by_the_config_topic_and_shown() -> None:
    bench = with_statuses(leading())
    request = RestartRequest("c", only_failed=False, include_tasks=True)
    effects = bench.ask(events.Restart(request))
    assert only(effects, events.WriteConfig).steps == ((restart_record(request),),)
    effects = bench.wrote(effects)
    shown = only(effects, events.Reply).value
    assert isinstance(shown, ConnectorStateInfo)
    assert {shown.connector.state, *(each.state for each in shown.tasks.values())} == {State.RESTARTING}
    assert kinds(effects) == ["Reply", "StopWork", *["WriteStatus"] * 3, "StartConnector", *["StartTask"] * 2]
    assert only(effects, events.StopWork) == events.StopWork(("c",), TASKS)


def test_each_worker_restarts_what_it_runs_of_the_plan() -> None:
    bench = with_statuses(following(Allocation((), TASKS[1:])), failed=TASKS)
    effects = bench.record(restart_record(RestartRequest("c", only_failed=True, include_tasks=True)))
    assert effects == [
        events.StopWork((), TASKS[1:]),
        events.WriteStatus(TASKS[1], State.RESTARTING),
        events.StartTask(TASKS[1], TargetState.STARTED),
    ]
    bench = with_statuses(following(ALL))
    assert bench.record(restart_record(RestartRequest("c", only_failed=True, include_tasks=True))) == []


def test_of_several_restarts_that_wait_the_greatest_counts() -> None:
    bench = with_statuses(following(ALL))
    bench.step(events.RebalanceBegun())
    for only_failed, include_tasks in ((True, False), (False, True), (True, True)):
        assert bench.record(restart_record(RestartRequest("c", only_failed, include_tasks))) == []
    assert only(bench.joined(), events.StopWork) == events.StopWork(("c",), TASKS)


# -- changes -----------------------------------------------------------------------------------------------------------


def test_under_exactly_once_committed_tasks_stop_the_old_ones_and_the_next_round_starts_what_stays_ours() -> None:
    bench = following(ALL, worker_config(exactly_once_source_support="enabled"))
    effects = bench.tasks(ONE)
    assert effects == [events.StopWork((), TASKS), bench.joining()]
    effects = bench.joined(revoked=Allocation((), TASKS[1:]))
    assert kinds(effects) == ["StartTask", "Join"]
    assert only(effects, events.StartTask) == events.StartTask(TASKS[0], TargetState.STARTED)


def test_committed_tasks_are_offered_to_those_that_run_and_what_is_no_task_any_more_stops() -> None:
    bench = following(ALL)
    effects = bench.tasks(ONE)
    assert effects == [events.StopWork((), TASKS[1:]), events.ReconfigureTasks(TASKS[:1]), bench.joining()]
    effects = bench.joined(revoked=Allocation((), TASKS[1:]))
    assert kinds(effects) == ["Join"], "the first one runs on"


def test_a_refusal_that_is_heard_of_after_the_round_restarts_what_is_still_ours() -> None:
    bench = following(ALL)
    bench.tasks(TWO)
    bench.joined()
    effects = bench.step(events.ReconfigurationRefused(TASKS))
    assert effects == [events.StopWork((), TASKS), *(events.StartTask(task, TargetState.STARTED) for task in TASKS)]
    bench.step(events.LeaseLost())
    assert bench.step(events.ReconfigurationRefused(TASKS)) == []


def test_a_changed_target_reaches_those_who_run_something_of_it() -> None:
    assert following(Allocation((), TASKS[:1])).target(TargetState.PAUSED) == [
        events.ChangeTarget("c", TargetState.PAUSED)
    ]
    assert following().target(TargetState.PAUSED) == []


# -- task configs ------------------------------------------------------------------------------------------------------


def computed(bench: Bench, configs: tuple[dict[str, str], ...] = (), error: Exception | None = None) -> list:
    return answered(bench, bench.step(events.TaskConfigsWanted("c")), configs, error)


def answered(
    bench: Bench, effects: list, configs: tuple[dict[str, str], ...] = (), error: Exception | None = None
) -> list:
    """The connector answers what it is asked among ``effects``."""
    asked = only(effects, events.ComputeTaskConfigs)
    return bench.step(events.TaskConfigsComputed(asked.token, "c", configs, error))


@pytest.mark.parametrize("configs", [ONE, (*TWO, {"n": "2"}), ({"n": "0"}, {"n": "9"}), ()])
def test_changed_tasks_are_written_by_the_leader(configs: tuple[dict[str, str], ...]) -> None:
    bench = leading()
    effects = computed(bench, configs)
    keys = [[key for key, _ in step] for step in only(effects, events.WriteConfig).steps]
    assert keys[-1] == ["commit-c"]
    assert [key for step in keys[:-1] for key in step] == [f"task-c-{n}" for n in range(len(configs))]
    kept = TASKS[: len(configs)]
    expected = [*["StopWork"] * (len(kept) < len(TASKS)), *["ReconfigureTasks"] * bool(kept), "Join"]
    assert kinds(bench.wrote(effects)) == expected


def test_tasks_are_written_anew_for_a_changed_connector_although_they_look_the_same() -> None:
    bench = leading()
    bench.connector("c", {"x": "y"})
    only(computed(bench, TWO), events.WriteConfig)


def test_tasks_of_a_connector_that_is_not_to_run_are_not_asked_for() -> None:
    bench = leading()
    bench.target(TargetState.PAUSED)
    assert bench.step(events.TaskConfigsWanted("c")) == []
    assert following().step(events.TaskConfigsWanted("c")) == []


def test_a_follower_sends_them_to_the_leader_and_tries_again_for_ever() -> None:
    bench = following(ALL)
    sent = only(computed(bench, ONE), events.SendTaskConfigs)
    assert (sent.leader_url, sent.name, sent.configs) == (OTHER_URL, "c", ONE)
    # One at a time.
    assert bench.step(events.TaskConfigsWanted("c")) == []
    effects = bench.step(events.TaskConfigsSent(sent.token, "c"))
    pauses = []
    for _ in range(10):
        sent = only(answered(bench, effects, ONE), events.SendTaskConfigs)
        bench.step(events.TaskConfigsSent(sent.token, "c", OSError("no")))
        deadline_ms = bench.herder.next_deadline_ms()
        assert deadline_ms is not None
        pauses.append(deadline_ms - bench.now_ms)
        effects = bench.tick(pauses[-1])
    assert pauses == [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_without_internal_rest_they_wait() -> None:
    bench = Bench(worker_config(connect_protocol="compatible"))
    bench.connector()
    bench.step(events.Ready())
    bench.joined(Allocation(("c",)), protocol=COMPATIBLE, leader_url="NOTUSED")
    assert none(computed(bench, ONE), events.SendTaskConfigs)
    assert bench.herder.next_deadline_ms() == bench.now_ms + 250


@pytest.mark.parametrize(
    ("error", "levels"), [(ValueError("not now"), ["error"] * 2), (NotRunning("it starts"), ["debug", "info"])]
)
def test_a_connector_that_cannot_say_its_tasks_is_asked_again(error: Exception, levels: list[str]) -> None:
    """One that starts may want them before it has started, which is no error (Kafka ``reconfigureConnector``)."""
    bench = leading()
    assert computed(bench, error=error) == []
    said = [*bench.said]
    assert answered(bench, bench.tick(250), error=error) == []
    assert [each.level for each in (*said, *bench.said)] == levels


def test_too_many_tasks_are_the_end_of_it() -> None:
    bench = leading()
    error = TooManyTasks("lines", 3, 2)
    assert computed(bench, error=error) == [events.FailConnector("c", error)]
    deadline_ms = bench.herder.next_deadline_ms()
    assert deadline_ms is None or deadline_ms > bench.now_ms + 60_000


def test_tasks_that_another_leader_wrote_without_knowing_are_corrected() -> None:
    bench = leading()
    computed(bench, TWO)
    bench.tasks(ONE)
    bench.lead()
    assert bench.herder.next_deadline_ms() == bench.now_ms + 1_000
    only(answered(bench, bench.tick(1_000), TWO), events.WriteConfig)


def test_an_answer_of_an_instance_that_was_restarted_counts_for_nothing() -> None:
    bench = leading()
    old = bench.step(events.TaskConfigsWanted("c"))
    bench.connector("c", {"x": "y"})
    new = bench.step(events.TaskConfigsWanted("c"))
    assert answered(bench, old, ONE) == []
    assert answered(bench, new, error=ValueError("not now")) == []
    assert answered(bench, old, TWO) == []
    only(answered(bench, bench.tick(250), TWO), events.WriteConfig)


def test_tasks_that_reach_a_stopped_connector_are_taken_away() -> None:
    bench = leading()
    bench.target(TargetState.STOPPED)
    assert bench.herder.next_deadline_ms() == bench.now_ms + 1_000
    effects = bench.tick(1_000)
    assert [key for key, _ in only(effects, events.WriteConfig).steps[0]] == ["commit-c"]
    assert kinds(bench.wrote(effects)) == ["StopWork", "Join"]
    assert bench.herder.snapshot.task_count("c") == 0
    resumed = leading()
    resumed.target(TargetState.STOPPED)
    resumed.target(TargetState.STARTED)
    assert none(resumed.tick(1_000), events.WriteConfig)


def test_who_is_about_to_lead_answers_for_fencing_once_the_round_has_ended() -> None:
    bench = following()
    bench.step(events.RebalanceBegun())
    assert none(bench.ask(events.CheckFence("c")), events.Reply)
    assert only(bench.lead(), events.Reply).error is None


# -- automatic restarts ------------------------------------------------------------------------------------------------


def restarts(effects: list[events.Effect]) -> list[object]:
    """What of the effects stops, starts, or says RESTARTING."""
    return [
        each
        for each in effects
        if isinstance(each, events.StopWork | events.WriteStatus | events.StartTask | events.StartConnector)
    ]


def restarting() -> Bench:
    """As :func:`leading`, with automatic restarts."""
    bench = leading()
    bench.connector("c", {**CONFIG, ENABLED: "true"})
    return bench


def test_what_failed_is_restarted_once_its_pause_is_over() -> None:
    bench = restarting()
    bench.step(events.ScheduleAutoRestart(TASKS[1], 120_000))
    assert restarts(bench.tick(119_999)) == []
    assert bench.herder.next_deadline_ms() == bench.now_ms + 1
    assert restarts(bench.tick(1)) == [
        events.StopWork((), (TASKS[1],)),
        events.WriteStatus(TASKS[1], State.RESTARTING),
        events.StartTask(TASKS[1], TargetState.STARTED),
    ]
    assert restarts(bench.tick(1_000_000)) == []


def test_no_restart_follows_if_it_runs_again_or_is_stopped_or_is_elsewhere() -> None:
    bench = restarting()
    bench.step(events.ScheduleAutoRestart(TASKS[0], 1_000))
    bench.step(events.ScheduleAutoRestart(TASKS[0], None))
    bench.step(events.ScheduleAutoRestart(TASKS[1], 1_000))
    bench.ask(events.RestartTask(TASKS[1]))
    bench.step(events.ScheduleAutoRestart(TaskId("elsewhere", 0), 1_000))
    assert restarts(bench.tick(1_000)) == []


def test_a_restart_that_is_due_waits_for_no_config_that_forbids_it() -> None:
    bench = restarting()
    bench.step(events.ScheduleAutoRestart(TASKS[0], 1_000))
    bench.step(events.ScheduleAutoRestart(TASKS[1], 2_000))
    assert restarts(bench.tick(1_000)) != []
    bench.connector("c", {**CONFIG, ENABLED: "false"})
    assert restarts(bench.tick(1_000)) == []
    assert [each.line for each in bench.said] == [
        "c-1 was not restarted automatically: its connector's config no longer enables it"
    ]
    bench.connector("c", {**CONFIG, ENABLED: "true"})
    assert restarts(bench.tick(1_000_000)) == [], "the failure before is over"
