"""How far a thinned source was copied: by chance, against what is known of it from outside."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest

from connect.wire.records import Record
from connectors.dataplane.alignment import SurplusRecords, digest_of, key_of
from connectors.dataplane.placing import Place, Thinned
from connectors.dataplane.plan import ProducerIdentity, Proof, Run
from connectors.dataplane.rest import Rest
from connectors.dataplane.survivors import Bounds, Survivors, Walk
from connectors.offset_map import Run as MapRun
from connectors.offset_map import RunList

STORED = 100
TARGET_END = 1_000


@dataclass
class World:
    """A source that is copied, compacted and cut in turns, a copy that is killed, and a target."""

    chance: random.Random
    has_likes: bool
    #: Some records are left out at first, and given later: a setting was changed.
    hides: bool = False
    #: A query drops the keys.
    drops_keys: bool = False
    source: list[Record] = field(default_factory=list)
    history: list[Record] = field(default_factory=list)
    copied: list[Record] = field(default_factory=list)
    #: (index among the copied, record) as the target has it now
    target: list[tuple[int, Record]] = field(default_factory=list)
    end: int = STORED
    start: int = 0
    made: int = 0
    hidden: set[int] = field(default_factory=set)

    def append(self, most: int) -> None:
        """Some offsets hold no record: markers, aborted transactions."""
        for _ in range(self.chance.randint(0, most)):
            if self.chance.random() < 0.8:
                record = Record(self.end, *self._made(), [])
                self.source.append(record)
                self.history.append(record)
                if self.hides and self.chance.random() < 0.3:
                    self.hidden.add(record.offset)
            self.end += 1

    def _made(self) -> tuple[int, bytes | None, bytes | None]:
        self.made += 1
        key = b"k%d" % self.chance.randrange(4)
        if self.has_likes:
            return 1, key, self.chance.choice((b"up", b"down", None))
        return self.made, key, self.chance.choice((b"%d" % self.made, b"%d" % self.made, None))

    def copy(self, most: int) -> None:
        behind = self.reached
        given = [one for one in self.source if one.offset >= behind and one.offset not in self.hidden]
        self.copied += given[: self.chance.randint(0, most)]

    @property
    def reached(self) -> int:
        """Behind the last one that was copied."""
        return self.copied[-1].offset + 1 if self.copied else STORED

    def clean(self) -> None:
        """The cleaner has come so far: of each key the last up to there stays."""
        upto = self.chance.randint(STORED, self.end)
        last = {record.key: record.offset for record in self.source if record.offset < upto}
        self.source = [one for one in self.source if one.offset >= last.get(one.key, 0)]

    def expire(self) -> None:
        """Retention has come so far."""
        self.start = max(self.start, self.chance.randint(STORED, self.end))
        self.source = [one for one in self.source if one.offset >= self.start]

    def arrive(self) -> None:
        self.target = list(enumerate(self.copied))

    def clean_target(self, *, drops_tombstones: bool) -> None:
        last = {record.key: index for index, record in self.target}
        self.target = [
            (index, one)
            for index, one in self.target
            if last[one.key] == index
            and (one.value is not None or not drops_tombstones or index == len(self.copied) - 1)
        ]

    def cut_target(self) -> None:
        first = self.chance.randrange(len(self.copied))
        self.target = [(index, one) for index, one in self.target if index >= first]

    def given(self, record: Record) -> Record:
        """As the mirror copies it."""
        return record._replace(key=None) if self.drops_keys else record

    @property
    def certain_before(self) -> int:
        return STORED if self.drops_keys else STORED + len(self.copied)

    def is_fooled(self, passed: list[Record]) -> bool:
        """The source lost unseen all that was copied and more, and at least two different ones that it begins with are
        like some that were copied: nobody can tell them from those."""
        copied = {content(self.given(one)) for one in self.copied}
        alike = {content(self.given(one)) for one in passed} & copied
        is_unseen = self.start >= self.certain_before and all(one.offset >= self.reached for one in self.source)
        return is_unseen and len(alike) > 1

    def surplus(self) -> SurplusRecords:
        written = SurplusRecords(Proof(ProducerIdentity(1, 0), 0, None))
        for index, copied in self.target:
            record = self.given(copied)
            written.offsets.append(TARGET_END + index)
            written.indexes.append(index)
            written.digests.append(digest_of(record))
            written.keys.append(key_of(record))
            written.timestamps_ms.append(record.timestamp_ms)
        return written


def resumed(world: World, *, is_compacted: bool | None, busy_cleaner: bool = False) -> tuple[Place, Survivors]:
    """As :class:`Resumer` does it; the cleaner may work while the source is read."""
    written = world.surplus()
    bounds = Bounds(STORED, world.start, world.certain_before, len(world.copied), world.certain_before)
    thinned = Thinned(bounds, is_compacted=is_compacted, may_differ=world.drops_keys)
    for _ in range(3):
        walk = Survivors(bounds, written, read_committed=True)
        go(world, walk, busy_cleaner=busy_cleaner)
        rest = Rest(walk, read_committed=True)
        if walk.is_over and walk.is_whole and walk.remaining:
            go(world, rest, busy_cleaner=busy_cleaner)
        place = thinned.place(walk, differs=rest.is_seen)
        if not place.may_double:
            break
    return place, walk


def go(world: World, walk: Walk, *, busy_cleaner: bool) -> None:
    while not walk.is_over and (ahead := [one for one in world.source if one.offset >= walk.position]):
        some = ahead[: world.chance.randint(1, 5)] if busy_cleaner else ahead
        walk.take_records(map(world.given, some), some[-1].offset + 1)
        if busy_cleaner and world.chance.random() < 0.3:
            world.clean()


def content(record: Record) -> tuple[bytes | None, bytes | None, int]:
    return record.key, record.value, record.timestamp_ms


def judge(world: World, place: Place, walk: Survivors, *, is_compacted: bool) -> None:
    reached = world.reached
    again = [one for one in world.source if one.offset >= place.offset]
    assert sum(one.offset < reached for one in again) <= place.may_double, "what comes twice was announced"
    judge_passed(world, place, again, is_compacted=is_compacted)
    if place.offset < world.start:
        named = [one for one in world.copied if place.offset <= one.offset < world.start]
        assert place.offset <= reached, "all that is lost is named"
        assert len(named) <= place.may_be_there, "what is named as lost though it is there was announced"
    elif not world.is_fooled([one for one in world.source if one.offset < place.offset]):
        silent = [one for one in world.history if reached <= one.offset < min(world.start, place.offset)]
        assert not silent, "nothing is lost in silence"
    runs = walk.runs(place.offset, with_gone=not world.drops_keys)
    judge_runs(world, runs)
    if not world.is_fooled([one for one in world.source if one.offset < place.offset]):
        judge_way_back(world, runs, again, has_last_values=is_compacted and not world.drops_keys)


def judge_passed(world: World, place: Place, again: list[Record], *, is_compacted: bool) -> None:
    """Of likes only, and so that the last value of each key is right; what has no key is never passed over."""
    passed = [one for one in world.source if world.reached <= one.offset < place.offset]
    has_last_values = is_compacted and not world.drops_keys
    assert not passed or world.is_fooled(passed) or (has_last_values and world.has_likes), "it was not copied"
    wanted = {one.key: content(one) for one in world.source}
    has = {one.key: content(one) for one in [*(one for _, one in world.target), *again]}
    for record in passed if has_last_values else ():
        assert has[record.key] == wanted[record.key], "the last value of each key is right"


def judge_runs(world: World, runs: list[Run]) -> None:
    for (up, down, count), (next_up, next_down, _) in itertools.pairwise(runs):
        assert up + count <= next_up, "the map is in order"
        assert down + count <= next_down, "the map is in order"
    if not world.has_likes:
        judge_places(
            world, [(up + step, down + step - TARGET_END) for up, down, count in runs for step in range(count)]
        )


def judge_way_back(world: World, runs: list[Run], again: list[Record], *, has_last_values: bool) -> None:
    """A reader at any place of the target, led back by the map, misses nothing that is left; of a compacted source no
    key's last value."""
    known = RunList()
    known.append(MapRun(STORED - 1, TARGET_END - 1, 1))
    for run in runs:
        known.append(MapRun(*run))
    for at, record in enumerate(again):
        known.append(MapRun(record.offset, TARGET_END + len(world.copied) + 1 + at, 1))
    read: dict[bytes | None, Record] = {}
    offsets: set[int] = set()
    for index in range(len(world.copied) + 1):
        back = known.reverse(TARGET_END + index)
        assert back is not None
        skipped = [one for one in world.source if one.offset < back.offset]
        if has_last_values:
            later = {one.key for one in world.source if one.offset >= back.offset}
            last = {one.key: one for one in skipped if one.key not in later}
            missed = [one for key, one in last.items() if key not in read or content(read[key]) != content(one)]
        else:
            missed = [one for one in skipped if one.offset not in offsets]
        assert not missed, "who comes back skips nothing"
        if index < len(world.copied):
            read[world.copied[index].key] = world.copied[index]
            offsets.add(world.copied[index].offset)


