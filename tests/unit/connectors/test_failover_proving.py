"""The proof of a failover: what is compared, what is not and why, and how that is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from connect.cli.failover_view import show_proofs
from connect.kafka.offsets import READ_COMMITTED
from connectors.dataplane.plan import TopicPartition
from connectors.failover import around, proving, unchanged
from connectors.failover.around import settle
from connectors.failover.cleaned import FAR, Sample, Verdict
from connectors.failover.model import DIFFERS, NOT_COMPARED, SAME, BothCopied, GroupMove, How, Proof
from connectors.failover.unchanged import Unchanged
from connectors.offset_map import Pair, Run, RunList, Translation

MOVE = GroupMove("readers", ("orders", 0), 40, ("us.orders", 0), None, "", 37, "note", How.EXACT)
COUNT = 4


def record(offset: int, key: bytes | None, value: bytes | None, timestamp: int = 7, timestamp_type: int = 0) -> Any:
    return SimpleNamespace(
        offset=offset, key=key, value=value, headers=(), timestamp=timestamp, timestamp_type=timestamp_type
    )


class Log:
    """What is left of a partition; ``decided`` is its last stable offset."""

    def __init__(self, records: Sequence[Any], end: int = 1_000_000, decided: int | None = None) -> None:
        self.records, self.end = records, end
        self.decided = end if decided is None else decided

    def behind(self, offset: int) -> list[Any]:
        return [one for one in self.records if one.offset >= offset]


async def settled(log: Log, place: int, ours: Sequence[Any], count: int = COUNT) -> Verdict:
    """By the real :func:`settle`, of a target that holds ``log``."""

    async def read(_: Any, partition: Any, ranges: list[tuple[int, int]]) -> AsyncGenerator[Any, None]:
        assert partition == TopicPartition("us.orders", 0)
        ((begin, end),) = ranges
        for one in log.records:
            if begin <= one.offset < min(end, log.decided):
                yield one

    async def told(_: Any, partitions: Collection[Any], __: int, isolation: int = 0) -> Any:
        return dict.fromkeys(partitions, log.decided if isolation == READ_COMMITTED else log.end), {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(around, "read_ranges", read)
        patch.setattr(around, "told_offsets", told)
        theirs = [one for one in log.behind(place) if one.offset < log.decided][:count]
        return await settle(cast(Any, "eu"), replace(MOVE, after=place), Sample(ours, theirs))


# -- of compacted topics, against a model of them -------------------------------------------------


def cleaned(log: Sequence[Any], up_to: int, *, drops_deletions: bool) -> list[Any]:
    """As Kafka's cleaner: of what lies before ``up_to`` the newest of each key."""
    newest = {one.key: one.offset for one in log if one.offset < up_to}
    kept = [one for one in log if one.offset >= up_to or newest[one.key] == one.offset]
    return [one for one in kept if not (drops_deletions and one.offset < up_to and one.value is None)]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Any], list[Any], dict[int, int], int]:
    """A source and its copy, each cleaned on its own; where each source record was copied to, and where a group stands
    at the source. Records are written twice, with the same time."""
    one = st.tuples(st.sampled_from(b"abcd"), st.sampled_from([b"1", b"2", None]), st.integers(0, 1))
    written = [
        record(at, b"%c" % key, value, time) for at, (key, value, time) in enumerate(draw(st.lists(one, max_size=24)))
    ]
    before, here, there = (draw(st.integers(0, len(written))) for _ in range(3))
    at_copying = cleaned(written, before, drops_deletions=draw(st.booleans()))
    places = {one.offset: at for at, one in enumerate(at_copying)}
    source = cleaned(at_copying, here, drops_deletions=draw(st.booleans()))
    kept = cleaned(at_copying, there, drops_deletions=draw(st.booleans()))
    target = [SimpleNamespace(**{**vars(one), "offset": places[one.offset]}) for one in kept]
    return source, target, places, draw(st.integers(0, len(written)))


def exact(places: Mapping[int, int], offset: int) -> int:
    return next((place for at, place in places.items() if at >= offset), len(places))


