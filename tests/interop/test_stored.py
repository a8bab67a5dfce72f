"""What Java's workers stored and told each other, recorded: our codecs read it, and write the same bytes again."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from connect.core import config_topic, status_and_offset_topics
from connect.core.config_topic import ConfigChange, ConfigLog, LoggerChanged, RestartAsked, SkippedConfigRecord
from connect.core.herder.membership import (
    VERSIONS,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
)
from connect.core.model import State, TaskId
from connect.core.status_and_offset_topics import StatusLog
from connect.kafka.log.producer import partition_of
from tests.interop.stored import StoredMember, StoredRecord, load_members, load_records

_SESSIONS = ("plain", "closed", "exactly-once")
_MEMBERS = load_members("group")


@pytest.mark.parametrize("session", _SESSIONS)
def test_config_records(session: str) -> None:
    records = load_records(f"configs-{session}")
    kinds = Counter(_config_kind(record) for record in records)
    log = ConfigLog()
    for offset, record in enumerate(records):
        changes = log.apply(offset, record.key, _bytes(record))
        assert not any(isinstance(change, SkippedConfigRecord) for change in changes), (record, changes)
        written = _config_record_again(log, record, changes)
        if '"file":null' not in (record.value or ""):
            # A setting that is null counts as one that is not there; ours does not keep it.
            assert written == (record.key, _bytes(record)), record
    assert {"connector-", "task-", "commit-"} <= kinds.keys(), kinds
    if session == "plain":
        others = {"target-state-", "session-key", "restart-connector-", "logger-cluster-", "tasks-fencing-"}
        assert others <= kinds.keys(), kinds


def _config_kind(record: StoredRecord) -> str:
    prefixes = (
        config_topic.TARGET_STATE_PREFIX,
        config_topic.CONNECTOR_PREFIX,
        config_topic.TASK_PREFIX,
        config_topic.COMMIT_PREFIX,
        config_topic.RESTART_PREFIX,
        config_topic.FENCING_PREFIX,
        config_topic.LOGGER_PREFIX,
        config_topic.SESSION_KEY,
    )
    assert record.key is not None
    return next(prefix for prefix in prefixes if record.key.startswith(prefix))


def _config_record_again(
    log: ConfigLog, record: StoredRecord, changes: tuple[ConfigChange, ...]
) -> config_topic.Record:
    """The record, written from what the log says after it was read."""
    kind = _config_kind(record)
    assert record.key is not None
    name = record.key.removeprefix(kind)
    if record.value is None:
        assert record.key in dict(config_topic.removal_records(name))
        return record.key, None
    if kind == config_topic.CONNECTOR_PREFIX:
        config = log.connector_config(name)
        assert config is not None
        return config_topic.connector_record(name, config)
    if kind == config_topic.TARGET_STATE_PREFIX:
        return config_topic.target_state_record(name, log.target_state(name))
    if kind == config_topic.TASK_PREFIX:
        return _task_record_again(name, _bytes(record))
    if kind == config_topic.COMMIT_PREFIX:
        return config_topic.commit_record(name, log.task_count(name))
    if kind == config_topic.FENCING_PREFIX:
        return config_topic.fencing_record(name, log.task_count_record(name) or 0)
    if kind == config_topic.SESSION_KEY:
        assert log.session_key is not None
        return config_topic.session_key_record(log.session_key)
    (change,) = changes
    if isinstance(change, RestartAsked):
        return config_topic.restart_record(change.request)
    assert isinstance(change, LoggerChanged)
    return config_topic.logger_record(change.namespace, change.level)


def _task_record_again(name: str, value: bytes | None) -> config_topic.Record:
    """Task configs count once they are committed, so this one is, in a log of its own."""
    connector, _, number = name.rpartition("-")
    count = int(number) + 1
    log = ConfigLog()
    log.apply(0, *config_topic.connector_record(connector, {}))
    for task in range(count):
        log.apply(1 + task, f"{config_topic.TASK_PREFIX}{connector}-{task}", value)
    log.apply(1 + count, *config_topic.commit_record(connector, count))
    return config_topic.task_records(connector, log.all_task_configs(connector))[-1]


@pytest.mark.parametrize("session", _SESSIONS)
def test_status_records(session: str) -> None:
    records = load_records(f"status-{session}")
    kinds: Counter[str] = Counter()
    for record in records:
        assert record.key is not None
        log = StatusLog()
        assert log.apply(record.key, _bytes(record)) is None, record
        if record.value is None:
            kinds["tombstone"] += 1
            continue
        written, kind = _status_record_again(log, record.key)
        kinds[kind] += 1
        assert written == (record.key, _bytes(record))
    states = {State.RUNNING, State.UNASSIGNED, State.STOPPED}
    expected = {"tombstone", "topic", *states} if session != "closed" else {"RUNNING"}
    if session == "plain":
        expected |= {State.FAILED, State.PAUSED, State.RESTARTING}
    assert expected <= kinds.keys(), kinds


def _status_record_again(log: StatusLog, key: str) -> tuple[status_and_offset_topics.Record, str]:
    """The one record that the log has read, written again, and what it was."""
    for name in log.connectors():
        status = log.status(name)
        if status is not None:
            return status_and_offset_topics.status_record(name, status), status.state
        ((number, status),) = log.tasks(name).items()
        return status_and_offset_topics.status_record(TaskId(name, number), status), status.state
    (use,) = log.topics(key.partition(":connector-")[2])
    return status_and_offset_topics.topic_record(use), "topic"


@pytest.mark.parametrize("session", _SESSIONS)
def test_offset_records(session: str) -> None:
    records = load_records(f"offsets-{session}")
    assert records or session == "closed"
    for record in records:
        assert record.key is not None
        connector, partition = json.loads(record.key)
        key, value = record.key.encode(), _bytes(record)
        assert status_and_offset_topics.apply(status_and_offset_topics.SourceOffsets(), key, value) is None, record
        assert status_and_offset_topics.encode_key(connector, partition) == key
        assert value is None or status_and_offset_topics.encode_value(json.loads(value)) == value


@pytest.mark.parametrize("topic", ["configs", "offsets", "status"])
def test_partitions_of_keys(topic: str) -> None:
    for session in _SESSIONS:
        for record in load_records(f"{topic}-{session}"):
            assert record.key is not None
            assert partition_of(record.key.encode(), record.partitions) == record.partition


@pytest.mark.parametrize("member", _MEMBERS)
def test_metadata_and_assignments(member: StoredMember) -> None:
    metadata_bytes, assignment_bytes = bytes.fromhex(member.metadata), bytes.fromhex(member.assignment)
    metadata, assignment = decode_metadata(metadata_bytes), decode_assignment(assignment_bytes)
    assert metadata.url.endswith("/")
    assert metadata.lease_ms is None
    assert assignment.version == VERSIONS[member.protocol]
    assert encode_assignment(member.protocol, assignment) == assignment_bytes
    # The allocation inside is one that a leader wrote, of which leaders read nothing but the work: ours leave the
    # rest at nothing, so only what leaders read is the same.
    again = decode_metadata(encode_metadata(member.protocol, metadata))
    assert again == metadata
    if metadata.allocation is None:
        assert encode_metadata(member.protocol, metadata) == metadata_bytes


def test_the_group_went_through_all_of_it() -> None:
    assignments = [(member.protocol, decode_assignment(bytes.fromhex(member.assignment))) for member in _MEMBERS]
    assert {protocol for protocol, _ in assignments} == VERSIONS.keys()
    assert any(assignment.revoked for _, assignment in assignments)
    assert any(assignment.delay_ms for _, assignment in assignments)
    assert any("größe 0" in assignment.assigned.connectors for _, assignment in assignments)
    assert any(decode_metadata(bytes.fromhex(member.metadata)).allocation for member in _MEMBERS)


def _bytes(record: StoredRecord) -> bytes | None:
    return None if record.value is None else record.value.encode()
