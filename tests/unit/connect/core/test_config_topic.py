"""The config topic: Java's bytes, each trap of the fold, and what compaction may do to a log that workers wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core import config_topic
from connect.core.herder_api import SessionKey
from connect.core.model import RestartRequest, TargetState, TaskId

STARTED, PAUSED, STOPPED = TargetState.STARTED, TargetState.PAUSED, TargetState.STOPPED
KEY = SessionKey(b"\x00\x01\x02" * 10, "HmacSHA256", 1_700_000_000_000)


def fold(log: config_topic.ConfigLog, *records: config_topic.Record) -> list[config_topic.ConfigChange]:
    return [change for key, value in records for change in log.apply(log.offset if log.offset >= 0 else 0, key, value)]


def folded(*records: config_topic.Record) -> config_topic.ConfigLog:
    log = config_topic.ConfigLog()
    assert not [change for change in fold(log, *records) if isinstance(change, config_topic.SkippedConfigRecord)]
    return log


def is_inconsistent(log: config_topic.ConfigLog, name: str) -> bool:
    return len(log.task_ids(name)) < log.task_count(name)


def tasks(name: str, *configs: dict[str, str]) -> list[config_topic.Record]:
    return [*config_topic.task_records(name, configs), config_topic.commit_record(name, len(configs))]


CONNECTOR = config_topic.connector_record("c", {"name": "c", "tasks.max": "2"})

# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (CONNECTOR, "connector-c", b'{"properties":{"name":"c","tasks.max":"2"}}'),
        (
            config_topic.connector_record("ä/1", {"x": 'a"\n\x01é'}),
            "connector-ä/1",
            rb'{"properties":{"x":"a\"\n\u0001',
        ),
        (config_topic.task_records("c", [{"a": "b"}])[0], "task-c-0", b'{"properties":{"a":"b"}}'),
        (config_topic.commit_record("c", 3), "commit-c", b'{"tasks":3}'),
        (config_topic.target_state_record("c", STARTED), "target-state-c", b'{"state":"STARTED","state.v2":"STARTED"}'),
        (config_topic.target_state_record("c", PAUSED), "target-state-c", b'{"state":"PAUSED","state.v2":"PAUSED"}'),
        (config_topic.target_state_record("c", STOPPED), "target-state-c", b'{"state":"PAUSED","state.v2":"STOPPED"}'),
        (config_topic.fencing_record("c", 0), "tasks-fencing-c", b'{"task-count":0}'),
        (
            config_topic.session_key_record(SessionKey(b"\xff\xfe\xfd", "HmacSHA256", 17)),
            "session-key",
            b'{"key":"//79","algorithm":"HmacSHA256","creation-timestamp":17}',
        ),
        (
            config_topic.restart_record(RestartRequest("c", only_failed=True)),
            "restart-connector-c",
            b'{"include-tasks":false,"only-failed":true}',
        ),
        (config_topic.logger_record("org.apache", "DEBUG"), "logger-cluster-org.apache", b'{"level":"DEBUG"}'),
    ],
)
def test_records_are_javas(record: config_topic.Record, key: str, value: bytes) -> None:
    assert record[0] == key
    assert record[1] is not None
    assert record[1].startswith(value)


# -- connectors and target states --------------------------------------------------------------------------------------


def test_a_target_state_that_is_the_same_is_no_change() -> None:
    log = folded(CONNECTOR)
    paused, started = config_topic.target_state_record("c", PAUSED), config_topic.target_state_record("c", STARTED)
    changes = [fold(log, record) for record in (started, paused, paused, started)]
    assert changes == [[], [config_topic.TargetChanged("c")], [], [config_topic.TargetChanged("c")]]


def test_a_target_state_that_vanishes_is_the_default_without_a_word() -> None:
    log = folded(CONNECTOR, config_topic.target_state_record("c", PAUSED))
    assert fold(log, ("target-state-c", None)) == []
    assert log.target_state("c") is STARTED


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b'{"state":"PAUSED"}', PAUSED),
        (b'{"state":"PAUSED","state.v2":"STOPPED"}', STOPPED),
        (b'{"state":"PAUSED","state.v2":null}', PAUSED),
        (b'{"state":"PAUSED","state.v2":7}', PAUSED),
        (b'{"state":"PAUSED","state.v2":"SLEEPING"}', STARTED),
        (b'{"state":null}', STARTED),
        (b'{"state":"SLEEPING"}', STARTED),
        (b"[]", STARTED),
    ],
)
def test_target_states_of_older_and_odd_workers(value: bytes, state: TargetState) -> None:
    log = folded(CONNECTOR)
    (change,) = log.apply(1, "target-state-c", value)
    assert isinstance(change, config_topic.SkippedConfigRecord if state is STARTED else config_topic.TargetChanged)
    assert log.target_state("c") is state


def test_a_removed_connector_leaves_nothing_to_run_and_no_wish_behind() -> None:
    log = folded(CONNECTOR, *tasks("c", {"a": "1"}), config_topic.target_state_record("c", PAUSED))
    assert fold(log, *config_topic.removal_records("c")) == [config_topic.ConnectorRemoved("c")]
    assert log.connectors() == ()
    assert log.task_ids("c") == ()
    fold(log, CONNECTOR)
    assert log.target_state("c") is STARTED
    assert (log.task_count("c"), log.task_ids("c"), log.applied_config("c")) == (0, (), None)


def test_names_with_dashes_and_prefixes_are_not_taken_apart() -> None:
    for name in ("commit-x-3", "task-1", "connector-", "-", "ü b/c-2"):
        log = folded(config_topic.connector_record(name, {}), *tasks(name, {"a": "0"}, {"a": "1"}))
        assert log.connectors() == (name,)
        assert log.task_ids(name) == (TaskId(name, 0), TaskId(name, 1))
        assert log.task_config(TaskId(name, 1)) == {"a": "1"}


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_the_applied_config_is_that_of_the_commit() -> None:
    log = folded(CONNECTOR, *tasks("c", {"a": "0"}), config_topic.connector_record("c", {"new": "yes"}))
    assert log.applied_config("c") == {"name": "c", "tasks.max": "2"}
    fold(log, *tasks("c", {"a": "0"}))
    assert log.applied_config("c") == {"new": "yes"}
    assert log.task_generation("c") == 1


def test_a_commit_whose_tasks_are_not_all_there_is_inconsistent_until_the_next() -> None:
    """Java's example: of two sets of two tasks compaction has taken the first's task 0."""
    first, second = config_topic.task_records("c", [{"a": "0"}, {"a": "1"}]), [{"b": "0"}, {"b": "1"}]
    log = config_topic.ConfigLog()
    assert fold(log, CONNECTOR, first[1], config_topic.commit_record("c", 2))[-1] == config_topic.TasksChanged("c")
    assert is_inconsistent(log, "c")
    assert (log.task_ids("c"), log.task_count("c"), log.task_generation("c")) == ((), 2, None)
    assert log.applied_config("c") is None
    # What was there of it is not mixed with what comes later.
    fold(log, config_topic.task_records("c", second)[0], config_topic.commit_record("c", 2))
    assert is_inconsistent(log, "c")
    fold(log, *tasks("c", *second))
    assert not is_inconsistent(log, "c")
    assert list(log.all_task_configs("c")) == second
    fold(log, config_topic.commit_record("c", 3))
    assert (log.task_ids("c"), log.task_count("c"), [*log.all_task_configs("c")]) == ((), 3, []), (
        "none of those that ran"
    )


def test_a_commit_of_a_connector_that_is_gone_is_passed_over() -> None:
    log = config_topic.ConfigLog()
    assert fold(log, *tasks("c", {"a": "0"})) == []
    assert not log.pending_fencing("c")
    fold(log, CONNECTOR, config_topic.commit_record("c", 1))
    assert is_inconsistent(log, "c")  # and the leftovers went with it


def test_fencing_is_due_after_each_commit_and_outlives_the_connector() -> None:
    log = folded(CONNECTOR, *tasks("c", {"a": "0"}))
    assert (log.pending_fencing("c"), log.task_count_record("c")) == (True, None)
    fold(log, config_topic.fencing_record("c", 1))
    assert (log.pending_fencing("c"), log.task_count_record("c")) == (False, 1)
    fold(log, *config_topic.removal_records("c"), CONNECTOR, *tasks("c", {"a": "0"}, {"a": "1"}))
    assert (log.pending_fencing("c"), log.task_count_record("c"), log.task_generation("c")) == (True, 1, 1)


def test_configs_of_many_tasks_share_their_texts() -> None:
    log = folded(CONNECTOR, *tasks("c", *({"topics": "orders-" + "x" * 50} for _ in range(2))))
    first, second = log.all_task_configs("c")
    assert first["topics"] is second["topics"]


# -- what passes by ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (config_topic.session_key_record(KEY), [config_topic.SessionKeyChanged()]),
        (
            ("restart-connector-c", b'{"include-tasks":true,"only-failed":true}'),
            [config_topic.RestartAsked(RestartRequest("c", only_failed=True, include_tasks=True))],
        ),
        (("restart-connector-c", b'{"include-tasks":"true"}'), [config_topic.RestartAsked(RestartRequest("c"))]),
        (config_topic.logger_record("a.b", "TRACE"), [config_topic.LoggerChanged("a.b", "TRACE")]),
        (("connector-c", b"null"), [config_topic.ConnectorRemoved("c")]),
        (("connector-c", b'{"properties":{"a":null,"b":"1"}}'), [config_topic.ConnectorChanged("c")]),
    ],
)
def test_what_single_records_change(record: config_topic.Record, changes: list[config_topic.ConfigChange]) -> None:
    log = config_topic.ConfigLog()
    assert fold(log, record) == changes
    assert log.session_key == (KEY if record[0] == "session-key" else None)
    # A null in a config is an absent key.
    assert log.connector_config("c") == ({"b": "1"} if changes == [config_topic.ConnectorChanged("c")] else None)


# -- what makes no sense -----------------------------------------------------------------------------------------------


NO_KEY = b'{"key":%s,"algorithm":"HmacSHA256","creation-timestamp":%s}'
NONSENSE: dict[str | None, list[bytes | None]] = {
    None: [b"{}"],
    "connector-c": [b"[]", b"{}", b'{"properties":{"a":7}}'],
    "task-c-0": [None, b'{"properties":[]}'],
    **{key: [b'{"properties":{}}'] for key in ("task-c", "task-c-x", "task-c-99999999999")},
    "commit-c": [None, b'{"tasks":"1"}', b'{"tasks":-1}', b'{"tasks":true}'],
    "tasks-fencing-c": [None, b'{"task-count":1.5}'],
    "session-key": [
        *(None, NO_KEY % (b'"!"', b"1"), NO_KEY % (b'""', b"1")),
        *(NO_KEY % (b'"AAAA"', b'"1"'), NO_KEY % (b'"AAAA"', b"9223372036854775808")),
    ],
    "restart-connector-c": [None],
    "logger-cluster-a": [b'{"level":7}'],
    "something": [b"{}"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in NONSENSE.items() for value in values])
def test_what_makes_no_sense_is_passed_over_and_said(key: str | None, value: bytes | None) -> None:
    log, same = folded(CONNECTOR, *tasks("c", {"a": "0"})), folded(CONNECTOR, *tasks("c", {"a": "0"}))
    (change,) = log.apply(5, key, value)
    assert isinstance(change, config_topic.SkippedConfigRecord)
    assert log.offset == 6
    same.offset = 6
    assert log == same


def test_a_value_that_is_no_json_does_not_move_the_offset() -> None:
    """Nor does it Java's: members that compare offsets would never agree."""
    log = folded(CONNECTOR)
    for value in (b"", b"{", b"\xff", b"[" * 100_000):
        assert isinstance(log.apply(9, "connector-d", value)[0], config_topic.SkippedConfigRecord)
    assert log.offset == 1