@given(logs())
async def test_an_exact_place_never_differs(found: tuple[list[Any], list[Any], dict[int, int], int]) -> None:
    source, target, places, group = found
    ours = Log(source).behind(group)[:COUNT]
    assume(ours)
    verdict = await settled(Log(target), exact(places, group), ours)
    assert verdict.outcome != DIFFERS, verdict


@given(logs(), st.integers(1, 6))
async def test_a_place_that_skips_the_newest_of_a_key_differs(
    found: tuple[list[Any], list[Any], dict[int, int], int], too_far: int
) -> None:
    source, target, places, group = found
    place = exact(places, group) + too_far
    ours = Log(source).behind(group)[:COUNT]
    newest = {one.key: one.offset for one in target}
    assume(any(newest.get(one.key) == places[one.offset] < place for one in ours))
    verdict = await settled(Log(target), place, ours)
    assert verdict.outcome == DIFFERS, verdict


A, B, C = (record(at, b"%c" % key, b"%d" % at) for at, key in enumerate(b"abc"))
LATER = record(9, b"b", b"later")


@pytest.mark.parametrize(
    ("ours", "target", "outcome"),
    [
        ([A, B, C], [A, B, C], SAME),
        ([A, B, C], [A, C, LATER], SAME),
        ([A, B, C], [A, C], NOT_COMPARED),  # skipped, perhaps
        ([A, record(1, b"b", None), C], [A, C], SAME),  # a deletion whose mark is gone
        ([A, B], [B, A], NOT_COMPARED),
        ([B], [LATER], NOT_COMPARED),
        ([A], [B], NOT_COMPARED),
        # Of a topic that may be none that is compacted: who has no key has no newer one.
        ([record(0, None, b"1"), A], [A, record(8, None, b"2")], NOT_COMPARED),
    ],
)
async def test_what_a_cleaner_may_have_taken(ours: list[Any], target: list[Any], outcome: str) -> None:
    assert (await settled(Log(target), 0, ours)).outcome == outcome


async def test_newer_ones_are_looked_for_behind_the_sample() -> None:
    many = [record(10 + at, b"x%d" % at, b"") for at in range(50)]
    assert (await settled(Log([A, *many, record(99, b"b", b"later")]), 0, [A, B])).outcome == SAME
    verdict = await settled(Log([A, *many]), 0, [A, B])
    assert verdict == Verdict(
        1, NOT_COMPARED, "1 of the next records are not among those on the target, nor newer ones of their keys"
    )


async def test_what_was_not_read_to_its_end_is_not_said_to_differ() -> None:
    """It may have been written twice: once before the group's place, and once far behind it."""
    many = [record(10 + at, b"x%d" % at, b"") for at in range(FAR + 10)]
    verdict = await settled(Log([A, B, *many]), 2, [B])
    assert (verdict.outcome, f"later than {FAR}" in verdict.why) == (NOT_COMPARED, True)
    verdict = await settled(Log([A, B, C], end=9, decided=8), 2, [B, C])
    assert verdict.outcome == NOT_COMPARED, "a transaction is open"
    verdict = await settled(Log([A, B, C], end=9), 2, [B, C])
    assert verdict == Verdict(1, DIFFERS, "'1' lies before the place on the target, and is passed over")


async def test_a_target_that_stamps_records_itself_has_the_same_ones() -> None:
    stamped = [record(one.offset, one.key, one.value, 99, timestamp_type=1) for one in (A, B, C)]
    assert (await settled(Log(stamped), 0, [A, B, C])).outcome == SAME
    assert (await settled(Log(stamped), 1, [A, B, C])).outcome == NOT_COMPARED


# -- where a flow changes records -----------------------------------------------------------------


