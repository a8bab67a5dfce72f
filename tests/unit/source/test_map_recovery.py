"""A task that rebuilds maps that were lost beside its copy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connectors.dataplane.plan import TopicPartition
from connectors.map_alignment import Found, Side
from connectors.map_rebuild import LogFeed
from connectors.offset_map import Run
from connectors.positions import Position
from connectors.source import map_recovery
from connectors.source.ledger import Ledger, Pair
from connectors.source.map_recovery import MapRecovery
from tests.unit.source.test_trimming import position

TOP = (900, 880)
ORDERS = TopicPartition("orders", 0)


class Store:
    """The part of a store that is asked here: what lies below is taken in by the second commit."""

    def __init__(self) -> None:
        self.begin = TOP
        self.laid: list[tuple[int, bytes]] = []
        self.commits = 0

    def map_begin(self, _: Position) -> tuple[int, int]:
        return self.begin

    def lay_below(self, _: Position, chunks: list[tuple[int, bytes]]) -> None:
        self.laid = chunks

    def lies_below(self, _: Position) -> bool:
        self.commits += 1
        return self.commits <= 2


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, most_records: int = 1000) -> None:
        self.store = Store()
        self.ledger = Ledger([Pair(ORDERS, None, TopicPartition("us.orders", 0), None)])
        self.ledger.begin(ORDERS, replace(position(1000), source_topic="orders"))
        self.entry.is_dirty = False
        self.tops: dict[Side, int] = {}
        self.meanwhile: Any = lambda: None
        none = cast("Any", None)
        self.recovery = MapRecovery(
            "us->eu task 0",
            none,
            none,
            cast("Any", self.store),
            lambda: self.ledger,
            most_records=most_records,
            read_committed=True,
        )

        async def lost(*_: object, **__: object) -> dict[TopicPartition, int]:
            return {ORDERS: TOP[0]}

        async def lay(feeds: Mapping[Side, LogFeed], found: Found, **_: Any) -> None:
            self.tops = {side: feed.top for side, feed in feeds.items()}
            found.add_below(Run(100, 80, 800))
            self.meanwhile()

        monkeypatch.setattr(map_recovery, "lost_maps", lost)
        monkeypatch.setattr(map_recovery, "lay_side_by_side", lay)
        monkeypatch.setattr(map_recovery, "_NEXT_COMMIT_S", 0.0)

    @property
    def entry(self) -> Any:
        return self.ledger.entries[ORDERS]

    async def play(self, caplog: pytest.LogCaptureFixture) -> str:
        """Until it says what came of it."""
        caplog.set_level(logging.INFO)
        await self.recovery.look(self.ledger.going())
        running = asyncio.create_task(self.recovery.run())
        async with asyncio.timeout(60):
            while "is rebuilt, as far" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return caplog.text


async def test_what_is_found_below_goes_with_the_next_commits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch)
    said = await scene.play(caplog)
    assert "1000 records of each at most" in said
    assert "for 1 of 1 partitions, 800 records: orders-0" in said
    assert scene.tops == {Side.SOURCE: 900, Side.TARGET: 880}
    assert [upstream for upstream, _ in scene.store.laid] == [100]
    assert scene.store.commits == 3
    assert scene.entry.is_dirty, "else nothing is committed of a partition at rest"


@pytest.mark.parametrize("what", ["cut", "left", "anew"])
async def test_nothing_is_laid_below_another_map(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    scene = Scene(monkeypatch)

    def happens() -> None:
        if what == "cut":
            scene.store.begin = (500, 480)
        elif what == "left":
            scene.ledger.drop(ORDERS)
        else:
            scene.entry.position = replace(scene.entry.position, target_topic="us.orders.1c9bd204")

    scene.meanwhile = happens
    assert "for 0 of 1 partitions, 0 records" in await scene.play(caplog)
    assert not scene.store.laid


async def test_a_log_that_cannot_be_read_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch)

    def fails() -> None:
        raise RetriableError("cluster us: orders-0 has no leader now")

    scene.meanwhile = fails
    assert "the offset map of orders-0 is not rebuilt: cluster us: orders-0 has no leader" in await scene.play(caplog)


async def test_where_records_are_transformed_maps_are_only_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch, 0)
    await scene.recovery.look(scene.ledger.going())
    assert "lacks what was copied first of orders-0" in caplog.text
    assert "--rebuild finds out" in caplog.text


async def test_a_mistake_of_ours_costs_the_map_and_not_the_copy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch)

    def happens() -> None:
        raise ZeroDivisionError

    scene.meanwhile = happens
    said = await scene.play(caplog)
    assert "the offset map of orders-0 is not rebuilt" in said
    assert "for 0 of 1 partitions" in said
