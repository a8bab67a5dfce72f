"""A herder on a bench: the group, the config topic and the work around it are played by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import (
    commit_record,
    connector_record,
    session_key_record,
    target_state_record,
    task_records,
)
from connect.core.herder import events
from connect.core.herder.events import Effect, Event, Joined, Reply
from connect.core.herder.herder import Herder
from connect.core.herder.membership import (
    NOTHING,
    SESSIONED,
    Allocation,
    Assignment,
    WorkerMetadata,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
)
from connect.core.herder_api import SessionKey
from connect.core.model import TargetState
from connect.core.status_and_offset_topics import StatusLog
from tests.kit.work import worker_config

E = TypeVar("E")

URL = "http://us:8083/"
OTHER_URL = "http://other:8083/"
CONFIG = {"connector.class": "C", "name": "c"}


class Bench:
    """``ours`` is our member id, ``other`` that of somebody else."""

    def __init__(self, config: WorkerConfig | None = None) -> None:
        self.statuses = StatusLog()
        self.herder = Herder(config or worker_config(worker_lease_ms="10000"), URL, self.statuses)
        self.now_ms = 1_000_000
        self.offset = 0
        self.generation = 0
        self.join: events.Join | None = None
        #: For the log, of the last step.
        self.said: list[events.Say] = []
        self._requests = 0

    # events

    def step(self, event: Event) -> list[Effect]:
        effects = self.herder.step(event, self.now_ms)
        for effect in effects:
            if isinstance(effect, events.Join):
                self.join = effect
        self.said = [effect for effect in effects if isinstance(effect, events.Say)]
        return [effect for effect in effects if not isinstance(effect, events.Say)]

    def record(self, *records: tuple[str, bytes | None]) -> list[Effect]:
        effects: list[Effect] = []
        for key, value in records:
            effects += self.step(events.ConfigRecord(self.offset, key, value))
            self.offset += 1
        return effects

    def connector(self, name: str = "c", config: Mapping[str, str] = CONFIG) -> list[Effect]:
        return self.record(connector_record(name, config))

    def tasks(self, configs: Sequence[Mapping[str, str]], name: str = "c") -> list[Effect]:
        return self.record(*task_records(name, configs), commit_record(name, len(configs)))

    def target(self, state: TargetState, name: str = "c") -> list[Effect]:
        return self.record(target_state_record(name, state))

    def key(self) -> None:
        self.record(session_key_record(SessionKey(b"k" * 32, "HmacSHA256", self.now_ms)))

    def ready(self) -> None:
        self.key()
        self.step(events.Ready())

    def elected(self, others: Sequence[WorkerMetadata] = (), protocol: str = SESSIONED) -> list[Effect]:
        """We lead a round with these others, who are called other0, other1 ..."""
        members = {"ours": dict(self.joining().protocols)[protocol]}
        members.update({f"other{n}": encode_metadata(protocol, each) for n, each in enumerate(others)})
        return self.step(events.LeaderElected(protocol, "ours", members))

    def joined(
        self,
        assigned: Allocation = NOTHING,
        revoked: Allocation = NOTHING,
        *,
        leader: str = "other",
        delay_ms: int = 0,
        offset: int | None = None,
        error: int = 0,
        protocol: str = SESSIONED,
        token: int | None = None,
        leader_url: str | None = None,
    ) -> list[Effect]:
        self.generation += 1
        url = leader_url or (URL if leader == "ours" else OTHER_URL)
        offset = self.herder.snapshot.offset if offset is None else offset
        assignment = Assignment(error, leader, url, offset, assigned, revoked, delay_ms)
        token = self.joining().token if token is None else token
        return self.step(
            Joined(token, self.generation, "ours", leader, protocol, encode_assignment(protocol, assignment))
        )

    def lead(self, *others: WorkerMetadata) -> list[Effect]:
        """A round that we lead and decide ourselves, and another where it takes something away."""
        assign = only(self.elected(others), events.Assign)
        mine = decode_assignment(assign.assignments["ours"])
        effects = self.joined(mine.assigned, mine.revoked, leader="ours", delay_ms=mine.delay_ms)
        return effects + self.lead(*others) if mine.revoked else effects

    def ask(self, operation: events.HerderOperation) -> list[Effect]:
        self._requests += 1
        return self.step(events.Request(self._requests, operation))

    def withdraw(self) -> list[Effect]:
        return self.step(events.RequestWithdrawn(self._requests))

    def wrote(self, effects: Sequence[Effect]) -> list[Effect]:
        """What a WriteConfig among ``effects`` writes comes back, and it ends."""
        write = only(effects, events.WriteConfig)
        outcome = [effect for step in write.steps for effect in self.record(*step)]
        return outcome + self.step(events.ConfigWritten(write.token))

    def tick(self, after_ms: int) -> list[Effect]:
        self.now_ms += after_ms
        return self.step(events.Tick())

    # views

    def joining(self) -> events.Join:
        assert self.join is not None, "it has not joined"
        return self.join

    def claimed(self) -> WorkerMetadata:
        return decode_metadata(self.joining().protocols[0][1])


def ready_bench(config: WorkerConfig | None = None, connectors: str = "", tasks: int = 0) -> Bench:
    """One that has read the config topic: connectors with names of a letter, and so many tasks of c."""
    bench = Bench(config)
    for name in connectors:
        bench.connector(name)
    if tasks:
        bench.tasks([{"n": str(number)} for number in range(tasks)])
    bench.ready()
    return bench


def leading_bench(config: WorkerConfig | None = None, connectors: str = "c", tasks: int = 0) -> Bench:
    """As :func:`ready_bench`, and alone in its group."""
    bench = ready_bench(config, connectors, tasks)
    bench.lead()
    return bench


def only(effects: Sequence[Effect], kind: type[E]) -> E:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} in {effects}"
    return found[0]


def none(effects: Sequence[Effect], kind: type) -> bool:
    return not any(isinstance(effect, kind) for effect in effects)


def kinds(effects: Sequence[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def error_of(effects: Sequence[Effect]) -> Exception:
    reply = only(effects, Reply)
    assert reply.error is not None, f"it is answered with {reply.value}"
    return reply.error