class Maps:
    """One topic, copied in ``runs``; none where there are none."""

    def __init__(self, pair: Pair, runs: Sequence[Run]) -> None:
        self._pair, self._runs = pair, RunList(list(runs))
        self._knows = bool(runs)

    async def follow(self) -> None: ...

    def current(self, source: TopicPartition) -> Pair | None:
        is_it = self._knows and source == (self._pair.source_topic, self._pair.source_partition)
        return self._pair if is_it else None

    async def forward(self, _: Pair, offset: int) -> Translation | None:
        return self._runs.forward(offset)

    async def reverse(self, _: Pair, offset: int) -> Translation | None:
        return self._runs.reverse(offset)


def compares(
    monkeypatch: pytest.MonkeyPatch, flow: Sequence[Run], back: Sequence[Run], by_flow: str = "", by_back: str = ""
) -> Unchanged:
    """Groups go from eu to us, and ``orders`` keeps its name: what us->eu brought lies beside what eu->us copies."""
    pair = Pair("orders", UUID(int=1), 0, "orders", UUID(int=2), 0)
    maps = {"eu->us": Maps(pair, flow), "us->eu": Maps(pair, back)}
    monkeypatch.setattr(unchanged, "MapReader", lambda _, topic, **__: maps[topic])
    flows = (
        SimpleNamespace(flow=name, map_topic=name, name="MirrorSourceConnector", changing_key=key, enabled=True)
        for name, key in (("eu->us", by_flow), ("us->eu", by_back))
    )
    there, here = flows
    return Unchanged(cast(Any, SimpleNamespace(flow=there, back=here, source="eu", target="us")))


NUMBERS = [record(at, None, b"%d" % at) for at in range(30)]
MASKED = [record(at, None, b"masked") for at in range(30)]


async def proof(
    monkeypatch: pytest.MonkeyPatch, known: Unchanged, eu: Sequence[Any], us: Sequence[Any], at: int, **more: Any
) -> Proof:
    """Of a group at offset ``at`` on both sides."""

    async def told_offsets(*_: Any) -> Any:
        return {("orders", 0): more.get("begin", 0)}, {}

    async def compacted(*_: Any, **__: Any) -> set[str]:
        return set()

    async def next_records(cluster: str, places: Any, count: int, _: bool) -> Any:
        assert "begin" not in more, "a consumer would be reset"
        if more.get("stalls") == {"eu": "source", "us": "target"}[cluster]:
            return {}
        return {("orders", 0): {"eu": eu, "us": us}[cluster][at : at + count]}

    monkeypatch.setattr(proving, "told_offsets", told_offsets)
    monkeypatch.setattr(proving, "compacted", compacted)
    monkeypatch.setattr(proving, "_next_records", next_records)
    move = GroupMove("readers", ("orders", 0), at, ("orders", 0), None, "", at, "", more.get("how", How.EXACT))
    source, target = cast(Any, "eu"), cast(Any, "us")
    (found,) = await proving.prove(source, target, [move], 10, read_committed=True, unchanged=known)
    return found


ALL = [Run(0, 0, 30)]