def judge_places(world: World, places: list[tuple[int, int]]) -> None:
    """What is left is where it is. What is gone may lie further on, but not behind anything that is left."""
    left = {one.offset for one in world.source}
    for offset, index in places:
        true = world.copied[index].offset
        assert true <= offset
        assert not left & set(range(true, offset)), "nothing that is left lies between"
    known = dict(places)
    copied = [(one.offset, index) for index, one in world.target if one.offset in left]
    assert all(known[offset] == index for offset, index in copied if offset in known)


def world_of(
    seed: int, *, has_likes: bool, is_compacted: bool, is_cut: bool, hides: bool = False, drops_keys: bool = False
) -> World:
    """Killed after some was copied; not all of these logs lose anything."""
    world = World(random.Random(seed), has_likes, hides, drops_keys)
    while not world.copied:
        world.append(12)
        for _ in range(world.chance.randint(0, 3)):
            if is_compacted and world.chance.random() < 0.5:
                world.clean()
            world.copy(6)
            world.append(4)
    world.arrive()
    for _ in range(world.chance.randint(0, 3)):
        world.append(8)
        if is_compacted and world.chance.random() < 0.7:
            world.clean()
    if is_cut:
        world.expire()
        world.append(4)
    return world


SEEDS = 100


def is_one_alone(world: World, walk: Survivors) -> bool:
    """A cut source has one left that is like a copied one, which may have been sent twice."""
    return world.start >= world.certain_before and walk.found == 1


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("has_likes", [False, True])
def test_a_compacted_source_is_gone_on_with_exactly(has_likes: bool, is_cut: bool) -> None:
    """Also while it is cleaned. Without likes nothing stays in doubt but what a cut source took away unseen."""
    for seed in range(SEEDS):
        world = world_of(seed, has_likes=has_likes, is_compacted=True, is_cut=is_cut)
        place, walk = resumed(world, is_compacted=True, busy_cleaner=bool(seed % 2))
        judge(world, place, walk, is_compacted=True)
        assert has_likes or not place.may_double or is_one_alone(world, walk), seed


