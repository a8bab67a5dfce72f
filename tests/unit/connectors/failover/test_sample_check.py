"""The proof of a failover: what is compared, what is not and why, and how that is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli.commands.failover_view import show_proofs
from connectors.failover import log_comparison
from connectors.failover.snapshot import DIFFERS, NOT_COMPARED, SAME, GroupMove, How, SampleCheck
from tests.kit.answers import put
from tests.kit.virtual_time import in_virtual_time

MOVE = GroupMove("readers", ("orders", 0), 40, ("us.orders", 0), None, "", 37, "note", How.EXACT)


def record(offset: int, key: bytes | None, value: bytes | None) -> Any:
    return SimpleNamespace(offset=offset, key=key, value=value, headers=(), timestamp=7, timestamp_type=0)


NUMBERS = [record(at, None, b"%d" % at) for at in range(30)]
MASKED = [record(at, None, b"masked") for at in range(30)]


async def proof(patch: pytest.MonkeyPatch, eu: Sequence[Any], us: Sequence[Any], at: int, **more: Any) -> SampleCheck:
    """Of a group at offset ``at`` on both sides; ``policies``: ``cleanup.policy`` by cluster, None unreadable."""
    policies = more.get("policies", {})

    async def perhaps_compacted(cluster: str, topics: set[str], *, in_doubt: bool = True) -> set[str]:
        policy = policies.get(cluster, "delete")
        is_so = in_doubt if policy is None else "compact" in policy
        return topics if is_so else set()

    async def next_records(cluster: str, places: Any, count: int, _: bool) -> Any:
        assert "begin" not in more, "a consumer would be reset"
        if more.get("stalls") == {"eu": "source", "us": "target"}[cluster]:
            return {}
        return {one: {"eu": eu, "us": us}[cluster][at : at + count] for one in places}

    put(patch, log_comparison, known_offsets=({("orders", 0): more.get("begin", 0)}, {}))
    patch.setattr(log_comparison, "perhaps_compacted", perhaps_compacted)
    patch.setattr(log_comparison, "next_records", next_records)
    move = GroupMove("readers", ("orders", 0), at, ("orders", 0), None, "", at, "", more.get("how", How.EXACT))
    names = {name: more.get(name, "") for name in ("there", "back")}
    flow, back = (SimpleNamespace(flow=name, changing_key=key, read_committed=True) for name, key in names.items())
    site: Any = SimpleNamespace(flow=flow, back=back, source="eu", target="us")
    (found,) = await log_comparison.prove(site, [move], more.get("sample", 10), is_gone=more.get("is_gone", False))
    return found


@pytest.mark.parametrize(("eu", "outcome"), [(NUMBERS, SAME), (NUMBERS[1:], DIFFERS), (MASKED, DIFFERS)])
async def test_the_next_records_are_compared(monkeypatch: pytest.MonkeyPatch, eu: list[Any], outcome: str) -> None:
    found = await proof(monkeypatch, eu, NUMBERS, 10)
    assert (found.outcome, found.records) == (outcome, 10 if outcome == SAME else 0)


@pytest.mark.parametrize(
    ("policies", "outcome"),
    [
        ({"us": "compact"}, NOT_COMPARED),
        ({"eu": "compact,delete"}, NOT_COMPARED),
        ({"us": None}, NOT_COMPARED),
        ({"eu": None}, DIFFERS),
    ],
)
async def test_compacted_topics_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, policies: dict[str, str | None], outcome: str
) -> None:
    """Nor are those of the target whose policy cannot be read."""
    found = await proof(monkeypatch, NUMBERS, MASKED, 10, policies=policies)
    assert (found.outcome, "compacted" in found.why) == (outcome, outcome == NOT_COMPARED)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"there": "transforms"}, "there changes records (transforms)"),
        ({"there": "transform.sql", "back": "transforms"},
         "there changes records (transform.sql), back changes records (transforms)"),
        ({"sample": 0}, "--sample 0"),
        ({"is_gone": True, "sample": 0}, "the source is gone"),
    ],
)  # fmt: skip
async def test_why_nothing_is_compared_is_told(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], why: str) -> None:
    found = await proof(monkeypatch, NUMBERS, MASKED, 10, **more)
    assert (found.outcome, found.why) == (NOT_COMPARED, why)


async def test_nothing_to_compare_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for us, words in ((NUMBERS[:10], ""), (NUMBERS[:13], "; the target continues with 3 records or more")):
        found = await proof(monkeypatch, NUMBERS[:10], us, 10)
        assert (found.outcome, found.why) == (NOT_COMPARED, f"nothing follows on the source{words}")


async def test_what_the_source_has_deleted_is_not_compared_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await proof(monkeypatch, NUMBERS, NUMBERS, 10, begin=11)
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


@in_virtual_time
async def test_of_what_a_fetch_brings_no_more_is_kept_than_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who stands still is told from who is at the end."""
    consumer, asked = Consumer(), dict[str, Any]()

    def reader(_: Any, **arguments: Any) -> Any:
        asked.update(arguments)
        return contextlib.nullcontext(consumer)

    monkeypatch.setattr(log_comparison, "reader", reader)
    monkeypatch.setattr(log_comparison, "_SILENCE_S", 0.1)
    places = {("orders", 0): 10, ("orders", 1): 10, ("orders", 2): 8998, ("orders", 3): 10, ("orders", 4): 9000}
    found = await log_comparison.next_records(cast(Any, "us"), places, 4, True)
    assert {index: [one.offset for one in records] for (_, index), records in found.items()} == {
        0: [10, 11, 12, 13], 2: [8998, 8999], 4: [],
    }  # fmt: skip
    assert consumer.paused == {0, 2, 4}
    assert asked["max_partition_fetch_bytes"] <= 64 << 10, "of as many partitions as a group has"


def test_no_more_than_a_few_hundred_partitions_are_read_at_once() -> None:
    moves = [replace(MOVE, source=("orders", at), target=("us.orders", at)) for at in range(1000)]
    assert [len(one) for one in log_comparison._rounds(moves)] == [200] * 5


@pytest.mark.parametrize("side", ["source", "target"])
async def test_what_is_not_read_in_time_neither_differs_nor_ends(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    found = await proof(monkeypatch, NUMBERS, NUMBERS, 10, stalls=side)
    assert (found.outcome, found.why) == (NOT_COMPARED, f"the {side} could not be read in time")


def test_why_places_were_not_compared_is_told_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    def of(group: str, outcome: str, why: str = "") -> SampleCheck:
        return SampleCheck(group, "orders-0 at 4", "us.orders-0 at 3", 2, outcome, why)

    proofs = [of("a", SAME), of("b", DIFFERS, "'1' against '2'"), of("c", NOT_COMPARED, "nothing follows")]
    proofs += [of(f"d{at}", NOT_COMPARED, "the flow") for at in range(40)]
    show_proofs(proofs, everything=False)
    assert capsys.readouterr().out.splitlines() == [
        "sample: 1 of 43 target offsets match (2 records), 1 differ, 41 could not be compared",
        "  differs: group b, orders-0 at 4 and us.orders-0 at 3: '1' against '2'",
        "  not compared: 40 target offsets, such as group d0, orders-0 at 4 and us.orders-0 at 3: the flow",
        "  not compared: group c, orders-0 at 4 and us.orders-0 at 3: nothing follows",
    ]
    show_proofs(proofs, everything=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 42
    show_proofs([of("c", NOT_COMPARED, f"reason {at}") for at in range(25)], everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (12, "  and 15 more, for other reasons: --all shows them")
