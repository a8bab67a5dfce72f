"""``sync.group.offsets``: which groups of the target are moved where, and what is said of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.log.committed_offsets import Committed, GroupListing, Partition
from connectors.checkpoint import group_offset_sync
from connectors.checkpoint.group_checkpoints import Checkpoints, TranslatedCheckpoint
from connectors.checkpoint.group_offset_sync import GroupOffsetSync
from connectors.formats.mirror_records import Checkpoint
from tests.kit import virtual_time

THEN, NOW = UUID(int=1), UUID(int=2)


class Target:
    """A cluster with groups of no members. ``ids``: of its topics; None where brokers have none."""

    name = "eu"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ids: Mapping[str, UUID | None]) -> None:
        self.ids = dict(ids)
        self.codes: dict[str, int] = {}
        self.stored: dict[str, dict[Partition, Committed]] = {}
        self.fails: dict[str, HeliographError] = {}
        self.listed: dict[str, GroupListing] = {}
        self.takes_s = self.fails_after_s = 0.0
        monkeypatch.setattr(group_offset_sync, "list_groups", self._list_groups)
        monkeypatch.setattr(group_offset_sync, "committed", self._committed)
        monkeypatch.setattr(group_offset_sync, "move", self._move)

    async def metadata(self, topics: Collection[str]) -> Any:
        there = {name: TopicMetadata(name, one, self.codes.get(name, 0), {}) for name, one in self.ids.items()}
        return SimpleNamespace(topics={name: one for name, one in there.items() if name in topics})

    async def _list_groups(self, _: Any) -> dict[str, GroupListing]:
        return self.listed

    async def _committed(
        self, _: Any, group: str, partitions: Collection[Partition], *, stable: bool, timeout_s: float, once: bool
    ) -> dict[Partition, Committed]:
        assert partitions and stable and once and timeout_s <= 5
        await asyncio.sleep(self.fails_after_s if group in self.fails else self.takes_s)
        if group in self.fails:
            raise self.fails[group]
        return self.stored.get(group, {})

    async def _move(
        self, _: Any, group: str, offsets: Mapping[Partition, Committed], *, timeout_s: float, once: bool
    ) -> dict[Partition, str]:
        assert once and timeout_s <= 5, "what is stored by then may be ahead"
        self.stored[group] = {**self.stored.get(group, {}), **offsets}
        return {}


def looked_at(topic_ids: Mapping[str, UUID | None], *groups: str) -> Checkpoints:
    known = Checkpoints(groups)
    for group in groups:
        places = [(Checkpoint(group, topic, 0, 9, 9), topic_id) for topic, topic_id in topic_ids.items()]
        known.look(group, [TranslatedCheckpoint(one, True, topic_id) for one, topic_id in places])
    return known


def sync_of(target: Any, known: Checkpoints, *groups: str) -> GroupOffsetSync:
    return GroupOffsetSync("us->eu", target, groups, known)


@pytest.mark.parametrize(
    ("then", "now", "code", "why"),
    [
        (THEN, {"us.a": THEN, "us.b": THEN}, 0, None),
        (THEN, {"us.a": NOW, "us.b": THEN}, 0, "it was recreated since the groups of the source were read"),
        (THEN, {"us.b": THEN}, 0, "UNKNOWN_TOPIC_OR_PARTITION (3)"),
        (THEN, {"us.a": None, "us.b": THEN}, 29, "TOPIC_AUTHORIZATION_FAILED (29)"),
        (None, {"us.a": NOW, "us.b": THEN}, 0, None),  # brokers were too old to tell
        (THEN, {"us.a": None, "us.b": THEN}, 0, None),
    ],
)
async def test_no_place_is_carried_into_a_topic_that_was_made_anew_since_the_look(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    then: UUID | None,
    now: Mapping[str, UUID | None],
    code: int,
    why: str | None,
) -> None:
    """The source may be away since, or the connector paused: no look comes that would know better."""
    target = Target(monkeypatch, now)
    target.codes["us.a"] = code
    sync = sync_of(target, looked_at({"us.a": then, "us.b": THEN}, "g"), "g")
    for _ in range(2):
        await sync.run()
    assert set(target.stored["g"]) == {("us.b", 0)} | (set() if why else {("us.a", 0)})
    assert caplog.messages == ([f"us->eu: group g is skipped: us.a: {why}"] if why else [])


def test_groups_that_cannot_be_asked_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do many of them, far away, one another."""
    groups = [f"g{number}" for number in range(160)]
    target = Target(monkeypatch, {"us.a": THEN})
    target.fails = dict.fromkeys(groups[:4], RetriableError("its coordinator does not answer"))
    target.takes_s, target.fails_after_s = 1.0, 5.0

    async def run() -> float:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        await sync_of(target, looked_at({"us.a": THEN}, *groups), *groups).run()
        return clock() - began_s

    assert virtual_time.run(run()) < 15
    assert set(target.stored) == set(groups[4:])


