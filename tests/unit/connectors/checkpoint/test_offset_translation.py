"""Where a group goes on, by the map, before it, and by offset syncs if no map knows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import RetriableError, SecurityError
from connect.kafka.log.compacted_topic import LogRecord
from connect.kafka.log.offsets import LATEST
from connectors.checkpoint import offset_translation
from connectors.checkpoint.offset_translation import (
    Beginnings,
    OffsetSyncReader,
    OffsetSyncStore,
    TranslatedOffset,
    Translator,
)
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.offset_map import reader as map_reader
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import MapPair, MappedOffset, MapRun, RunList
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, fails, put

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
IDS = {"orders": UUID(int=1), "us.orders": UUID(int=2)}
#: Copied up to 200, from 100 on; a transaction's marker lay at 150.
POSITION = Position("orders", 0, IDS["orders"], 200, 2, "us.orders", 0, IDS["us.orders"], 109, "txn", 77, 3, 8)
RUNS = [MapRun(100, 10, 50), MapRun(151, 60, 49)]


class Cluster:
    """Tells the ids of the topics that are there."""

    name = "eu"

    def __init__(self, ids: dict[str, UUID]) -> None:
        self._ids = ids

    async def metadata(self, topics: set[str]) -> Any:
        there = {name: SimpleNamespace(topic_id=one, partitions={0: 1}) for name, one in self._ids.items()}
        return SimpleNamespace(topics={name: one for name, one in there.items() if name in topics})


class Maps:
    def __init__(self, runs: list[MapRun], position: Position | None = POSITION) -> None:
        self._runs = RunList(runs)
        self.position = position
        self.cannot_be_read = self.is_whole = False

    async def follow(self) -> None:
        self.is_whole = not self.cannot_be_read
        if self.cannot_be_read:
            self.position = None
            raise RetriableError("no leader")

    def sources(self) -> list[TopicPartition]:
        return [SOURCE] if self.position else []

    def positions(self, source: TopicPartition) -> list[Position]:
        return [self.position] if source == SOURCE and self.position else []

    async def forward(self, pair: MapPair, offset: int) -> MappedOffset | None:
        return self._runs.forward(offset)


class Syncs:
    """The record at 40 is at 4."""

    def __init__(self) -> None:
        self.store = OffsetSyncStore(only_last=False)
        self.store.take(OffsetSync("orders", 0, 40, 4))
        self.may_be_read = True

    async def follow(self) -> None:
        if not self.may_be_read:
            raise SecurityError("grant DESCRIBE on topic syncs")
        self.store.read_to_end()


def made(
    patch: pytest.MonkeyPatch, log_start: int | None = 0, bare: bool = False, maps: Any = None, ids: Any = IDS
) -> tuple[Translator, Any, Any]:
    """A translator, its map and its syncs; ``bare``: the log has no records before the map."""

    async def follow(self: Beginnings, pairs: list[MapPair]) -> None:
        self._starts = {} if log_start is None else dict.fromkeys(pairs, log_start)

    patch.setattr(Beginnings, "follow", follow)
    patch.setattr("connectors.checkpoint.offset_translation.has_records", answers(not bare))
    names = {"flow": "us->eu", "source_alias": "us", "target_alias": "eu"}
    settings: Any = SimpleNamespace(**names, policy=DefaultReplicationPolicy())
    clusters: Any = Cluster(ids)
    reported: Any = maps or Maps(RUNS)
    syncs: Any = Syncs()
    return Translator(settings, clusters, clusters, reported, syncs), reported, syncs


async def translated(monkeypatch: pytest.MonkeyPatch, offset: int, **given: Any) -> list[TranslatedOffset]:
    translator, _, _ = made(monkeypatch, **given)
    await translator.follow()
    return await translator.translate(SOURCE, offset)


async def test_a_map_that_another_task_could_not_follow_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = MapReader(cast(Any, SimpleNamespace(name="eu")), "map", connector=None)
    put(monkeypatch, map_reader, known_topic=SimpleNamespace(topic_id=UUID(int=9), partitions={0: 1}))
    monkeypatch.setattr(map_reader, "read_to_end", fails(RetriableError("no leader")))
    with pytest.raises(RetriableError):
        await reader.follow()
    translator, maps, _ = made(monkeypatch)
    await translator.follow()
    assert await translator.translate(SOURCE, 120) == [TranslatedOffset(TARGET, 30, by_map=True)]
    maps.is_whole = reader.is_whole
    assert await translator.translate(SOURCE, 120) == [TranslatedOffset(TARGET, 5, by_map=False)]


@pytest.mark.parametrize(
    ("position", "found"),
    [
        (POSITION, [TranslatedOffset(TARGET, 4, by_map=False)]),
        (None, [TranslatedOffset(TARGET, 4, by_map=False)]),
        (replace(POSITION, target_topic="renamed"), []),
    ],
)
async def test_while_the_map_cannot_be_read_syncs_tell_of_the_topic_that_is_copied_to(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    position: Position | None,
    found: list[TranslatedOffset],
) -> None:
    translator, maps, _ = made(monkeypatch, maps=Maps(RUNS, position), ids={**IDS, "renamed": UUID(int=3)})
    await translator.follow()
    maps.cannot_be_read = True
    for _ in range(2):
        await translator.follow()
        assert await translator.translate(SOURCE, 40) == found
        assert ["the offset map cannot be read: no leader" in line for line in caplog.messages] == [True], "once"


@pytest.mark.parametrize(
    ("offset", "log_start", "found"),
    [
        (100, 0, 10),
        (149, 0, 59),
        (150, 0, 60),  # a marker: behind what was copied before it
        (151, 0, 60),
        (199, 0, 108),
        (200, 0, 109),
        (250, 0, 109),  # not copied yet
        (120, 55, 55),  # the target's retention has passed it
        (250, 500, 500),
    ],
)
async def test_by_the_map(monkeypatch: pytest.MonkeyPatch, offset: int, log_start: int, found: int) -> None:
    wanted = [TranslatedOffset(TARGET, found, by_map=True)]
    assert await translated(monkeypatch, offset, log_start=log_start) == wanted


@pytest.mark.parametrize(
    ("offset", "log_start", "bare", "found"),
    [
        (50, 0, True, TranslatedOffset(TARGET, 10, by_map=True)),  # nothing is on the target before the map
        (50, 10, False, TranslatedOffset(TARGET, 10, by_map=True)),  # nor is there any more
        (50, 30, False, TranslatedOffset(TARGET, 30, by_map=True)),
        (50, 0, False, TranslatedOffset(TARGET, 5, by_map=False)),  # Java copied before: by its syncs
        (40, 0, False, TranslatedOffset(TARGET, 4, by_map=False)),
        (50, 8, False, TranslatedOffset(TARGET, 8, by_map=False)),  # and the target's retention has passed that
        (39, 0, False, None),  # too old for these
    ],
)
async def test_before_the_map(
    monkeypatch: pytest.MonkeyPatch, offset: int, log_start: int, bare: bool, found: TranslatedOffset | None
) -> None:
    wanted = [] if found is None else [found]
    assert await translated(monkeypatch, offset, log_start=log_start, bare=bare) == wanted


async def test_syncs_never_lead_behind_where_the_map_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be of a topic of the same name that was there before."""
    translator, _, syncs = made(monkeypatch)
    syncs.store.take(OffsetSync("orders", 0, 45, 44))
    await translator.follow()
    assert await translator.translate(SOURCE, 50) == [TranslatedOffset(TARGET, 10, by_map=False)]