def test_a_wrong_value_is_not_quoted() -> None:
    (change,) = config_topic.ConfigLog().apply(
        0, "session-key", b'{"key":"top secret","algorithm":"A","creation-timestamp":1}'
    )
    assert isinstance(change, config_topic.SkippedConfigRecord)
    assert "top secret" not in change.why


KEYS = st.builds(
    "{}{}".format,
    st.sampled_from(
        ["target-state-", "connector-", "task-", "commit-", "restart-connector-", "tasks-fencing-", "logger-cluster-"]
    ),
    st.sampled_from(["c", "c-0", "c-1", ""]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["properties", "tasks", "state", "state.v2", "key", "level", "task-count"]), inner
        )
    ),
    max_leaves=5,
)


@given(
    records=st.lists(
        st.tuples(st.none() | st.just("session-key") | KEYS, st.none() | st.binary() | JSON.map(json.dumps))
    )
)
def test_nothing_is_raised(records: list[tuple[str | None, bytes | str | None]]) -> None:
    log = config_topic.ConfigLog()
    for offset, (key, value) in enumerate(records):
        log.apply(offset, key, value.encode() if isinstance(value, str) else value)
    for name in log.connectors():
        assert len(log.task_ids(name)) == len(log.all_task_configs(name))
        assert log.connector_config(name) is not None


