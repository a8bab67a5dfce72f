"""Without a source --at takes partitions and groups of which no checkpoint tells, or says why it does not."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connect.cli.commands.failover import FailoverArguments, options_of
from connect.kafka.log.committed_offsets import Committed
from connect.kafka.log.offsets import LATEST
from connectors.failover import collect_snapshot, group_offsets, offset_lookup
from connectors.failover.group_offsets import GroupsLook
from connectors.failover.plan import FailoverOptions, is_blocking
from connectors.failover.snapshot import GroupMove, GroupRule, Groups, How
from connectors.formats.mirror_records import Checkpoint
from tests.kit.answers import put

#: On the target; of us.orders-2 nobody has written a record.
TOPICS = {"us.orders": 3, "us.mail": 2, "local": 1}
EMPTY = ("us.orders", 2)
AT_MS = 5
#: The first record of that time or a later one, where it is not at 7: all are later, all are earlier.
FIRST = {("us.orders", 1): 0, ("us.mail", 0): -1}
END = 90


async def nothing_stored(*_: Any) -> dict[str, Any]:
    return {}


@pytest.fixture
def eu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``readers`` has a checkpoint of one partition; both have stored something on the target."""
    stored = {
        "readers": {("us.mail", 1): Committed(4, "note"), ("local", 0): Committed(9)},
        "moved": {("us.mail", 0): Committed(3), ("local", 0): Committed(9)},
    }

    async def metadata(names: Collection[str]) -> Any:
        topics = {name: SimpleNamespace(error_code=0, exists=True, partitions=dict.fromkeys(range(count)))
                  for name, count in TOPICS.items() if name in names}  # fmt: skip
        return SimpleNamespace(topics=topics)

    async def committed(_: Any, group: str) -> dict[Any, Committed]:
        return stored.get(group, {})

    async def offsets(_: Any, partitions: Collection[Any], at: int, *__: Any) -> dict[Any, int]:
        if at == AT_MS:
            return {one: FIRST.get(one, 7) for one in partitions}
        return {one: 0 if one == EMPTY else END if at == LATEST else 0 for one in partitions}

    async def reported(*arguments: Any, **_: Any) -> Any:
        return await offsets(*arguments), {}

    async def checkpoints(look: GroupsLook) -> Any:
        one = Checkpoint("readers", "us.orders", 0, 40, 37, "")
        return {("readers", ("us.orders", 0)): one} if look._options.takes("readers") else {}

    monkeypatch.setattr(group_offsets, "committed", committed)
    monkeypatch.setattr(group_offsets, "known_offsets", reported)
    put(monkeypatch, group_offsets, list_groups={})
    monkeypatch.setattr(group_offsets, "read_live", nothing_stored)
    monkeypatch.setattr(offset_lookup, "known_offsets", reported)
    monkeypatch.setattr(GroupsLook, "_checkpoints", checkpoints)
    return SimpleNamespace(name="eu", metadata=metadata)


async def plan(eu: Any, at_ms: int | None, *named: str) -> Groups:
    async def unknown(*_: Any) -> None:
        return None

    places: Any = SimpleNamespace(
        by_checkpoint=unknown, filled=lambda: {"us.orders", "us.mail"}, copied_from=lambda _: None,
    )  # fmt: skip
    flow = SimpleNamespace(map_topic="map", flow="us->eu", remote_topic=lambda topic: f"us.{topic}")
    site: Any = SimpleNamespace(flow=flow, target=eu)
    failover_options = FailoverOptions(named.__contains__, named=frozenset(named), at_ms=at_ms)
    look = GroupsLook(site, failover_options, None, places)
    return await look.groups()


def places_of(found: Groups) -> dict[tuple[str, tuple[str, int]], int]:
    assert all(one.how is How.TIME for one in found.moves)
    return {(one.group, one.target): one.after for one in found.moves}


async def test_all_partitions_of_what_a_group_reads_are_set_by_time(eu: Any) -> None:
    """Of a checkpoint's topic, and of what it has stored of copies: else they began at auto.offset.reset."""
    found = await plan(eu, AT_MS, "readers")
    offsets = {("us.orders", 0): 7, ("us.orders", 1): 0, EMPTY: 7, ("us.mail", 0): END, ("us.mail", 1): 7}
    assert places_of(found) == {("readers", one): offset for one, offset in offsets.items()}
    assert {one.target: one.before for one in found.moves if one.before} == {("us.mail", 1): 4}
    assert found.findings == ()


async def test_a_group_without_a_checkpoint_is_set_by_time_where_it_is_named(eu: Any) -> None:
    found = await plan(eu, AT_MS, "moved")
    assert places_of(found) == {("moved", ("us.mail", 0)): END, ("moved", ("us.mail", 1)): 7}


async def test_a_group_that_nobody_knows_is_in_the_way(eu: Any) -> None:
    for at_ms in (AT_MS, None):
        found = await plan(eu, at_ms, "readers", "new")
        (left,) = [one for one in found.findings if is_blocking(one)]
        assert (left.group, left.rule) == ("new", GroupRule.NO_CHECKPOINT)


async def test_what_no_checkpoint_tells_of_is_named(eu: Any) -> None:
    """By offset it is blocked; what is empty, or committed already, needs nothing."""
    found = await plan(eu, None, "readers", "moved")
    assert [one.target for one in found.moves] == [("us.orders", 0)]
    reported = {one.group: one for one in found.findings}
    assert (
        "no checkpoint of us.mail-0, us.orders-1: it begins there by its auto.offset.reset" in reported["readers"].why
    )
    assert [one.group for one in found.findings if is_blocking(one)] == ["moved"]


# -- whose clock ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepts", [False, True])
async def test_a_time_of_copying_is_not_taken_for_one_of_the_source(
    monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    async def topic_values(_: Any, topics: Collection[str], key: str) -> dict[str, str]:
        assert (set(topics), key) == ({"us.a", "us.b", "us.c"}, "message.timestamp.type"), "by offset no clock counts"
        return {"us.a": "LogAppendTime", "us.b": "CreateTime"}

    monkeypatch.setattr(collect_snapshot, "topic_values", topic_values)
    moves = [
        GroupMove("readers", (name, 0), 1, (name, 0), None, "", 1, "", How.TIME) for name in ("us.a", "us.b", "us.c")
    ]
    exact = GroupMove("readers", ("us.d", 0), 1, ("us.d", 0), None, "", 1, "", How.EXACT)
    site: Any = SimpleNamespace(target=SimpleNamespace(name="eu"))
    options = FailoverOptions(accepts={GroupRule.COPY_TIME: frozenset({"readers"} if accepts else ())})
    found, notes = await collect_snapshot._with_clocks(site, Groups(("readers",), (*moves, exact)))
    (stamped,) = found.findings
    assert (stamped.group, stamped.rule) == ("readers", GroupRule.COPY_TIME) and "us.a has" in stamped.why
    assert [line for line in notes if line.startswith("us.c may have LogAppendTime")] != []
    assert is_blocking(stamped, options) != accepts


# -- as it is asked for ---------------------------------------------------------------------------------------


def test_a_group_is_named_by_what_is_no_pattern() -> None:
    groups = ("orders-.*", "orders.billing", r"mail\.out", "a|b", r"x\d", "plain_1")
    arguments = FailoverArguments(Path("f"), "us", "eu", groups=groups, gone="us", at="2026-01-01T00:00Z")
    config: Any = None
    failover_options = options_of(arguments, config)
    assert sorted(failover_options.named) == ["mail.out", "orders.billing", "plain_1"]
