"""MirrorCheckpoint without a broker: what is worth writing, who is moved, how groups are split among tasks."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.log.committed_offsets import CLASSIC, CONSUMER, SHARE, Committed, GroupListing
from connect.kafka.log.topic_admin import Admin
from connectors.checkpoint import connector as connector_module
from connectors.checkpoint import group_checkpoints as finding
from connectors.checkpoint.connector import MirrorCheckpointConnector
from connectors.checkpoint.group_checkpoints import (
    Checkpoints,
    GroupFinder,
    GroupLook,
    TranslatedCheckpoint,
    decode,
    encode,
    split,
)
from connectors.checkpoint.group_offset_sync import AHEAD, GroupOffsetSync, groups_left, to_move, why_left
from connectors.checkpoint.offset_translation import OffsetSyncStore
from connectors.formats.mirror_records import Checkpoint, OffsetSync
from connectors.formats.types import TopicPartition
from tests.kit import virtual_time
from tests.kit.answers import put
from tests.kit.virtual_time import in_virtual_time

NAME = "MirrorCheckpointConnector"
NAMES = {"name": NAME, "connector.class": f"org.apache.kafka.connect.mirror.{NAME}"}
ADDRESSES = {f"{side}.cluster.bootstrap.servers": "127.0.0.1:1" for side in ("source", "target")}
CHECKPOINT = {**NAMES, **ADDRESSES, "source.cluster.alias": "us", "target.cluster.alias": "eu"}
POSITION = {"group": "g", "topic": "us.t", "partition": 0}
PLACE = TopicPartition("us.t", 0)
CANNOT = "MirrorCheckpointConnector can't"


def checkpoint(upstream: int, downstream: int) -> Checkpoint:
    return Checkpoint("g", "us.t", 0, upstream, downstream, "note")


@pytest.mark.parametrize(
    ("upstream", "downstream", "by_syncs", "by_map"),
    [
        (10, 20, False, False),  # the same again
        (11, 20, False, False),  # went on, and the copy did not
        (11, 21, True, True),
        (11, 19, False, True),  # never back while the group goes on, but where the map knows of another copy
        (9, 19, True, True),  # the group was wound back at the source
        (9, 25, True, True),
    ],
)
def test_which_checkpoints_are_worth_writing(upstream: int, downstream: int, by_syncs: bool, by_map: bool) -> None:
    for is_by_map, is_written in ((False, by_syncs), (True, by_map)):
        known = Checkpoints(["g"])
        known.take(Checkpoint("another", "us.t", 0, 1, 1))
        first, later = checkpoint(10, 20), checkpoint(upstream, downstream)
        assert known.look("g", [TranslatedCheckpoint(first, is_by_map)]) == [first]
        assert known.look("g", [TranslatedCheckpoint(later, is_by_map)]) == ([later] if is_written else [])
        assert known.current("g") == {PLACE: later if is_written else first}


def test_javas_checkpoints_after_a_restart() -> None:
    """``testCheckpointsTaskRestartUsesExistingCheckpoints``: syncs that have become less exact."""

    def translated(store: OffsetSyncStore, upstream: int) -> Checkpoint:
        downstream = store.translate(TopicPartition("t", 0), upstream)
        assert downstream is not None
        return checkpoint(upstream, downstream)

    def syncs(*offsets: int) -> OffsetSyncStore:
        store = OffsetSyncStore(only_last=False)
        for offset in offsets:
            store.take(OffsetSync("t", 0, offset, offset))
        store.read_to_end()
        return store

    before, after = syncs(100, 200, 300), syncs(175, 275, 375, 475)
    written = translated(before, 250)
    assert written == checkpoint(250, 201)
    known = Checkpoints(["g"])
    known.take(written)
    for upstream, downstream, is_written in ((250, 176, False), (370, 176, False), (400, 376, True)):
        found = translated(after, upstream)
        assert found == checkpoint(upstream, downstream)
        assert known.look("g", [TranslatedCheckpoint(found, by_map=False)]) == ([found] if is_written else [])


def test_what_was_written_before_moves_no_group() -> None:
    """Its topic may have been made anew since: only what is translated now tells."""
    known = Checkpoints(["g"])
    known.take(checkpoint(900, 900))
    assert known.current("g") == {}
    assert known.look("g", [TranslatedCheckpoint(checkpoint(1000, 500), by_map=True)]) == [checkpoint(1000, 500)]
    assert known.current("g") == {PLACE: checkpoint(1000, 500)}
    assert known.look("g", []) == []
    assert known.current("g") == {}
    known.forget()
    assert known.look("g", [TranslatedCheckpoint(checkpoint(1000, 500), by_map=True)]) == [checkpoint(1000, 500)]


def test_a_group_is_moved_forward_only() -> None:
    here = checkpoint(10, 20)
    to = {("us.t", 0): Committed(20, "note")}
    assert to_move({PLACE: here}, {}) == to
    assert to_move({PLACE: here}, {("us.t", 0): Committed(19), ("other", 0): Committed(5)}) == to
    assert to_move({PLACE: here}, {("us.t", 0): Committed(20)}) == {}
    assert to_move({PLACE: here}, {("us.t", 0): Committed(21)}) == {}


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        (None, ""),
        (GroupListing(CLASSIC, "consumer", "Empty"), ""),
        (GroupListing(CLASSIC, "", "Dead"), ""),
        (GroupListing(CONSUMER, "consumer", "Empty"), ""),
        (GroupListing(CLASSIC, "consumer", "Stable"), "on the target it has members (it is Stable)"),
        (GroupListing(CONSUMER, "consumer", "Reconciling"), "on the target it has members (it is Reconciling)"),
        (GroupListing(SHARE, "share", "Empty"), "on the target it is a group of another kind (share, share)"),
        (GroupListing(CLASSIC, "connect", "Empty"), "on the target it is a group of another kind (classic, connect)"),
    ],
)
def test_who_is_left_alone(listing: GroupListing | None, why: str) -> None:
    assert why_left(listing) == why


@pytest.mark.parametrize(
    ("present", "why", "left"),
    [
        ({}, "", []),  # a run moves it
        ({PLACE: Committed(19)}, "", []),
        ({PLACE: Committed(20)}, "", []),
        ({PLACE: Committed(21)}, "", [(20, 21, AHEAD)]),
        ({}, "members", [(20, None, "members")]),
        ({PLACE: Committed(19)}, "members", [(20, 19, "members")]),
        ({PLACE: Committed(20)}, "members", []),
        ({PLACE: Committed(21)}, "members", [(20, 21, "members")]),
    ],
)
def test_which_groups_stay_different(present: dict[Any, Committed], why: str, left: list[tuple[Any, ...]]) -> None:
    found = groups_left({PLACE: checkpoint(10, 20)}, present, why)
    assert [(one.expected, one.found, one.why) for one in found] == left


def test_groups_are_split_in_runs() -> None:
    assert split(list("abcdefg"), 3) == [["a", "b", "c"], ["d", "e"], ["f", "g"]]
    assert split(["a"], 3) == [["a"]]
    assert split([], 3) == []


@given(st.lists(st.text("abc.", min_size=1), unique=True), st.integers(1, 9))
def test_each_group_has_one_task(groups: list[str], tasks: int) -> None:
    parts = split(groups, tasks)
    assert [group for part in parts for group in decode(encode(part))] == groups
    assert len(parts) == min(tasks, len(groups))
    assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1


async def test_a_group_with_a_comma_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A task would take ``a,b`` for the groups ``a`` and ``b``, and move those."""
    idle = GroupListing(CLASSIC, "consumer", "Empty")
    listed = {"a": idle, "a,b": idle, "c,d": GroupListing(SHARE, "share", "Empty")}

    async def committed_offsets(_: Any, group: str) -> dict[Any, int]:
        assert group == "a"
        return {("orders", 0): 5}

    put(monkeypatch, finding, list_groups=listed)
    monkeypatch.setattr(finding, "committed_offsets", committed_offsets)
    takes = {"should_replicate_group": lambda _: True, "should_replicate_topic": lambda _: True}
    both = SimpleNamespace(**takes)
    settings: Any = SimpleNamespace(flow="us->eu", group_filter=both, topic_filter=both)
    caplog.set_level("INFO")
    source: Any = None
    finder = GroupFinder(settings, source)
    for _ in range(2):
        assert await finder.find() == ["a"]
    said = "group a,b gets no checkpoints: tasks get their groups in one list separated by commas"
    for words in (said, "group c,d gets no checkpoints: a share group has no offset"):
        assert caplog.text.count(words) == 1