@pytest.mark.parametrize("has_likes", [False, True])
def test_a_plain_source_that_was_cut_is_gone_on_with_exactly(has_likes: bool) -> None:
    for seed in range(SEEDS):
        world = world_of(seed, has_likes=has_likes, is_compacted=False, is_cut=True)
        place, walk = resumed(world, is_compacted=False)
        judge(world, place, walk, is_compacted=False)
        assert has_likes or not place.may_double or is_one_alone(world, walk), seed


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("has_likes", [False, True])
def test_a_source_that_may_be_plain_or_compacted_is_taken_for_either(has_likes: bool, is_compacted: bool) -> None:
    """We may not ask. What holds of a plain one holds of it, for all that is known."""
    for seed in range(SEEDS):
        world = world_of(seed, has_likes=has_likes, is_compacted=is_compacted, is_cut=bool(seed % 3))
        place, walk = resumed(world, is_compacted=None, busy_cleaner=is_compacted and bool(seed % 2))
        judge(world, place, walk, is_compacted=is_compacted)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_compacted", [False, True, None])
@pytest.mark.parametrize("has_likes", [False, True])
def test_where_a_query_drops_the_keys_records_of_others_stay(
    has_likes: bool, is_compacted: bool | None, is_cut: bool
) -> None:
    """What has vanished of one key may be like another's, and the target has no last value of either."""
    for seed in range(SEEDS):
        world = world_of(seed, has_likes=has_likes, is_compacted=bool(is_compacted), is_cut=is_cut, drops_keys=True)
        place, walk = resumed(world, is_compacted=is_compacted)
        judge(world, place, walk, is_compacted=bool(is_compacted))


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_a_changed_setting_brings_again_is_announced(is_cut: bool) -> None:
    for seed in range(SEEDS):
        world = world_of(seed, has_likes=False, is_compacted=True, is_cut=is_cut, hides=True)
        place, _ = resumed(world, is_compacted=True)
        again = [one for one in world.copied if one in world.source and one.offset >= place.offset]
        assert len(again) <= place.may_double, "what comes twice was announced"
        judge_passed(world, place, [one for one in world.source if one.offset >= place.offset], is_compacted=True)


@pytest.mark.parametrize("has_likes", [False, True])
@pytest.mark.parametrize("loses", ["values", "tombstones", "its beginning"])
def test_where_the_target_lost_some_too_nothing_is_lost_by_it(loses: str, has_likes: bool) -> None:
    for seed in range(SEEDS):
        world = world_of(seed, has_likes=has_likes, is_compacted=True, is_cut=not seed % 4)
        if loses == "its beginning":
            world.cut_target()
        if loses != "its beginning" or seed % 2:
            world.clean_target(drops_tombstones=loses == "tombstones")
        place, walk = resumed(world, is_compacted=True)
        judge(world, place, walk, is_compacted=True)
