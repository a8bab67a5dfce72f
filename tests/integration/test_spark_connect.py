"""Copying through a Spark Connect server whose Python has not got this project, and what a kill leaves there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.checker import TopicPair
from tests.kit.mirror import Mirror, one_flow
from tests.kit.processes import Role, gone, wait_until
from tests.kit.spark_cluster import ConnectServer, bare_python, compare_under_load
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ALIAS = f"c{uuid.uuid4().hex[:6]}"
LOAD = Load(f"connect-{ALIAS}", 3)
PAIR = TopicPair(LOAD.topic, f"{ALIAS}.{LOAD.topic}", LOAD.partitions)
DEADLINE_S = 400.0


@dataclass
class Scene:
    us: KafkaCluster
    eu: KafkaCluster
    server: ConnectServer
    mirror: Mirror
    writer: Writer

    def slices(self) -> set[int]:
        return {member.pid for member in self.server.slices([int(self.eu.bootstrap.rpartition(":")[2])])}

    async def compare(self) -> None:
        await compare_under_load(self.mirror, self.writer, self.us.bootstrap, self.eu.bootstrap, PAIR, DEADLINE_S)


@pytest.fixture(scope="module")
def scene(us: KafkaCluster, eu: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("connect")
    asyncio.run(make_topics(us.bootstrap, {LOAD.topic: LOAD.partitions}))
    with ConnectServer(bare_python(folder / "python")) as server:
        properties = {
            **one_flow(us.bootstrap, eu.bootstrap, LOAD.topic, ALIAS),
            "copy.epoch.ms": "4000",
            "spark.remote": server.remote,
            "spark.executor.memory": "1g",
            # Listened for on every address, and so over TLS.
            "link.listener": "0.0.0.0:0",
            "link.advertised.address": "127.0.0.1",
        }
        with Mirror(properties, folder) as mirror, Writer(us.bootstrap, [LOAD], records_per_s=1000, seed=6) as writer:
            mirror.start()
            scene = Scene(us, eu, server, mirror, writer)
            yield scene
            writer.stop()
            assert mirror.stop() == 0, mirror.log_lines()[-20:]
            mirror.assert_gone()
            wait_until(lambda: not scene.slices(), DEADLINE_S, "no slice is left on the server")


async def test_it_copies_through_a_server_and_says_which_keys_have_no_effect_there(scene: Scene) -> None:
    await scene.compare()
    wait_until(scene.slices, DEADLINE_S, "slices run on the server")
    said = [line for line in scene.mirror.log_lines() if "spark.executor.memory has no effect" in line]
    assert said and "WARNING" in said[0]
    assert [line for line in scene.mirror.log_lines() if "over TLS" in line]


@pytest.mark.long
async def test_slices_of_a_killed_worker_end_by_themselves_and_a_new_one_goes_on_exactly(scene: Scene) -> None:
    await scene.compare()
    members = scene.mirror.members()
    orphans = wait_until(scene.slices, DEADLINE_S, "slices run on the server")
    (worker,) = (member for member in members if member.role is Role.WORKER)
    worker.process.kill()
    scene.mirror.reap()
    wait_until(lambda: not scene.slices() & orphans, DEADLINE_S, "no orphan holds a connection to the target")
    wait_until(lambda: gone(members), DEADLINE_S, "the worker's processes are gone")
    scene.mirror.start()
    await scene.compare()


@pytest.mark.long
async def test_a_lost_server_is_said_again_and_again_and_waited_for(scene: Scene) -> None:
    await scene.compare()
    since = scene.mirror.log_end()
    scene.server.kill()
    wait_until(lambda: len(reported(scene, since)) > 2, DEADLINE_S, "the log names the server that is gone")
    scene.server.start()
    await scene.compare()
    assert scene.mirror.is_running
    lines = scene.mirror.log_lines(since)
    assert not [line for line in lines if "Traceback" in line or "at-least-once" in line]


def reported(scene: Scene, since: int) -> list[str]:
    return [
        line
        for line in scene.mirror.log_lines(since)
        if scene.server.remote in line and "does not accept the application" in line
    ]