async def test_too_few_brokers_name_the_setting_of_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    admins: list[Admin] = []

    async def keep_making(admin: Admin, *_: object) -> None:
        admins.append(admin)

    monkeypatch.setattr(connector_module, "keep_making", keep_making)
    put(monkeypatch, GroupFinder, find=[])
    connector = MirrorCheckpointConnector()
    await connector.start(CHECKPOINT)
    await asyncio.sleep(0)
    await connector.stop()
    row = SimpleNamespace(name="us.checkpoints.internal", error_code=38, error_message="1 broker")
    said = str(admins[0]._outcomes("create", "CREATE", [row])[row.name])
    assert said.endswith("start more brokers, or set checkpoints.topic.replication.factor lower")


async def test_a_flow_that_is_off_has_no_tasks() -> None:
    connector = MirrorCheckpointConnector()
    await connector.start({**CHECKPOINT, "enabled": "false"})
    assert await connector.task_configs(5) == []
    await connector.stop()


@pytest.mark.parametrize(
    ("settings", "objections"),
    [
        ({}, {}),
        ({"enabled": "false", "emit.checkpoints.enabled": "false"}, {}),
        (
            {"enabled": "true", "emit.checkpoints.enabled": "false"},
            {"emit.checkpoints.enabled": f"{CANNOT} run with emit.checkpoints.enabled set to false"},
        ),
        (
            {"enabled": "true", "emit.offset-syncs.enabled": "false"},
            {"emit.offset-syncs.enabled": f"{CANNOT} run without offset syncs"},
        ),
    ],
)
async def test_checkpoints_need_what_they_are_made_of(settings: dict[str, str], objections: dict[str, str]) -> None:
    props = {**CHECKPOINT, **settings}
    values = MirrorCheckpointConnector.config_def().validate(props)
    amended = await MirrorCheckpointConnector().validate(props, values)
    assert {name: error for name, value in amended.items() for error in value.errors} == objections
    assert set(values) <= set(amended)


