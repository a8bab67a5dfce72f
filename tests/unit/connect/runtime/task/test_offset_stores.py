"""Topics of connectors' own: followed once for all who use them, and one that hangs is in nobody else's way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from connect.core.errors import RetriableError
from connect.runtime.task import offset_stores
from connect.runtime.task.connector_offsets import ConnectorOffsets
from connect.runtime.task.offset_stores import OffsetStores
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import MemoryLog, memory_topic, worker_config


class Follower(MemoryLog):
    """Knows what is followed now; a topic called ``dead`` never gets that far, ``broken`` not the first time, and in
    ``open`` a transaction is not over."""

    now: list[str]
    begun: list[str]

    def __init__(self, cluster: object, topic: str, *callbacks: Any, read_committed: bool, only_last: bool) -> None:
        super().__init__(*callbacks)
        self._topic = topic

    async def start(self, timeout_s: float, *, committed_only: bool = False) -> None:
        self.begun.append(self._topic)
        if self._topic == "dead" or (self._topic == "open" and not committed_only):
            await asyncio.sleep(1000)
        if self.begun == ["broken"]:
            raise RetriableError("away")
        await asyncio.sleep(0.1)
        self.now.append(self._topic)

    async def stop(self) -> None:
        self.now.remove(self._topic)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> OffsetStores:
    async def there(*arguments: Any, **settings: Any) -> None: ...

    Follower.now, Follower.begun = [], []
    monkeypatch.setattr(offset_stores, "CompactedLog", Follower)
    monkeypatch.setattr(offset_stores, "ensure_compacted_topic", there)
    return OffsetStores(worker_config(), memory_topic()[0])


async def opened(stores: OffsetStores, topic: str, within_s: float | None = 5) -> ConnectorOffsets:
    async with asyncio.timeout(within_s):
        return await stores.open(topic, {"name": topic, "connector.class": "x", "offsets.storage.topic": topic})


@in_virtual_time
async def test_a_topic_is_followed_once_as_long_as_somebody_uses_it(stores: OffsetStores) -> None:
    many = await asyncio.gather(*(opened(stores, "own") for _ in range(3)))
    for each in many:
        assert Follower.now == ["own"]
        await each.close()
    assert (Follower.now, Follower.begun) == ([], ["own"])
    again = await opened(stores, "own")
    assert Follower.now == ["own"]
    await again.close()


@in_virtual_time
async def test_the_key_stores_of_a_connector_are_opened_before_its_clients_are_made(
    stores: OffsetStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def open_stores(props: Mapping[str, str]) -> None:
        assert not Follower.begun
        asked.append(props["name"])

    monkeypatch.setattr(offset_stores, "open_stores", open_stores)
    await (await opened(stores, "own")).close()
    assert asked == ["own"]


@in_virtual_time
async def test_a_cluster_that_does_not_answer_holds_up_nobody_else(stores: OffsetStores) -> None:
    before = await opened(stores, "before")
    hanging, waiting = (asyncio.create_task(opened(stores, "dead", None)) for _ in range(2))
    await asyncio.sleep(1)
    assert Follower.begun == ["before", "dead"]
    after = await opened(stores, "after")
    async with asyncio.timeout(1):
        await before.close()
    assert Follower.now == ["after"]
    hanging.cancel()
    waiting.cancel()
    await asyncio.wait({hanging, waiting})
    async with asyncio.timeout(1):
        await after.close()
    assert Follower.now == []


@in_virtual_time
async def test_a_transaction_that_a_killed_task_left_open_is_waited_for(stores: OffsetStores) -> None:
    """The task that is to abort it is not made before its topic is opened."""
    offsets = await opened(stores, "open")
    await offsets.close()


@in_virtual_time
async def test_who_waits_goes_on_where_the_first_has_failed_or_given_up(stores: OffsetStores) -> None:
    outcomes = await asyncio.gather(
        opened(stores, "broken"), opened(stores, "broken"), opened(stores, "broken"), return_exceptions=True
    )
    assert str(outcomes[0]) == "away"
    assert Follower.begun == ["broken", "broken"]
    for offsets in outcomes[1:]:
        assert Follower.now == ["broken"]
        assert isinstance(offsets, ConnectorOffsets)
        await offsets.close()
    assert Follower.now == []
