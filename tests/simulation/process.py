"""One worker: a real herder, and what its driver, its group client and its runner would do, at their own pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import RetriableError
from connect.core.herder import events
from connect.core.herder.events import Effect, Event
from connect.core.herder.herder import Herder
from connect.core.model import State, Status, TargetState, TaskId
from connect.core.status_and_offset_topics import StatusLog, status_record
from tests.simulation.coordinator import Coordinator
from tests.simulation.group import GroupClient
from tests.simulation.topic import ConfigTopic
from tests.simulation.world import Machine, World

Item = str | TaskId
#: How long work takes to stop: mostly not, sometimes as long as its grace.
_STOPPING_MS = (0, 0, 0, 5, 5, 5, 40, 40, 150, 150, 150, 1_500)
#: How often a running task does not take a new config.
_REFUSING = 0.3


class WriteFailed(RetriableError):
    """The simulated config topic could not be written, or it is not known whether it was."""


@dataclass
class Instance:
    """A connector or a task that runs; ``void``: its lease has run out under it, and nothing revives it."""

    config: Mapping[str, str]
    target: TargetState
    void: bool = False
    failed: bool = False


@dataclass
class Environment:
    """What all workers of a group share."""

    world: World
    coordinator: Coordinator
    topic: ConfigTopic
    statuses: StatusLog
    processes: dict[str, Process]
    #: Hears what starts, and what leases are renewed.
    judge: Any = None
    #: Asked between the steps of a write.
    trap: Any = None
    #: Asked when a worker asks for what a round gives it.
    trap_in_sync: Any = None

    def at(self, url: str) -> Process | None:
        return next((one for one in self.processes.values() if one.url == url and one.machine.alive), None)


class Process:
    def __init__(self, name: str, environment: Environment, config: WorkerConfig) -> None:
        self.name = name
        self.url = f"http://{name}/"
        self.environment = environment
        self.world = environment.world
        self.machine = Machine(environment.world, name)
        self.herder = Herder(config, self.url, environment.statuses)
        self.group = GroupClient(
            self.machine,
            environment.coordinator,
            self.put,
            self._give_up,
            lambda: self.environment.judge.renewed(self),
            lambda: self.environment.trap_in_sync(self),
            lease_ms=config.lease_ms,
            heartbeat_ms=config.heartbeat_interval_ms,
        )
        self.work: dict[Item, Instance] = {}
        self.position = 0
        self.slow_until_ms = 0
        self.replies: dict[int, int] = {}
        self.answers: dict[int, Any] = {}
        self._inbox: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._handling = False
        #: Not after a lost lease, until the next round has ended.
        self._may_start = True
        self._epoch = 0
        self._tick_ms: int | None = None
        self._ids = 0
        self._reads: list[tuple[int, int]] = []
        environment.topic.followers.append(lambda: self._follow(self.world.latency_ms()))
        self._follow(self.world.latency_ms())
        self.machine.after(self.world.random.randint(20, 200), self._read_first)

    # the driver's loop

    def put(self, event: Event) -> None:
        if isinstance(event, events.Joined):
            self._may_start = True
        self._inbox.append(event)
        self._run()

    def ask(self, operation: events.HerderOperation, answered: Any) -> None:
        self._ids += 1
        self.replies[self._ids] = 0
        self.answers[self._ids] = answered
        self.put(events.Request(self._ids, operation))

    def _run(self) -> None:
        if self._handling:
            return
        self._handling = True
        while True:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, events.StopWork):
                    self.machine.after(self.world.random.choice(_STOPPING_MS), partial(self._stopped, effect))
                    return
                self._perform(effect)
            if not self._inbox:
                break
            self._effects.extend(self.herder.step(self._inbox.popleft(), self.world.now_ms))
        self._handling = False
        self._set_tick()

    def _stopped(self, effect: events.StopWork) -> None:
        stopped: list[Item] = [*effect.connectors, *effect.tasks]
        for item in stopped:
            if self.work.pop(item, None) is not None and (status := self.environment.statuses.status(item)) is not None:
                self._status(item, replace(status, state=State.UNASSIGNED))
        self._handling = False
        self._run()

    def _set_tick(self) -> None:
        deadline_ms = self.herder.next_deadline_ms()
        if deadline_ms is not None and (self._tick_ms is None or deadline_ms < self._tick_ms):
            self._tick_ms = deadline_ms
            self.machine.after(deadline_ms - self.world.now_ms, lambda: self._tick(deadline_ms))

    def _tick(self, deadline_ms: int) -> None:
        if self._tick_ms == deadline_ms:
            self._tick_ms = None
        self.put(events.Tick())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case events.Say(_, line):
                self.world.report(f"{self.name}: {line}")
            case events.Reply(request, value, error):
                self._reply(request, value, error)
            case events.ReadConfig(token, timeout_ms):
                self._read(token, timeout_ms)
            case events.WriteConfig(token, steps, as_leader):
                self._write(token, deque(steps), as_leader)
            case events.ClaimWriter():
                self._epoch = self.environment.topic.claim()
            case events.MakeSessionKey(size):
                self.put(events.SessionKeyMade(self.world.random.randbytes(size)))
            case events.Join(token, protocols):
                self.group.join(token, protocols)
            case events.Leave():
                self.group.leave()
                if self.herder.is_stopping:
                    behind = {event.id for event in self._inbox if isinstance(event, events.Request)}
                    unanswered = [each for each, count in self.replies.items() if not count and each not in behind]
                    assert not unanswered, f"{self.name} leaves without a reply to {unanswered}"
                    self.world.report(f"{self.name} has left")
                    self.machine.alive = False
            case events.Assign(assignments):
                self.group.assign(assignments)
            case events.SendTaskConfigs():
                self._send(effect)
            case events.WriteStatus(item, state):
                self._status(item, Status(state, self.name, self.herder.generation))
            case _:
                self._perform_on_work(effect)

    def _perform_on_work(self, effect: Effect) -> None:
        match effect:
            case events.StartConnector(name, target):
                self._start(name, self.herder.snapshot.connector_config(name), target)
            case events.StartTask(task, target):
                self._start(task, self.herder.snapshot.task_config(task), target)
            case events.ReconfigureTasks(tasks):
                self._reconfigure(tasks)
            case events.ChangeTarget(name, target):
                for item, one in self.work.items():
                    if item == name or (isinstance(item, TaskId) and item.connector == name):
                        one.target = target
                if name in self.work and target is TargetState.STARTED:
                    self.put(events.TaskConfigsWanted(name))
            case events.ComputeTaskConfigs(token, name):
                self._compute(token, name)
            case events.FailConnector(name):
                if name in self.work:
                    self.work[name].failed = True

    # the runner

    def _start(self, item: Item, config: Mapping[str, str] | None, target: TargetState) -> None:
        assert config is not None, f"{self.name} is to start {item}, which has no config"
        assert item not in self.work, f"{self.name} is to start {item}, which runs already"
        if not self._may_start:
            return
        one = self.work[item] = Instance(config, target)
        self.environment.judge.started(item)
        self._status(item, Status(State.RUNNING, self.name, self.herder.generation))
        if isinstance(item, str) and target is TargetState.STARTED:
            self.machine.after(self.world.random.choice((0, 3, 60)), lambda: self._started(item, one))

    def _reconfigure(self, tasks: Sequence[TaskId]) -> None:
        refused = []
        for task in tasks:
            config, one = self.herder.snapshot.task_config(task), self.work.get(task)
            if config is None or one is None or one.void or self.world.random.random() < _REFUSING:
                refused.append(task)
            else:
                one.config = config
        if refused:
            self.put(events.ReconfigurationRefused(tuple(refused)))

    def _started(self, name: str, one: Instance) -> None:
        if self.work.get(name) is one:
            self.put(events.TaskConfigsWanted(name))

    def _compute(self, token: int, name: str) -> None:
        one = self.work.get(name)

        def done() -> None:
            if one is None or self.work.get(name) is not one:
                self.put(events.TaskConfigsComputed(token, name, error=RetriableError("it does not run")))
            elif self.world.random.random() < 0.05:
                self.put(events.TaskConfigsComputed(token, name, error=RetriableError("it could not tell")))
            else:
                self.put(events.TaskConfigsComputed(token, name, task_configs(one.config)))

        self.machine.after(self.world.random.choice((0, 2, 30)), done)

    def _give_up(self, lost: Event) -> None:
        """As the driver does: the work winds up, and the herder hears of it before anything else."""
        for one in self.work.values():
            one.void = True
        self._may_start = False
        self._inbox.appendleft(lost)
        self._run()

    def _status(self, item: Item, status: Status) -> None:
        key, value = status_record(item, status)
        self.environment.statuses.apply(key, value)

    # the config topic

    def _follow(self, delay_ms: int) -> None:
        self.machine.after(delay_ms, self.catch_up)

    def catch_up(self) -> None:
        """Take in what the topic has; whoever is cut off or slow comes back for it."""
        records = self.environment.topic.records
        if self.machine.cut or self.world.now_ms < self.slow_until_ms:
            self._follow(100)
            return
        while self.position < len(records):
            key, value = records[self.position]
            self.position += 1
            self._inbox.append(events.ConfigRecord(self.position - 1, key, value))
        for one in [one for one in self._reads if one[1] <= self.position]:
            self._reads.remove(one)
            self._inbox.append(events.ConfigRead(one[0], ok=True))
        self._run()

    def _read_first(self) -> None:
        self.catch_up()
        if self.position < len(self.environment.topic.records) or self.machine.cut:
            self.machine.after(50, self._read_first)
        else:
            self.put(events.Ready())

    def _read(self, token: int, timeout_ms: int) -> None:
        def end(end: int) -> None:
            self._reads.append((token, end))
            self.catch_up()

        def over() -> None:
            self._reads = [one for one in self._reads if one[0] != token]
            if token not in done:
                done.add(token)
                self.put(events.ConfigRead(token, ok=False))

        done: set[int] = set()
        self.machine.call(
            None, lambda answer: answer(len(self.environment.topic.records)), end, lambda: None, timeout_ms=timeout_ms
        )
        self.machine.after(timeout_ms, over)

    def _write(self, token: int, steps: deque[Sequence[tuple[str, bytes | None]]], as_leader: bool) -> None:
        epoch = self._epoch if as_leader else None

        def fail(reason: str) -> None:
            self.put(events.ConfigWritten(token, WriteFailed(reason)))

        def step() -> None:
            if not steps:
                self.put(events.ConfigWritten(token))
                return
            if as_leader and self.world.now_ms >= self.group.lease_end_ms:
                fail("the lease is over")
                return
            self.environment.trap(self)
            batch = steps.popleft()
            self.machine.call(
                None,
                lambda answer: answer(self.environment.topic.append(batch, epoch)),
                lambda end: fail("fenced off") if end is None else read_back(end),
                lambda: fail("no answer"),
                timeout_ms=2_000,
            )

        def read_back(end: int) -> None:
            self.catch_up()
            if self.position >= end:
                step()
            else:
                self.machine.after(20, lambda: read_back(end))

        step()

    # requests

    def _reply(self, request: int, value: Any, error: Exception | None) -> None:
        self.replies[request] += 1
        assert self.replies[request] == 1, f"{self.name} replies to request {request} again"
        self.answers.pop(request)(value, error)

    def _send(self, effect: events.SendTaskConfigs) -> None:
        other = self.environment.at(effect.leader_url)
        done: list[bool] = []

        def sent(error: Exception | None) -> None:
            if not done:
                done.append(True)
                self.put(events.TaskConfigsSent(effect.token, effect.name, error))

        if other is None:
            self.machine.after(50, lambda: sent(RetriableError("nobody there")))
            return

        def ask(answer: Any) -> None:
            other.ask(events.PutTaskConfigs(effect.name, effect.configs), lambda _, error: answer(error))

        self.machine.call(other.machine, ask, sent, lambda: sent(RetriableError("no answer")))
        # Whoever was asked may die before it answers.
        self.machine.after(1_500, lambda: sent(RetriableError("no answer in time")))


def task_configs(config: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    return tuple({"task.class": "T", "value": config["value"], "n": str(n)} for n in range(int(config["tasks"])))