async def test_offsets_of_checkpoints() -> None:
    connector = MirrorCheckpointConnector()
    assert await connector.alter_offsets(CHECKPOINT, [(POSITION, {"offset": 0}), ({}, None)])
    wrong: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({**POSITION, "group": None}, {"offset": 0}),
        ({**POSITION, "partition": -1}, {"offset": 0}),
        (POSITION, {"offset": 5}),
    ]
    for partition, offset in wrong:
        with pytest.raises(PermanentError, match=r"^Source (partition|offset) "):
            await connector.alter_offsets(CHECKPOINT, [(partition, offset)])


def looks(monkeypatch: pytest.MonkeyPatch, newer: Any) -> None:
    """Every look finds what ``newer`` says of a group."""
    put(monkeypatch, GroupLook, begin=None, follow=None)
    monkeypatch.setattr(GroupLook, "newer", newer)


async def test_a_text_too_long_for_a_checkpoint_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``offset.metadata.max.bytes`` may be larger than a string of a checkpoint."""
    long = Checkpoint("long", "us.t", 0, 1, 1, "x" * 40_000)
    task = MirrorCheckpointConnector().make_task()
    await task.start({**CHECKPOINT, "emit.checkpoints.interval.seconds": "0", "task.assigned.groups": "long,short"})
    by_group = {"long": [long], "short": [checkpoint(1, 1)]}

    async def newer(_: GroupLook, group: str) -> list[Checkpoint]:
        return by_group[group]

    looks(monkeypatch, newer)
    (record,) = await task.poll() or []
    await task.stop()
    assert record.source_partition["group"] == "g"
    assert "group long gets no checkpoint of us.t-0" in caplog.text
    assert "longer than the 32767 bytes" in caplog.text


def test_a_group_that_cannot_be_asked_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its checkpoints, nor, however many there are, the moves of groups."""
    groups = [f"g{number}" for number in range(16)]
    moved: list[bool] = []

    async def newer(_: GroupLook, group: str) -> list[Checkpoint]:
        await asyncio.sleep(5)
        if group != "g9":
            raise RetriableError("its coordinator does not answer")
        return [checkpoint(1, 1)]

    async def run(_: GroupOffsetSync) -> None:
        await asyncio.sleep(100)
        moved.append(True)

    looks(monkeypatch, newer)
    monkeypatch.setattr(GroupOffsetSync, "run", run)

    async def play() -> float:
        task = MirrorCheckpointConnector().make_task()
        of_sync = {"sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": "1"}
        of_task = {"emit.checkpoints.interval.seconds": "0", "task.assigned.groups": encode(groups)}
        await task.start({**CHECKPOINT, **of_sync, **of_task})
        (record,) = await task.poll() or []
        took_s = asyncio.get_running_loop().time()
        assert record.source_partition["group"] == "g"
        await asyncio.sleep(200)
        await task.stop()
        return took_s

    assert virtual_time.run(play()) < 6
    assert moved


@in_virtual_time
async def test_a_poll_ends_once_none_of_its_groups_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody closes the clusters, nor begins anew, beside those that are."""
    looked_at: list[str] = []

    async def newer(_: GroupLook, group: str) -> list[Checkpoint]:
        if group == "a":
            raise ValueError("a mistake")
        await asyncio.sleep(5)
        looked_at.append(group)
        return []

    looks(monkeypatch, newer)
    task = MirrorCheckpointConnector().make_task()
    await task.start({**CHECKPOINT, "emit.checkpoints.interval.seconds": "0", "task.assigned.groups": "a,b"})
    with pytest.raises(ValueError, match="a mistake"):
        await task.poll()
    await asyncio.sleep(10)
    assert looked_at == []
    await task.stop()


@in_virtual_time
async def test_a_source_that_is_away_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    async def away(_: GroupLook) -> None:
        tries.append(asyncio.get_running_loop().time())
        raise RetriableError("cluster us: no broker answers")

    monkeypatch.setattr(GroupLook, "begin", away)
    task = MirrorCheckpointConnector().make_task()
    await task.start({**CHECKPOINT, "task.assigned.groups": "g"})
    while asyncio.get_running_loop().time() < 600:
        assert await task.poll() is None
    await task.stop()
    assert tries[1] < 2, "a leader may just be elected"
    assert len(tries) < 40
    assert max(later - earlier for earlier, later in pairwise(tries)) < 40