async def test_syncs_tell_nothing_of_another_topic_than_the_map_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not name their remote topic, and the copy may have begun again elsewhere."""
    elsewhere = Maps(RUNS, replace(POSITION, target_topic="renamed", target_topic_id=None))
    assert await translated(monkeypatch, 50, maps=elsewhere, ids={**IDS, "renamed": UUID(int=3)}) == []


@pytest.mark.parametrize(("offset", "found"), [(39, None), (40, 0), (41, 1)])
async def test_by_syncs_alone(monkeypatch: pytest.MonkeyPatch, offset: int, found: int | None) -> None:
    """Offset 0 is one, and a topic that came from the target goes back under its own name."""
    translator, _, syncs = made(monkeypatch, maps=Maps([], None))
    for topic in ("orders", "eu.orders"):
        syncs.store.take(OffsetSync(topic, 0, 40, 0))
    syncs.store.read_to_end()
    assert await translator.translate(SOURCE, offset) == [], "it has not followed yet"
    await translator.follow()
    for topic, remote in (("orders", "us.orders"), ("eu.orders", "orders")):
        wanted = [] if found is None else [TranslatedOffset(TopicPartition(remote, 0), found, by_map=False)]
        assert await translator.translate(TopicPartition(topic, 0), offset) == wanted


async def test_brokers_without_ids_leave_the_topics_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    ids: Any = dict.fromkeys(IDS)
    assert await translated(monkeypatch, 120, ids=ids) == [TranslatedOffset(TARGET, 30, by_map=True)]
    unknown = Maps(RUNS, replace(POSITION, source_topic_id=None, target_topic_id=None))
    assert await translated(monkeypatch, 120, maps=unknown) == [TranslatedOffset(TARGET, 30, by_map=True)]


async def test_what_is_read_of_offset_syncs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each once; all again if the topic was recreated or has lost its end."""
    topic: Any = SimpleNamespace(topic_id=None, syncs=[])
    asked: list[int] = []

    async def known(_: object, name: str) -> Any:
        assert name == "syncs"
        return topic if topic.topic_id else None

    async def end(_: object, place: tuple[str, int], at: int) -> int:
        assert (place, at) == (("syncs", 0), LATEST)
        return len(topic.syncs)

    async def read(_: object, name: str, take: Any, *, partitions: list[int], after: dict[int, int]) -> None:
        assert (name, partitions) == ("syncs", [0])
        asked.append(after[0])
        for offset in range(after[0], len(topic.syncs)):
            sync = OffsetSync("orders", 0, *topic.syncs[offset])
            take(LogRecord(sync.key(), sync.value(), 0, offset, 0))

    for name, fake in (("known_topic", known), ("list_offset", end), ("read_to_end", read)):
        monkeypatch.setattr(offset_translation, name, fake)
    reader = OffsetSyncReader(cast(Any, None), "syncs", only_last=True)
    await reader.follow()
    assert (asked, reader.store.translate(SOURCE, 50)) == ([], None)
    topic.topic_id, topic.syncs = UUID(int=1), [(0, 0), (40, 4)]
    await reader.follow()
    topic.syncs.append((60, 6))
    for _ in range(2):
        await reader.follow()
    assert (asked, caplog.messages) == ([0, 2, 3], [])
    assert [reader.store.translate(SOURCE, offset) for offset in (39, 50, 60)] == [-1, 5, 6]
    topic.syncs = [(10, 1), (20, 2)]
    await reader.follow()
    assert [reader.store.translate(SOURCE, offset) for offset in (10, 60)] == [1, 3]
    topic.topic_id, topic.syncs = UUID(int=2), [(30, 3), (35, 4)]
    await reader.follow()
    assert reader.store.translate(SOURCE, 20) == -1
    assert asked == [0, 2, 3, 0, 0]
    assert caplog.messages == ["syncs was recreated or truncated; reading it again from its beginning"] * 2


