"""A source whose leader is far and whose other replica is in our rack (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from connect.embedded.brokers import KafkaCluster
from connect.embedded.ports import HOST
from tests.kit.direct import Broker, value_numbers
from tests.kit.mirror import SMALL, Mirror
from tests.kit.pipe import Direction
from tests.kit.processes import wait_until
from tests.kit.proxy import FaultProxy

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC, REMOTE = "far", "racks.far"
DEADLINE_S = 240.0
#: Records of a burst; each takes more than 20 bytes of a fetch.
BURST, LEAST_BYTES = 4_000, 80_000


@dataclass
class Scene:
    leader: Broker
    target: Broker
    target_bootstrap: str
    far: FaultProxy
    near: FaultProxy

    def copy(self, first: int) -> tuple[int, int]:
        """Copy a burst; how many bytes each of the two sent meanwhile, the leader first."""
        before = self._sent()
        self.leader.produce(TOPIC, first, BURST)
        wait_until(lambda: self.target.end(REMOTE) >= first + BURST, DEADLINE_S, f"{first} and behind are copied", 0.1)
        far, near = (after - start for after, start in zip(self._sent(), before, strict=True))
        return far, near

    def _sent(self) -> tuple[int, int]:
        return self.far.passed_bytes(Direction.ANSWERS), self.near.passed_bytes(Direction.ANSWERS)


@pytest.fixture
def scene(eu: KafkaCluster, tmp_path: Path) -> Iterator[Scene]:
    proxies: list[FaultProxy] = []
    with ExitStack() as exits:

        def advertised(_: int, port: int) -> tuple[str, int]:
            proxies.append(exits.enter_context(FaultProxy.start(HOST, port)))
            return proxies[-1].address

        us = exits.enter_context(KafkaCluster.start("racks", nodes=2, racks=("a", "b"), advertised=advertised))
        leader = Broker(us, 0)
        leader.make_topic(TOPIC, [[1, 2]])
        properties = {
            "clusters": "racks, eu",
            "racks.bootstrap.servers": us.proxied_bootstrap,
            "eu.bootstrap.servers": eu.bootstrap,
            "racks->eu.enabled": "true",
            "racks->eu.topics": TOPIC,
            "racks.consumer.client.rack": "b",
            **SMALL,
        }
        mirror = exits.enter_context(Mirror(properties, tmp_path))
        mirror.start()
        scene = Scene(leader, Broker(eu, 0), eu.bootstrap, *proxies)
        scene.copy(0)  # the first of them may come from the leader
        yield scene


def test_the_near_replica_is_read_and_the_leader_where_it_is_out_of_reach(scene: Scene) -> None:
    far, near = scene.copy(BURST)
    assert far < LEAST_BYTES <= near
    scene.near.refuse()
    scene.near.cut()
    far, near = scene.copy(2 * BURST)
    assert near < LEAST_BYTES <= far
    scene.near.accept()
    read = BURST * 3

    def is_read_again() -> bool:
        """Leaders hear of the rack again a while after a replica failed."""
        nonlocal read
        _, near = scene.copy(read)
        read += BURST
        return near >= LEAST_BYTES

    wait_until(is_read_again, DEADLINE_S, "the near replica is read again", 1.0)
    assert asyncio.run(value_numbers(scene.target_bootstrap, REMOTE)) == [*range(read)]