@pytest.mark.parametrize(
    ("flow", "back", "keys", "eu", "outcome", "records"),
    [
        (ALL, [], {}, NUMBERS, SAME, 10),
        (ALL, [], {}, MASKED, DIFFERS, 0),
        # us->eu has masked what the group reads on eu, and eu->us changes nothing.
        ([], ALL, {"by_back": "transforms"}, MASKED, NOT_COMPARED, 0),
        (ALL, [], {"by_back": "transforms"}, NUMBERS, SAME, 10),
        # And the reverse: of what us->eu brought nothing was changed.
        ([], ALL, {"by_flow": "transforms"}, NUMBERS, SAME, 10),
        ([], ALL, {"by_flow": "transforms"}, NUMBERS[1:], DIFFERS, 0),
        (ALL, [], {"by_flow": "transforms"}, MASKED, NOT_COMPARED, 0),
        (ALL, [], {"by_flow": "transform.sql", "by_back": "transforms"}, NUMBERS, NOT_COMPARED, 0),
        # Under names that are kept: as far as the flow that changes nothing has copied them.
        ([Run(16, 16, 9)], [Run(0, 0, 16)], {"by_flow": "transforms"}, [*NUMBERS[:16], *MASKED[16:]], SAME, 6),
        ([Run(0, 0, 16)], [Run(16, 16, 9)], {"by_back": "transforms"}, [*NUMBERS[:16], *MASKED[16:]], SAME, 6),
        ([Run(0, 0, 9)], [Run(9, 9, 20)], {"by_back": "transforms"}, [*NUMBERS[:9], *MASKED[9:]], NOT_COMPARED, 0),
    ],
)
async def test_what_no_flow_has_changed_is_compared(
    monkeypatch: pytest.MonkeyPatch,
    flow: list[Run],
    back: list[Run],
    keys: dict[str, str],
    eu: list[Any],
    outcome: str,
    records: int,
) -> None:
    found = await proof(monkeypatch, compares(monkeypatch, flow, back, **keys), eu, NUMBERS, 10)
    assert (found.outcome, found.records) == (outcome, records), found.why
    if outcome == NOT_COMPARED:
        changing = {"by_flow": "eu->us", "by_back": "us->eu"}
        assert found.why == ", ".join(
            f"{changing[one]} changes records on their way, by {key}" for one, key in keys.items()
        )


@pytest.mark.parametrize("left", [0, 4])
async def test_what_the_target_lacks_is_missing_though_a_flow_changes_others(
    monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """All ten that come next were copied by the flow that changes nothing, and the target has lost the last of them."""
    known = compares(monkeypatch, ALL, [Run(0, 0, 9)], by_back="transforms")
    found = await proof(monkeypatch, known, NUMBERS, NUMBERS[: 10 + left], 10)
    assert (found.outcome, found.records) == (DIFFERS, left)
    assert found.why == f"the source goes on with {10 - left} records or more"


async def test_what_java_has_copied_by_a_flow_that_changes_records_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = compares(monkeypatch, [], [], by_flow="transforms")
    some_masked = [*MASKED[:12], *NUMBERS[12:]]
    assert (await proof(monkeypatch, known, NUMBERS, some_masked, 10, how=How.SYNCS)).outcome == NOT_COMPARED


async def test_nothing_to_compare_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    known = compares(monkeypatch, ALL, [])
    for us, words in ((NUMBERS[:10], ""), (NUMBERS[:13], "; the target goes on with 3 records or more")):
        found = await proof(monkeypatch, known, NUMBERS[:10], us, 10)
        assert (found.outcome, found.why) == (NOT_COMPARED, f"nothing follows on the source{words}")


async def test_what_the_source_has_deleted_is_not_compared_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await proof(monkeypatch, compares(monkeypatch, ALL, []), NUMBERS, NUMBERS, 10, begin=11)
    assert (found.outcome, "begins at 11" in found.why) == (NOT_COMPARED, True)


class Consumer:
    """Of partitions that end at 9000. One whose number is odd stands still, and hands out nothing; every fourth has no
    position either."""

    def __init__(self) -> None:
        self.at: dict[Any, int] = {}
        self.paused: set[int] = set()

    def assign(self, partitions: list[Any]) -> None: ...

    def seek(self, partition: Any, offset: int) -> None:
        self.at[partition] = offset

    def pause(self, partition: Any) -> None:
        self.paused.add(partition.partition)

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 9000)

    async def position(self, partition: Any) -> int:
        if partition.partition % 4 == 3:
            await asyncio.Event().wait()
        return self.at[partition]

    async def getmany(self, *partitions: Any, timeout_ms: int) -> dict[Any, list[Any]]:
        await asyncio.sleep(0.001)
        moving = [one for one in partitions if one.partition % 2 == 0]
        found = {one: [record(at, None, b"") for at in range(self.at[one], 9000)] for one in moving}
        self.at |= dict.fromkeys(moving, 9000)
        return found


