"""A source whose leader is far and whose other replica is in our rack (KIP-392)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.kit.direct import Broker, value_numbers
from tests.kit.pipe import Direction
from tests.kit.processes import wait_until
from tests.kit.proxy import FaultProxy
from tests.kit.shared_mirror import RACKS, RACKS_TOPIC, SharedMirror

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC, REMOTE = RACKS_TOPIC, f"{RACKS}.{RACKS_TOPIC}"
DEADLINE_S = 200.0
#: Records of a burst; each takes more than 20 bytes of a fetch, far more than what else is asked of a broker meanwhile.
BURST, LEAST_BYTES = 16_000, 320_000


@dataclass
class Scene:
    leader: Broker
    target: Broker
    target_bootstrap: str
    far: FaultProxy
    near: FaultProxy
    written: int = 0

    def copy(self) -> tuple[int, int]:
        """Copy a burst; how many bytes each of the two sent meanwhile, the leader first."""
        before = self._sent()
        self.leader.produce(TOPIC, self.written, BURST)
        self.written += BURST
        wait_until(lambda: self.target.end(REMOTE) >= self.written, DEADLINE_S, f"{self.written} records are copied")
        far, near = (after - start for after, start in zip(self._sent(), before, strict=True))
        return far, near

    def reads_the_near_replica(self) -> bool:
        """Of two bursts: a leader hears of the rack again a while after the near replica failed to answer."""
        far, near = self.copy()
        return far < LEAST_BYTES <= near

    def _sent(self) -> tuple[int, int]:
        return self.far.passed_bytes(Direction.ANSWERS), self.near.passed_bytes(Direction.ANSWERS)


@pytest.fixture
def scene(shared: SharedMirror) -> Scene:
    racks = shared.racks
    return Scene(Broker(racks.cluster, 0), Broker(shared.eu, 0), shared.eu.bootstrap, racks.far, racks.near)


def test_the_near_replica_is_read_and_the_leader_where_it_is_out_of_reach(scene: Scene) -> None:
    wait_until(scene.reads_the_near_replica, DEADLINE_S, "the near replica is read")
    scene.near.refuse()
    scene.near.cut()
    far, near = scene.copy()
    assert near < LEAST_BYTES <= far
    scene.near.accept()
    wait_until(scene.reads_the_near_replica, DEADLINE_S, "the near replica is read again")
    assert asyncio.run(value_numbers(scene.target_bootstrap, REMOTE)) == [*range(scene.written)]
