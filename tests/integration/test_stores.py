"""The config and status topics on a real broker: steps are read back, one leader at a time writes, statuses arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from connect.core import config_topic
from connect.core.config_topic import ConfigLog, SkippedConfigRecord
from connect.core.errors import ConfigError, RetriableError
from connect.core.herder.events import ConfigRecord
from connect.core.model import NewTopic, State, Status, TargetState, TaskId
from connect.core.status_and_offset_topics import TopicUse
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import read_to_end
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import Superseded
from connect.runtime.herder.config_and_status_topics import ConfigStore, LeadershipLeaseOver, LeaderWriter, StatusStore
from tests.kit.clients import cluster_and_admin
from tests.kit.members import until

pytestmark = pytest.mark.integration

CONNECTOR = config_topic.connector_record("c", {"name": "c"})
TASKS = config_topic.task_records("c", [{"a": "0"}, {"a": "1"}])
COMMIT = config_topic.commit_record("c", 2)
TIMEOUT_S = 120.0


class Place:
    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.cluster, self.admin = cluster, admin
        self.topic = NewTopic(f"internal-{uuid4()}", 5, 1, {})
        self.stores: list[ConfigStore | StatusStore] = []

    async def config(self, transactional_id: str | None = None, *, read_committed: bool = False) -> Reading:
        reading = Reading()
        leader = None if transactional_id is None else LeaderWriter(self.cluster, transactional_id)
        reading.store = ConfigStore(
            self.cluster,
            self.admin,
            self.topic,
            reading.take,
            reading.reset_log,
            leader=leader,
            read_committed=read_committed,
        )
        self.stores.append(reading.store)
        await reading.store.start(TIMEOUT_S)
        return reading

    async def status(self) -> StatusStore:
        store = StatusStore(self.cluster, self.admin, self.topic)
        self.stores.append(store)
        await store.start(TIMEOUT_S)
        return store


class Reading:
    store: ConfigStore

    def __init__(self) -> None:
        self.records: list[ConfigRecord] = []
        self.log = ConfigLog()

    def reset_log(self) -> None:
        self.records.clear()
        self.log = ConfigLog()

    def take(self, record: ConfigRecord) -> None:
        self.records.append(record)
        changes = self.log.apply(record.offset, record.key, record.value)
        assert not [change for change in changes if isinstance(change, SkippedConfigRecord)]


@pytest.fixture
async def place(us: KafkaCluster) -> AsyncIterator[Place]:
    async with cluster_and_admin(us.bootstrap, "us") as clients:
        place = Place(*clients)
        yield place
        for store in place.stores:
            await store.stop()


# -- the config topic --------------------------------------------------------------------------------------------------


async def test_what_is_written_has_come_back_and_others_read_the_same(place: Place) -> None:
    one = await place.config()
    await one.store.claim()  # nothing to claim where everybody writes plainly
    await one.store.write([[config_topic.target_state_record("c", TargetState.STOPPED), CONNECTOR], TASKS, [COMMIT]])
    keys = [record.key for record in one.records]
    assert keys == ["target-state-c", "connector-c", "task-c-0", "task-c-1", "commit-c"]
    assert list(one.log.all_task_configs("c")) == [{"a": "0"}, {"a": "1"}]
    other = await place.config()
    assert other.records == one.records
    await one.store.write([config_topic.removal_records("c")])
    await other.store.read_to_end(TIMEOUT_S)
    assert other.log == one.log
    assert other.log.connectors() == ()


async def test_the_topic_is_made_with_one_partition_and_compacted(place: Place) -> None:
    await place.config()
    assert len((await place.cluster.topics({place.topic.name})).topics[place.topic.name].partitions) == 1
    configs = (await place.admin.describe_topic_configs([place.topic.name]))[place.topic.name]
    assert configs["cleanup.policy"] == "compact"


async def test_a_topic_with_several_partitions_or_without_compaction_is_refused(place: Place) -> None:
    await place.admin.create_topics([NewTopic(place.topic.name, 3, 1, {"cleanup.policy": "compact"})])
    with pytest.raises(ConfigError, match=r"required to have a single partition .* but found 3 partitions"):
        await place.config()
    place.topic = NewTopic(f"internal-{uuid4()}", 1, 1, {})
    await place.admin.create_topics([NewTopic(place.topic.name, 1, 1, {})])
    async with asyncio.timeout(TIMEOUT_S):
        while not (await place.admin.describe_topic_configs([place.topic.name])).get(place.topic.name):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the broker has not heard of it yet, and does not say when it will
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete"):
        await place.config()


async def test_a_leader_that_another_has_followed_writes_nothing_more(place: Place) -> None:
    transactional_id = f"connect-cluster-{uuid4()}"
    old, new = [await place.config(transactional_id, read_committed=True) for _ in range(2)]
    await old.store.claim()
    await old.store.write([[CONNECTOR]])
    await new.store.claim()
    for _ in range(2):
        with pytest.raises(Superseded):
            await old.store.write([TASKS, [COMMIT]])
    # Not only the leader may set a target state.
    await old.store.write([[config_topic.target_state_record("c", TargetState.PAUSED)]], as_leader=False)
    await new.store.write([[config_topic.fencing_record("c", 2)]])
    assert [record.key for record in new.records] == ["connector-c", "target-state-c", "tasks-fencing-c"]
    # It may become leader again.
    await old.store.claim()
    await old.store.write([TASKS, [COMMIT]])
    with pytest.raises(Superseded):
        await new.store.write([[CONNECTOR]])
    await new.store.read_to_end(TIMEOUT_S)
    assert new.log.task_count("c") == 2
    assert new.log == old.log


async def test_a_leader_whose_claim_came_to_nothing_claims_with_its_first_write(place: Place) -> None:
    one = await place.config(f"connect-cluster-{uuid4()}", read_committed=True)
    await one.store.write([[CONNECTOR]])
    assert one.log.connectors() == ("c",)


async def test_a_write_that_takes_too_long_is_given_up_and_leaves_nothing_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place.config(f"connect-cluster-{uuid4()}", read_committed=True)
    await one.store.claim()

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("connect.runtime.herder.config_and_status_topics._WRITE_TIMEOUT_S", 0.5)
    monkeypatch.setattr("connect.kafka.log.transactions.end_transaction", never)
    with pytest.raises(RetriableError, match="A part may have been written"):
        await one.store.write([[CONNECTOR]])
    monkeypatch.undo()
    await one.store.write([[config_topic.fencing_record("c", 1)]])
    assert [record.key for record in one.records] == ["tasks-fencing-c"]


async def test_a_leader_whose_lease_ends_between_two_steps_writes_no_more(place: Place) -> None:
    one = await place.config()
    await one.store.write([[CONNECTOR]])

    def leased() -> bool:
        return "task-c-1" not in {record.key for record in one.records}

    with pytest.raises(LeadershipLeaseOver):
        await one.store.write([TASKS, [COMMIT]], leased=leased)
    await one.store.write([[config_topic.target_state_record("c", TargetState.PAUSED)]], as_leader=False, leased=leased)
    assert [record.key for record in one.records] == ["connector-c", "task-c-0", "task-c-1", "target-state-c"]


@pytest.mark.long
async def test_a_deleted_topic_is_named_and_one_made_anew_is_another_log(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await place.config()
    await one.store.write([[CONNECTOR]])
    await place.admin.delete_topics([place.topic.name])
    monkeypatch.setattr("connect.runtime.herder.config_and_status_topics._WRITE_TIMEOUT_S", 12.0)
    with pytest.raises(RetriableError, match=f"could not be written within 12 s; .*has no topic {place.topic.name}"):
        await one.store.write([TASKS])
    monkeypatch.undo()
    await place.admin.create_topics([NewTopic(place.topic.name, 1, 1, {"cleanup.policy": "compact"})])
    await one.store.write([[config_topic.fencing_record("c", 1)]])
    assert [record.key for record in one.records] == ["tasks-fencing-c"]
    assert one.log.connectors() == ()


# -- the status topic --------------------------------------------------------------------------------------------------


def running(worker: str, generation: int) -> Status:
    return Status(State.RUNNING, worker, generation, None, "4.3.1")


async def test_statuses_are_read_back_by_all(place: Place) -> None:
    one, other = [await place.status() for _ in range(2)]
    statuses: dict[str | TaskId, Status] = {"c": running("one:1", 1)}
    statuses.update((TaskId("c", task), running("one:1", 1)) for task in range(20))
    for work, status in statuses.items():
        one.put(work, status)
    assert one.log.connectors() == ()  # not before they were written
    for store in (one, other):
        log = store.log
        await until(lambda log=log: {work: log.status(work) for work in statuses} == statuses, "statuses")  # type: ignore[misc]
    other.put("c", Status(State.DESTROYED, "two:1", 2))
    await until(lambda: one.log.status("c") is None, "a tombstone")
    tasks = [work for work in statuses if work != "c"]
    assert all(one.log.status(task) == statuses[task] for task in tasks), "each has one of its own"
    for task in tasks:
        other.put(task, Status(State.DESTROYED, "two:1", 2))
    await until(lambda: one.log.connectors() == (), "the others")


async def test_of_what_waits_the_newest_is_written(place: Place) -> None:
    one = StatusStore(place.cluster, place.admin, place.topic)
    place.stores.append(one)
    for generation in range(100):
        one.put("c", running("one:1", generation))
    await one.start(TIMEOUT_S)
    await until(lambda: one.log.status("c") == running("one:1", 99), "the last status")
    written: list[bytes | None] = []
    await read_to_end(place.cluster, place.topic.name, lambda record: written.append(record.value))
    assert len(written) == 1


async def test_a_safe_write_is_left_out_where_a_newer_owner_has_spoken(place: Place) -> None:
    one = await place.status()
    one.put("c", running("new:1", 7))
    await until(lambda: one.log.status("c"), "a status")
    one.put("c", Status(State.UNASSIGNED, "old:1", 6), safe=True)
    one.put("d", Status(State.UNASSIGNED, "old:1", 6), safe=True)
    await until(lambda: one.log.status("d"), "the other status")
    await one.followed.read_to_end(TIMEOUT_S)
    assert one.log.status("c") == running("new:1", 7)


async def test_what_still_waits_is_written_before_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "connect.runtime.herder.config_and_status_topics._FLUSH_TIMEOUT_S", TIMEOUT_S
    )  # however slow the machine is
    one, other = [await place.status() for _ in range(2)]
    for task in range(50):
        one.put(TaskId("c", task), Status(State.UNASSIGNED, "one:1", 1))
    await one.stop()
    await other.followed.read_to_end(TIMEOUT_S)
    assert len(other.log.tasks("c")) == 50


async def test_topics_in_use_are_said_once_and_forgotten(place: Place) -> None:
    one = await place.status()
    uses = [TopicUse(f"t{number}", "c", 0, 1) for number in range(3)]
    for _ in range(2):
        for use in uses:
            one.topic_used(use)
        await until(lambda: len(one.log.topics("c")) == 3, "topics in use")
    written: list[bytes | None] = []
    await read_to_end(place.cluster, place.topic.name, lambda record: written.append(record.value))
    assert len(written) == 3
    one.forget_topics("c")
    await until(lambda: not one.log.topics("c"), "topics forgotten")
    one.topic_used(uses[0])
    await until(lambda: len(one.log.topics("c")) == 1, "a topic that is used after the reset")