async def test_without_a_map_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the copy where nothing lies before it, else what syncs say."""
    assert await translated(monkeypatch, 30, bare=True, maps=Maps([])) == [TranslatedOffset(TARGET, 109, by_map=True)]
    assert await translated(monkeypatch, 41, bare=False, maps=Maps([])) == [TranslatedOffset(TARGET, 5, by_map=False)]


@pytest.mark.parametrize(
    "ids",
    [
        *({**IDS, name: UUID(int=9)} for name in IDS),
        *({name: one} for name, one in IDS.items()),  # the other one is gone
        {},
    ],
)
async def test_topics_made_anew_tell_nothing(monkeypatch: pytest.MonkeyPatch, ids: dict[str, UUID]) -> None:
    assert await translated(monkeypatch, 120, ids=ids) == []


async def test_the_ids_of_remote_topics_are_those_of_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever moves a group later can tell whether the topic is still the one."""
    ids = dict(IDS)
    translator, _, _ = made(monkeypatch, ids=ids)
    await translator.follow()
    ids["us.orders"] = UUID(int=9)
    assert translator.target_id("us.orders") == IDS["us.orders"]
    assert translator.target_id("us.unknown") is None


@pytest.mark.parametrize("offset", [120, 150, 250])
async def test_a_log_of_which_nobody_has_told_where_it_begins(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """A place before it would leave the group to ``auto.offset.reset``."""
    assert await translated(monkeypatch, offset, log_start=None) == []


@pytest.mark.parametrize("were_read", [False, True])
async def test_without_a_right_to_offset_syncs_the_map_goes_on_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, were_read: bool
) -> None:
    """Before the map nobody knows then, and nothing is skipped: the group gets no place."""
    translator, _, syncs = made(monkeypatch)
    if were_read:
        await translator.follow()
        assert await translator.translate(SOURCE, 50) == [TranslatedOffset(TARGET, 5, by_map=False)]
    syncs.may_be_read = False
    for _ in range(3):
        await translator.follow()
        for offset, found in ((120, 30), (150, 60), (250, 109)):
            assert await translator.translate(SOURCE, offset) == [TranslatedOffset(TARGET, found, by_map=True)]
        for offset in (39, 50, 99):
            assert await translator.translate(SOURCE, offset) == []
    (line,) = caplog.messages
    assert "grant DESCRIBE on topic syncs; groups are translated by the offset map alone" in line
    syncs.may_be_read = True
    await translator.follow()
    assert await translator.translate(SOURCE, 50) == [TranslatedOffset(TARGET, 5, by_map=False)]


