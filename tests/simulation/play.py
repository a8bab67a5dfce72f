"""A play from a seed: a group is put up, troubled, asked for things, left in peace, and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from connect.core.herder import events
from connect.core.herder_api import AlreadyExists, BadRequest, ElsewhereError, NotFound, RebalanceExpected
from connect.core.model import RestartRequest, TargetState, TaskId
from connect.core.status_and_offset_topics import StatusLog
from tests.kit.work import worker_config
from tests.simulation.coordinator import Coordinator
from tests.simulation.judge import Judge, Violation, Written
from tests.simulation.process import Environment, Process
from tests.simulation.topic import ConfigTopic
from tests.simulation.world import START_MS, World

_SESSION_MS = 2_000
_LEASE_MS = 1_900
_HEARTBEAT_MS = 500
_MOST_WORKERS = 5
_CALM_WITHIN_MS = 150_000
#: Answers that mean that nothing was written.
_REFUSED = (AlreadyExists, BadRequest, NotFound, RebalanceExpected, ElsewhereError)


class Play:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        self._rebalance_ms = self.random.choice((4_500, 8_000))
        coordinator = Coordinator(self.world, _SESSION_MS, self._rebalance_ms, self.random.choice((0, 50, 600)))
        topic = ConfigTopic(transactional=self.random.random() < 0.3)
        self.environment = Environment(self.world, coordinator, topic, StatusLog(), {})
        self.judge = Judge(self.environment)
        self.environment.judge = self.judge
        self.environment.trap = self._trap
        self.environment.trap_in_sync = self._trap_in_sync
        self.trapping = False
        self._protocols = self.random.choice(
            (("sessioned",), ("sessioned",), ("compatible",), ("eager",), ("eager", "sessioned"))
        )
        self._max_delay_ms = self.random.choice((0, 3_000))
        self._delay_is_set = self.random.random() < 0.3
        self._value = 0

    def run(self) -> None:
        """Raises Violation, with the seed and what happened, if a rule was broken."""
        try:
            self._trouble()
            self._calm()
        except AssertionError as broken:
            raise Violation(f"seed {self.seed}: {broken}\n" + "\n".join(self.world.story[-120:])) from broken

    def _trouble(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self._new_worker()
        end_ms = START_MS + self.random.randint(4_000, 16_000)
        self.trapping = True
        while self.world.now_ms < end_ms:
            self.world.run_until(self.world.now_ms + self.random.randint(1, 700))
            self.judge.between()
            if self.random.random() < 0.55:
                self._request()
            else:
                self.random.choice(
                    (self._new_worker, self._crash, self._leave, self._freeze, self._cut, self._slow, self._broker)
                )()

    def _calm(self) -> None:
        self.world.report("-- calm --")
        self.trapping = False
        if not self.environment.coordinator.up:
            self.environment.coordinator.come_up()
        for one in self.environment.processes.values():
            one.machine.cut = False
            one.slow_until_ms = 0
            if one.machine.frozen:
                one.machine.thaw()
        end_ms = self.world.now_ms + _CALM_WITHIN_MS
        peaceful = 0
        complaints: list[str] = []
        while self.world.now_ms < end_ms and peaceful < 2:
            if not self._living():
                self._new_worker()
            self.world.run_until(self.world.now_ms + 1_000)
            self.judge.between()
            complaints = self.judge.complaints()
            peaceful = 0 if complaints else peaceful + 1
        if complaints:
            raise Violation("never calm: " + "; ".join(complaints))
        self.judge.final()

    # troubles

    def _living(self) -> list[Process]:
        return [one for one in self.environment.processes.values() if one.machine.alive]

    def _anybody(self) -> Process | None:
        living = self._living()
        return self.random.choice(living) if living else None

    def _new_worker(self) -> None:
        if len(self._living()) >= _MOST_WORKERS:
            return
        name = f"w{len(self.environment.processes)}"
        config = worker_config(
            connect_protocol=self.random.choice(self._protocols),
            session_timeout_ms=str(_SESSION_MS),
            heartbeat_interval_ms=str(_HEARTBEAT_MS),
            worker_sync_timeout_ms="1000",
            worker_unsync_backoff_ms="1000",
            scheduled_rebalance_max_delay_ms=str(self._max_delay_ms),
            rebalance_timeout_ms=str(self._rebalance_ms),
            exactly_once_source_support="disabled" if self.random.random() < 0.8 else "enabled",
            worker_lease_ms=str(_LEASE_MS),
            inter_worker_key_ttl_ms=str(self.random.choice((0, 5_000))),
        )
        if not self._delay_is_set:
            config = replace(config, raw={})
        self.world.report(f"{name} is born")
        self.environment.processes[name] = Process(name, self.environment, config)

    def _crash(self) -> None:
        if (one := self._anybody()) is not None:
            self._kill(one)

    def _kill(self, one: Process) -> None:
        if one.machine.alive:
            self.world.report(f"{one.name} is killed")
            one.machine.alive = False

    def _leave(self) -> None:
        if (one := self._anybody()) is not None:
            self.world.report(f"{one.name} is told to stop")
            one.machine.after(0, lambda: one.put(events.Stopping()))

    def _freeze(self) -> None:
        if (one := self._anybody()) is not None:
            self._freeze_one(one)

    def _freeze_one(self, one: Process) -> None:
        if one.machine.frozen or not one.machine.alive:
            return
        duration_ms = self.random.choice((50, 500, 1_800, 2_500, 7_000))
        self.world.report(f"{one.name} is frozen for {duration_ms} ms")
        one.machine.frozen = True
        self.world.after(duration_ms, lambda: one.machine.thaw() if one.machine.frozen else None)

    def _cut(self) -> None:
        if (one := self._anybody()) is None:
            return
        duration_ms = self.random.choice((50, 500, 1_800, 2_500, 7_000))
        self.world.report(f"{one.name} is cut off for {duration_ms} ms")
        one.machine.cut = True

        def resume_past_gap() -> None:
            one.machine.cut = False

        self.world.after(duration_ms, resume_past_gap)

    def _slow(self) -> None:
        if (one := self._anybody()) is not None:
            one.slow_until_ms = self.world.now_ms + self.random.choice((300, 1_500, 4_000))
            self.world.report(f"{one.name} reads nothing until {one.slow_until_ms - START_MS}")

    def _broker(self) -> None:
        coordinator = self.environment.coordinator
        if not coordinator.up:
            return
        duration_ms = self.random.choice((100, 1_000, 3_000))
        self.world.report(f"the coordinator is down for {duration_ms} ms")
        coordinator.go_down()
        self.world.after(duration_ms, lambda: None if coordinator.up else coordinator.come_up())

    def _trap(self, one: Process) -> None:
        if self.trapping and self.random.random() < 0.15:
            self.world.after(
                self.random.randint(0, 20), lambda: self.random.choice((self._kill, self._freeze_one))(one)
            )

    def _trap_in_sync(self, one: Process) -> None:
        """The answer comes when its lease may be over."""
        if self.trapping and self.random.random() < 0.05:
            self.world.after(self.random.randint(0, 5), lambda: self._freeze_one(one))

    # requests

    def _request(self) -> None:
        name = self.random.choice(("a", "b", "c"))
        choice = self.random.random()
        if choice < 0.4:
            self._put(name)
        elif choice < 0.5:
            written = [self._history(name, "config", None), self._history(name, "target", TargetState.STARTED)]
            self._ask(events.DeleteConnector(name), written)
        elif choice < 0.75:
            state = self.random.choice(list(TargetState))
            self._ask(events.SetTargetState(name, state), [self._history(name, "target", state)])
        else:
            self._ask(
                self.random.choice(
                    (
                        events.RestartConnector(name),
                        events.RestartTask(TaskId(name, 0)),
                        events.Restart(RestartRequest(name, False, True)),
                        events.CheckOffsets(name),
                        events.SetLogger("root", "INFO"),
                        events.PutTaskCount(name, 2, 0),
                    )
                ),
                [],
            )

    def _put(self, name: str) -> None:
        self._value += 1
        config = {"name": name, "value": str(self._value), "tasks": str(self.random.randint(0, 4))}
        target = self.random.choice((None, None, *TargetState))
        # Java takes an initial state only with what makes a connector.
        replaces = target is None and self.random.random() < 0.8
        written = [self._history(name, "config", config)]
        if target is not None:
            written.append(self._history(name, "target", target))
        self._ask(events.PutConnector(name, config, target, replaces, "source"), written)

    def _history(self, name: str, what: str, value: object) -> Written:
        written = Written(value, self.world.now_ms)
        self.judge.history.setdefault((name, what), []).append(written)
        return written

    def _ask(self, operation: Any, written: list[Written], hops: int = 2, url: str | None = None) -> None:
        one = self._anybody() if url is None else self.environment.at(url)
        if one is None:
            return

        def answered(value: Any, error: Exception | None) -> None:
            if isinstance(error, ElsewhereError) and error.url and hops:
                self.world.after(5, lambda: self._ask(operation, written, hops - 1, error.url))
            elif error is None or isinstance(error, _REFUSED):
                for each in written:
                    each.end_ms = self.world.now_ms
                    each.acknowledged = error is None
                    if error is not None:
                        self._unwrite(each)

        one.machine.after(self.world.latency_ms(), lambda: one.ask(operation, answered))

    def _unwrite(self, written: Written) -> None:
        for each in self.judge.history.values():
            if written in each:
                each[:] = [one for one in each if one is not written]


def play(seed: int, change: Callable[[Play], None] | None = None) -> None:
    """Play ``seed``; raises Violation if a rule was broken."""
    one = Play(seed)
    if change is not None:
        change(one)
    one.run()
