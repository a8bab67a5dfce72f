"""A herder among vandals: what stands in topics, in members' metadata and in requests is anything at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from connect.core import config_topic
from connect.core.errors import PermanentError, RetriableError
from connect.core.herder import events
from connect.core.herder.events import Effect, Event
from connect.core.herder.herder import Herder
from connect.core.herder.membership import Allocation, Assignment, WorkerMetadata, encode_assignment, encode_metadata
from connect.core.herder.state import HerderMode
from connect.core.model import RestartRequest, TargetState, TaskId
from connect.core.status_and_offset_topics import StatusLog
from tests.kit.work import worker_config

_NAMES = ("a", "b", "", "x-1", "target-state-a", "\ufffd", "n" * 32_767, "l" * 32_768)
#: Beside texts: what REST and connectors might hand over.
_ODD: tuple[Any, ...] = ("1", "", "\udcff", b"x", 7, None, ["x"], {"k": "v"})
_KEYS = (
    config_topic.CONNECTOR_PREFIX,
    config_topic.TASK_PREFIX,
    config_topic.COMMIT_PREFIX,
    config_topic.TARGET_STATE_PREFIX,
    config_topic.FENCING_PREFIX,
    config_topic.RESTART_PREFIX,
    config_topic.LOGGER_PREFIX,
    config_topic.SESSION_KEY,
    "nothing-",
)
_NUMBERS = (0, 1, 2, 3, -1, 2**31 - 1, 2**31, 2**63, 10**400, 0.5, True)
_BYTES = (
    None,
    b"",
    b"{",
    b"\xff\xfe",
    b"null",
    b"[" * 100_000,
    b'"x"',
    b"1e999",
    b'{"properties":{"\\ud800":"\\ud800"}}',
)


class Vandal:
    """Feeds one herder from a seed, and does what it wants done, more or less."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        #: How often what comes is odd; where it mostly is not, the herder gets further.
        self._malice = self.random.choice((0.03, 0.1, 0.3, 1.0))
        self.statuses = StatusLog()
        protocol = self.random.choice(("sessioned", "compatible", "eager"))
        self.herder = Herder(worker_config(connect_protocol=protocol), "http://a/", self.statuses)
        self.now_ms = 1_000
        self.offset = 0
        self.begun: list[Effect] = []
        self.join: events.Join | None = None
        self.round: tuple[str, dict[str, bytes]] | None = None
        self.unanswered: set[int] = set()
        self._requests = 0

    def run(self, steps: int) -> None:
        for _ in range(self.random.randint(0, 30)):
            self.record()
        self.step(events.Ready())
        deeds = (self.record, self.react, self.react, self.rounds, self.rounds, self.happen)
        for _ in range(steps):
            self.now_ms += self.random.choice((0, 1, 100, 1_500))
            self.random.choice((*deeds, self.ask, self.work))()
            while self.begun and not self.ill():
                self.react()
            self.tick_when_due()
        self.step(events.Stopping())
        assert not self.unanswered

    def ill(self) -> bool:
        return self.random.random() < self._malice

    def step(self, event: Event) -> None:
        for effect in self.herder.step(event, self.now_ms):
            match effect:
                case events.Join():
                    self.join, self.round = effect, None
                case events.Reply(number):
                    assert number in self.unanswered
                    self.unanswered.remove(number)
                case events.Say(_, line):
                    line.encode()
                case events.StartConnector(name):
                    assert self.herder.snapshot.connector_config(name) is not None
                case events.StartTask(task):
                    assert self.herder.snapshot.task_config(task) is not None
                case events.Assign():
                    self.begun.append(effect)
                case events.WriteConfig(_, batches):
                    # As the config topic takes them.
                    assert all(key.encode() for batch in batches for key, _ in batch)
                    self.begun.append(effect)
                case (
                    events.ReadConfig()
                    | events.MakeSessionKey()
                    | events.ComputeTaskConfigs()
                    | events.SendTaskConfigs()
                ):
                    self.begun.append(effect)

    def tick_when_due(self) -> None:
        """A deadline that a tick does not move keeps the driver's loop turning."""
        deadline_ms = self.herder.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.step(events.Tick())
            after_ms = self.herder.next_deadline_ms()
            assert after_ms is None or after_ms > self.now_ms, f"nothing comes of {self.herder.mode}'s deadline"

    # what stands in topics

    def record(self) -> None:
        if not self.ill():
            key, value = self.random.choice(self.sound_records())
            self.put(key, value)
            return
        chance = self.random.random()
        if chance < 0.03:
            self.step(events.ConfigLogReset())
            self.offset = 0
            return
        if chance < 0.1:
            self.statuses.apply(f"status-task-{self.name()}-{self.random.choice(_NUMBERS)}", self.value())
        key = self.random.choice(_KEYS)
        if key == config_topic.TASK_PREFIX:
            key += f"{self.name()}-{self.random.choice(_NUMBERS)}"
        elif key != config_topic.SESSION_KEY:
            key += self.name()
        self.put(self.random.choice((key, key, key, None, "")) if chance > 0.95 else key, self.value())

    def sound_records(self) -> Sequence[config_topic.Record]:
        name = self.random.choice("ab")
        return (
            config_topic.connector_record(name, {"connector.class": "X"}),
            config_topic.task_records(name, [{"n": "0"}])[0],
            config_topic.commit_record(name, self.random.randint(0, 1)),
            config_topic.target_state_record(name, self.random.choice((TargetState.STARTED, *TargetState))),
        )

    def put(self, key: str | None, value: bytes | None) -> None:
        self.step(events.ConfigRecord(self.offset, key, value))
        self.offset += 1

    def name(self) -> str:
        return self.random.choice(_NAMES if self.ill() else _NAMES[:2])

    def value(self) -> bytes | None:
        if self.random.random() < 0.2:
            return self.random.choice(_BYTES)
        odd = [each for each in _ODD if not isinstance(each, bytes)]
        number = self.random.choice(_NUMBERS)
        choices: tuple[Any, ...] = (
            {"properties": {"connector.class": "X"}},
            {"properties": {"v": self.random.choice(odd)}},
            {"tasks": self.random.choice((0, 1, 2, number))},
            {"task-count": number},
            {"state": "PAUSED", "state.v2": self.random.choice(("STOPPED", "?", number, None))},
            {"key": "AAAA", "algorithm": self.random.choice(("HmacSHA256", "?", number)), "creation-timestamp": number},
            {"include-tasks": self.random.choice((True, number)), "only-failed": False},
            {"level": self.random.choice(("DEBUG", "?", number))},
            {"state": "FAILED", "worker_id": "w", "generation": number, "trace": "t"},
            self.random.choice(odd),
        )
        return json.dumps(self.random.choice(choices)).encode()

    # what becomes of what it began

    def react(self) -> None:
        if not self.begun:
            return
        match self.begun.pop(self.random.randrange(len(self.begun))):
            case events.ReadConfig(token):
                self.step(events.ConfigRead(token, not self.ill()))
            case events.MakeSessionKey(size):
                self.step(events.SessionKeyMade(b"k" * size))
            case events.WriteConfig(token, batches):
                for key, value in [record for batch in batches for record in batch]:
                    self.put(key, value)
                self.step(
                    events.ConfigWritten(
                        token, self.random.choice((RetriableError("x"), OSError())) if self.ill() else None
                    )
                )
            case events.ComputeTaskConfigs(token, name):
                error = self.random.choice((PermanentError("x"), ZeroDivisionError())) if self.ill() else None
                self.step(events.TaskConfigsComputed(token, name, self.task_configs(), error))
            case events.SendTaskConfigs(token, _, name):
                self.step(events.TaskConfigsSent(token, name, self.random.choice((None, RetriableError("x")))))
            case events.Assign(assignments) if self.join is not None and self.round is not None and assignments:
                self.step(events.Joined(self.join.token, 1, "us", "us", self.round[0], assignments["us"]))

    def task_configs(self) -> Any:
        if self.ill() and self.random.random() < 0.3:
            return self.random.choice(_ODD)
        configs: list[Any] = [{"n": str(n)} for n in range(self.random.randint(0, 3))]
        if self.random.random() < 0.1 or self.ill():
            configs.append(
                self.random.choice((*_ODD, {"k": self.random.choice(_ODD)}, {self.random.choice((7, "\udcff")): ""}))
            )
        return configs

    # the group

    def rounds(self) -> None:
        if self.join is None or self.herder.mode is not HerderMode.JOINING:
            return
        protocol, ours = self.random.choice(self.join.protocols)
        held = Allocation(
            tuple(self.random.sample(("a", "b"), self.random.randint(0, 2))), (TaskId("a", self.number()),)
        )
        if self.random.random() < 0.6:
            other = encode_metadata(protocol, WorkerMetadata("http://b/", self.read_by_others(), held, 5_000))
            members = {"us": ours, "other": self.spoilt(other)} if self.random.random() < 0.7 else {"us": ours}
            self.round = protocol, members
            self.step(events.LeaderElected(protocol, "us", members))
            return
        revoked = Allocation((), (TaskId("a", 0),))
        delay_ms = self.random.choice((0, 0, 500, -1))
        assignment = Assignment(self.number() % 2, "other", "http://b/", self.read_by_others(), held, revoked, delay_ms)
        data = self.spoilt(encode_assignment(protocol, assignment))
        self.step(events.Joined(self.join.token, self.number(), "us", "other", protocol, data))

    def number(self) -> int:
        return self.random.choice((0, 0, 0, 1, 2, -7, 2**31 - 1))

    def read_by_others(self) -> int:
        return self.random.choice((self.offset - 1, 2**63 - 1, -(2**63))) if self.ill() else self.offset

    def spoilt(self, data: bytes) -> bytes:
        if not self.ill():
            return data
        if self.random.random() < 0.2:
            return self.random.randbytes(self.random.randint(0, 60))
        spoilt = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            spoilt[self.random.randrange(len(spoilt))] = self.random.randrange(256)
        return bytes(spoilt[: self.random.choice((len(data), self.random.randint(0, len(data))))])

    def happen(self) -> None:
        news: Sequence[Event] = (
            events.RebalanceBegun(),
            events.MembershipLost("x"),
            events.LeaseLost(),
            events.Tick(),
            events.ConfigRead(9_999, ok=True),
            events.ConfigWritten(9_999),
        )
        self.step(self.random.choice(news) if self.ill() else events.Tick())

    def work(self) -> None:
        wanted = events.TaskConfigsWanted(self.name())
        self.step(
            self.random.choice(
                (
                    wanted,
                    wanted,
                    events.ConnectorFailed(self.name()),
                    events.ReconfigurationRefused((TaskId("a", 0), TaskId(self.name(), 1))),
                )
            )
        )

    # requests

    def ask(self) -> None:
        self._requests += 1
        self.unanswered.add(self._requests)
        name = "\udcff" if self.ill() and self.random.random() < 0.3 else self.name()
        config: Any = {"k": self.random.choice(_ODD)} if self.ill() else {"connector.class": "X"}
        state = self.random.choice(tuple(TargetState))
        operations: tuple[events.HerderOperation, ...] = (
            events.PutConnector(name, config, self.random.choice((None, state)), True, "source"),
            events.PutConnector(name, config, None, False, "source"),
            events.DeleteConnector(name),
            events.SetTargetState(name, state),
            events.RestartConnector(name),
            events.RestartTask(TaskId(name, self.number())),
            events.Restart(RestartRequest(name, self.random.random() < 0.5, self.random.random() < 0.5)),
            events.PutTaskConfigs(name, self.task_configs()),
            events.CheckOffsets(name),
            events.PutTaskCount(name, 2, 0),
            events.SetLogger(name, "DEBUG"),
        )
        self.step(events.Request(self._requests, self.random.choice(operations)))
        if self.ill():
            self.step(events.RequestWithdrawn(self.random.randint(1, self._requests)))