# -- against a model, and after compaction -----------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "a-1", "b"])


@dataclass
class Model:
    """What workers have written, known without reading it; the last commit's tasks, by connector."""

    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    targets: dict[str, TargetState] = field(default_factory=dict)
    tasks: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    records: list[config_topic.Record] = field(default_factory=list)

    def create(self, name: str, number: int, target: TargetState | None) -> None:
        if target is not None:
            self.records.append(config_topic.target_state_record(name, target))
            self.targets[name] = target
        self.configs[name] = {"n": str(number)}
        self.records.append(config_topic.connector_record(name, self.configs[name]))

    def delete(self, name: str) -> None:
        self.records += config_topic.removal_records(name)
        for known in (self.configs, self.targets, self.tasks):
            known.pop(name, None)

    def write_tasks(self, name: str, number: int, count: int, written: int) -> None:
        """All ``count`` tasks and their commit, or as many as a leader lived to write."""
        configs = [{"t": f"{number}-{task}"} for task in range(count)]
        self.records += config_topic.task_records(name, configs[:written])
        if written >= count:
            self.records.append(config_topic.commit_record(name, count))
            if name in self.configs:
                self.tasks[name] = configs


@st.composite
def histories(draw: st.DrawFn) -> Model:
    model = Model()
    for number in range(draw(st.integers(0, 25))):
        name = draw(NAMES)
        match draw(st.integers(0, 5)):
            case 0 | 1:
                model.create(name, number, draw(st.none() | st.sampled_from(TargetState)))
            case 2:
                model.delete(name)
            case _:
                model.write_tasks(name, number, draw(st.integers(0, 3)), draw(st.integers(0, 4)))
    return model