@pytest.mark.parametrize("is_empty", [True, False])
async def test_nor_can_the_map_tell_if_it_knows_nothing(monkeypatch: pytest.MonkeyPatch, is_empty: bool) -> None:
    translator, maps, syncs = made(monkeypatch)
    syncs.may_be_read = False
    maps.position = None if is_empty else POSITION
    maps.cannot_be_read = not is_empty
    with pytest.raises(SecurityError, match="grant DESCRIBE on topic syncs"):
        await translator.follow()


PAIR = MapPair("orders", UUID(int=1), 0, "us.orders", UUID(int=2), 0)


@pytest.mark.parametrize("has_some", [False, True])
async def test_what_lies_before_the_map_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, has_some: bool) -> None:
    """Whatever is written later goes to the end; a transaction that is open there may still bring some."""
    asked: list[Any] = []

    async def has_records(_: Any, *wanted: Any, is_decided: bool) -> bool:
        assert is_decided
        asked.append(wanted)
        return has_some

    put(monkeypatch, offset_translation, known_offsets=({("us.orders", 0): 0}, {}))
    monkeypatch.setattr(offset_translation, "has_records", has_records)
    found = Beginnings(cast(Any, SimpleNamespace(name="eu")))
    assert not await found.is_bare_before(PAIR, 0), "nobody knows where the log begins"
    await found.follow([PAIR])
    assert await found.is_bare_before(PAIR, 0)
    for _ in range(2):
        assert await found.is_bare_before(PAIR, 100) == (not has_some)
        await found.follow([PAIR])
    assert await found.is_bare_before(PAIR, 1) == (not has_some)
    place = ("us.orders", 0)
    assert asked == [(place, 0, 100), (place, 0, 1)], "another offset is another question"
    await found.follow([])
    await found.follow([PAIR])
    await found.is_bare_before(PAIR, 1)
    assert asked[2:] == [(place, 0, 1)]


async def test_a_leader_that_is_missing_for_a_moment_takes_no_beginning_away(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("us.orders", 0)
    missing: Any = ({}, {place: "no leader"})
    answers: list[Any] = [missing, ({place: 900}, {}), missing, ({place: 950}, {})]

    async def known_offsets(*_: Any) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(offset_translation, "known_offsets", known_offsets)
    found, seen = Beginnings(cast(Any, SimpleNamespace(name="eu"))), []
    while answers:
        await found.follow([PAIR])
        seen.append(found.readable(PAIR, 100))
    assert seen == [None, 900, 900, 950]
    answers = [missing]
    anew = replace(PAIR, target_topic_id=UUID(int=3))
    await found.follow([anew])
    assert found.readable(anew, 100) is None