async def test_of_what_a_fetch_brings_no_more_is_kept_than_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who stands still is told from who is at the end."""
    consumer, asked = Consumer(), dict[str, Any]()

    def reader(_: Any, **arguments: Any) -> Any:
        asked.update(arguments)
        return contextlib.nullcontext(consumer)

    monkeypatch.setattr(proving, "reader", reader)
    monkeypatch.setattr(proving, "_SILENCE_S", 0.1)
    places = {("orders", 0): 10, ("orders", 1): 10, ("orders", 2): 8998, ("orders", 3): 10, ("orders", 4): 9000}
    found = await proving._next_records(cast(Any, "us"), places, 4, True)
    assert {index: [one.offset for one in records] for (_, index), records in found.items()} == {
        0: [10, 11, 12, 13], 2: [8998, 8999], 4: [],
    }  # fmt: skip
    assert consumer.paused == {0, 2, 4}
    assert asked["max_partition_fetch_bytes"] <= 64 << 10, "of as many partitions as a group has"


def test_no_more_than_a_few_hundred_partitions_are_read_at_once() -> None:
    moves = [replace(MOVE, source=("orders", at), target=("us.orders", at)) for at in range(1000)]
    assert [len(one) for one in proving._rounds(moves)] == [200] * 5


@pytest.mark.parametrize("side", ["source", "target"])
async def test_who_could_not_be_read_in_time_neither_differs_nor_ends(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    found = await proof(monkeypatch, compares(monkeypatch, ALL, []), NUMBERS, NUMBERS, 10, stalls=side)
    assert (found.outcome, found.why) == (NOT_COMPARED, f"the {side} could not be read in time")


# -- what is printed ------------------------------------------------------------------------------


def test_why_places_were_not_compared_is_told_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    def of(group: str, outcome: str, why: str = "") -> Proof:
        return Proof(group, "orders-0 at 4", "us.orders-0 at 3", 2, outcome, why)

    proofs = [of("a", SAME), of("b", DIFFERS, "'1' against '2'"), of("c", NOT_COMPARED, "nothing follows")]
    proofs += [of(f"d{at}", NOT_COMPARED, "the flow") for at in range(40)]
    show_proofs(proofs, everything=False)
    assert capsys.readouterr().out.splitlines() == [
        "proof: 1 of 43 places compared are the same on both sides (2 records), 1 differ, 41 could not be compared",
        "  differs: group b, orders-0 at 4 and us.orders-0 at 3: '1' against '2'",
        "  not compared: 40 places, such as group d0, orders-0 at 4 and us.orders-0 at 3: the flow",
        "  not compared: group c, orders-0 at 4 and us.orders-0 at 3: nothing follows",
    ]
    show_proofs(proofs, everything=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 42
    show_proofs([of("c", NOT_COMPARED, f"reason {at}") for at in range(25)], everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (12, "  and 15 more, for other reasons: --all names them")


@pytest.mark.parametrize(("copied", "outcome"), [(2, SAME), (0, NOT_COMPARED)])
def test_a_copy_of_a_third_cluster_may_be_behind_the_other(copied: int, outcome: str) -> None:
    """Its place is right all the same: what the group has read is there."""
    ours = [record(at, b"k", b"%d" % at) for at in range(40, 44)]
    theirs = [record(at - 3, b"k", b"%d" % at) for at in range(40, 40 + copied)]
    move = replace(MOVE, third=BothCopied("ap->eu"))
    proof = proving.compare(move, ours, theirs)
    assert (proof.outcome, proof.records, proof.why) == (outcome, copied, "ap->eu has still to copy what follows")
    assert proving.compare(MOVE, ours, theirs).outcome == DIFFERS
    other = [record(37, b"k", b"41"), *theirs[1:]]
    assert proving.compare(move, ours, other).outcome == DIFFERS


async def test_what_a_third_cluster_sends_changed_is_not_compared() -> None:
    by = "ap->eu changes records on their way, by transform.sql"
    ours = [record(40, b"k", b"masked")]
    move = replace(MOVE, third=BothCopied("ap->eu", by))
    asked = cast(Unchanged, None)
    assert await proving._comparable(asked, move, ours, ours, is_compacted=False) == (ours, ours, by)
