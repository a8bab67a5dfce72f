"""How long work stands still: after a crash, and while workers are replaced one by one."""

from __future__ import annotations

from random import Random

import pytest

from connect.core.herder import events
from connect.core.model import TaskId
from connect.core.status_and_offset_topics import StatusLog
from tests.kit.work import worker_config
from tests.simulation.coordinator import Coordinator
from tests.simulation.judge import Judge
from tests.simulation.process import Environment, Process
from tests.simulation.topic import ConfigTopic
from tests.simulation.world import World

TASKS = [TaskId("c", n) for n in range(6)]


class Group:
    def __init__(self, seed: int, *, session_ms: int, heartbeat_ms: int) -> None:
        self.world = World(seed)
        self.session_ms, self.heartbeat_ms = session_ms, heartbeat_ms
        coordinator = Coordinator(self.world, session_ms, rebalance_ms=60_000, initial_delay_ms=500)
        self.environment = Environment(self.world, coordinator, ConfigTopic(transactional=False), StatusLog(), {})
        self.judge = self.environment.judge = Judge(self.environment)
        self.environment.trap = self.environment.trap_in_sync = lambda process: None
        for _ in range(3):
            self.begin()
        self.wait_for_peace(60_000)
        put = events.PutConnector("c", {"name": "c", "value": "1", "tasks": str(len(TASKS))}, None, False, "source")
        self.leader().ask(put, lambda value, error: None)
        self.run_for(1_000)
        self.wait_for_peace(60_000)

    def begin(self) -> None:
        name = f"w{len(self.environment.processes)}"
        session_ms, heartbeat_ms = str(self.session_ms), str(self.heartbeat_ms)
        config = worker_config(
            session_timeout_ms=session_ms, heartbeat_interval_ms=heartbeat_ms, worker_lease_ms=session_ms
        )
        self.environment.processes[name] = Process(name, self.environment, config)

    def living(self) -> list[Process]:
        return [one for one in self.environment.processes.values() if one.machine.alive]

    def leader(self) -> Process:
        return next(one for one in self.living() if one.herder.is_leader)

    def run_for(self, duration_ms: int) -> None:
        self.world.run_until(self.world.now_ms + duration_ms)

    def idle(self) -> list[TaskId]:
        return [task for task in TASKS if not any(task in one.work for one in self.living())]

    def wait_for_peace(self, within_ms: int) -> None:
        end_ms = self.world.now_ms + within_ms
        while complaints := self.judge.complaints():
            assert self.world.now_ms < end_ms, f"not at peace within {within_ms} ms: {complaints}"
            self.run_for(50)

    def wait_until_all_run(self, within_ms: int) -> None:
        end_ms = self.world.now_ms + within_ms
        while idle := self.idle():
            assert self.world.now_ms < end_ms, f"nobody runs {idle} after {within_ms} ms"
            self.run_for(50)


@pytest.mark.parametrize(("session_ms", "heartbeat_ms", "within_ms"), [(10_000, 3_000, 15_000), (6_000, 1_000, 10_000)])
@pytest.mark.parametrize("victims", ["leader", "follower", "both"])
def test_every_task_runs_again_soon_after_a_crash(
    victims: str, session_ms: int, heartbeat_ms: int, within_ms: int
) -> None:
    for seed in range(15):
        group = Group(seed, session_ms=session_ms, heartbeat_ms=heartbeat_ms)
        group.run_for(Random(seed).randint(0, 5_000))
        leader = group.leader()
        follower = next(one for one in group.living() if one is not leader)
        for victim in {"leader": [leader], "follower": [follower], "both": [leader, follower]}[victims]:
            victim.machine.alive = False
        assert group.idle(), "what was killed ran nothing"
        group.wait_until_all_run(within_ms)
        group.wait_for_peace(60_000)


def test_a_rolling_restart_moves_work_without_waiting_for_sessions_or_delays() -> None:
    for seed in range(10):
        group = Group(seed, session_ms=10_000, heartbeat_ms=3_000)
        for old in list(group.living()):
            others = {task: one for one in group.living() if one is not old for task in TASKS if task in one.work}
            before = {task: one.work[task] for task, one in others.items()}
            old.put(events.Stopping())
            # The others hear of it with their next heartbeat.
            group.run_for(500)
            group.wait_until_all_run(5_000)
            assert all(others[task].work.get(task) is instance for task, instance in before.items())
            group.begin()
            group.wait_for_peace(120_000)