def assert_same_connectors(log: config_topic.ConfigLog, model: Model) -> None:
    assert set(log.connectors()) == set(model.configs)
    for name, config in model.configs.items():
        assert log.connector_config(name) == config
        assert log.target_state(name) == model.targets.get(name, STARTED)


@given(model=histories())
def test_the_fold_is_what_was_written(model: Model) -> None:
    log = folded(*model.records)
    assert_same_connectors(log, model)
    for name in model.configs:
        assert list(log.all_task_configs(name)) == model.tasks.get(name, [])
        assert not is_inconsistent(log, name)


def compacted(records: Sequence[config_topic.Record], draws: st.DataObject) -> list[config_topic.Record]:
    """What a cleaner may leave: of each key any number of its last records, at least one but for a tombstone."""
    newest_first: dict[str, list[int]] = {}
    for at, (key, _) in reversed(list(enumerate(records))):
        newest_first.setdefault(key, []).append(at)
    kept: set[int] = set()
    for places in newest_first.values():
        least = 0 if records[places[0]][1] is None else 1
        kept.update(places[: draws.draw(st.integers(least, len(places)))])
    return [record for at, record in enumerate(records) if at in kept]


@given(model=histories(), draws=st.data())
def test_compaction_may_take_tasks_and_never_mixes_them(model: Model, draws: st.DataObject) -> None:
    log = folded(*compacted(model.records, draws))
    assert_same_connectors(log, model)
    for name in model.configs:
        assert list(log.all_task_configs(name)) in ([], model.tasks.get(name, []))