def test_a_run_that_takes_long_moves_groups_to_where_they_are_found_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator may wind a group back, or make a topic anew, while others do not answer."""
    slow = [f"g{number}" for number in range(16)]
    target = Target(monkeypatch, {"us.a": THEN, "us.b": THEN})
    target.fails, target.fails_after_s = dict.fromkeys(slow, RetriableError("its coordinator does not answer")), 5.0
    known = looked_at({"us.a": THEN, "us.b": THEN}, *slow, "late", "gone")

    async def run() -> None:
        running = asyncio.create_task(sync_of(target, known, *slow, "late", "gone").run())
        await asyncio.sleep(2)
        target.ids["us.b"] = NOW
        moved = [Checkpoint("late", one, 0, 3, 3) for one in ("us.a", "us.b")]
        known.look("late", [TranslatedCheckpoint(one, True, THEN) for one in moved])
        known.look("gone", [])
        await running

    virtual_time.run(run())
    assert target.stored == {"late": {("us.a", 0): Committed(3)}}


def test_a_run_ends_once_none_of_its_groups_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails in a way nobody has thought of would leave the others beside the next run."""
    target = Target(monkeypatch, {"us.a": THEN})
    target.takes_s, target.fails = 1.0, {"g": cast(Any, ValueError("a mistake"))}

    async def run() -> None:
        with pytest.raises(ValueError, match="a mistake"):
            await sync_of(target, looked_at({"us.a": THEN}, "g", "other"), "g", "other").run()
        await asyncio.sleep(10)
        assert target.stored == {}

    virtual_time.run(run())


async def test_a_hanging_commit_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """And holds up no other group."""
    target = Target(monkeypatch, {"us.a": THEN})
    target.fails["g"] = RetriableError("a transaction holds the offset of group g")
    sync = sync_of(target, looked_at({"us.a": THEN}, "g", "other"), "g", "other")
    await sync.run()
    assert target.stored == {"other": {("us.a", 0): Committed(9)}}
    assert "group g is skipped: a transaction holds the offset of group g" in caplog.messages[0]
    del target.fails["g"]
    await sync.run()
    assert target.stored["g"] == {("us.a", 0): Committed(9)}


async def test_a_group_in_use_is_not_moved(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    target = Target(monkeypatch, {"us.a": THEN})
    target.listed = {"g": GroupListing("classic", "consumer", "Stable"), "idle": GroupListing("classic", "", "Empty")}
    await sync_of(target, looked_at({"us.a": THEN}, "g", "idle", "new"), "g", "idle", "new").run()
    assert set(target.stored) == {"idle", "new"}
    assert caplog.messages == ["us->eu: group g is skipped: on the target it has members (it is Stable)"]


async def test_a_group_ahead_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Until it is no longer: how many partitions there are of them changes with each step of the source."""
    target = Target(monkeypatch, {"us.a": THEN, "us.b": THEN, "us.c": THEN})
    sync = sync_of(target, looked_at(dict.fromkeys(target.ids, THEN), "g"), "g")
    for ahead in (["us.a", "us.b"], ["us.a"], [], ["us.b"]):
        target.stored["g"] = {(topic, 0): Committed(10 if topic in ahead else 9) for topic in target.ids}
        await sync.run()
    line = "us->eu: group g was not moved in %d partitions: it is ahead, and no group is moved back"
    assert caplog.messages == [line % 2, line % 1]
