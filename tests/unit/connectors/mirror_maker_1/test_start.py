"""MirrorMaker 1 waits for its clusters, and can be stopped meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from connect.core.errors import SecurityError
from connect.kafka.cluster import Cluster
from connectors.mirror_maker_1.process import reached


class Brokers:
    """Answer once they are ``up``, or refuse us."""

    name = "source"

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.refuses = False
        self.asked = asyncio.Event()
        self.let_go = False

    async def wait_reachable(self, waiting: Callable[[str], None]) -> None:
        self.asked.set()
        try:
            await self.up.wait()
        except asyncio.CancelledError:
            self.let_go = True
            raise
        if self.refuses:
            raise SecurityError("no")

    @property
    def as_cluster(self) -> Cluster:
        return cast(Cluster, self)


async def test_it_goes_on_once_a_broker_answers() -> None:
    brokers = Brokers()
    brokers.up.set()
    assert await reached(brokers.as_cluster, asyncio.Event())


async def test_a_stop_ends_the_waiting() -> None:
    brokers, stop = Brokers(), asyncio.Event()
    reaching = asyncio.create_task(reached(brokers.as_cluster, stop))
    await brokers.asked.wait()
    stop.set()
    assert not await reaching
    assert brokers.let_go


async def test_a_refusal_is_raised() -> None:
    brokers = Brokers()
    brokers.refuses = True
    brokers.up.set()
    with pytest.raises(SecurityError):
        await reached(brokers.as_cluster, asyncio.Event())
