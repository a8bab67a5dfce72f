"""What must hold: always, and once things are calm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connect.core.config_topic import ConfigLog
from connect.core.herder.state import HerderMode
from connect.core.model import TargetState, TaskId
from tests.simulation.process import Environment, Item, Process, task_configs


class Violation(AssertionError):
    """A rule was broken."""


@dataclass
class Written:
    """A request that was to write a connector's config, or what it is to do; ``end_ms`` None: it may still happen."""

    value: object
    start_ms: int
    end_ms: int | None = None
    acknowledged: bool = False


@dataclass
class Judge:
    environment: Environment
    #: By connector, and by what of it: its config (None where deleted) or its target.
    history: dict[tuple[str, str], list[Written]] = field(default_factory=dict)

    # always

    def started(self, item: Item) -> None:
        """Never two owners whose leases hold."""
        owners = [one.name for one in self.environment.processes.values() if _owns(one, item)]
        if len(owners) > 1:
            raise Violation(f"{item} has {len(owners)} owners at once: {', '.join(owners)}")

    def renewed(self, process: Process) -> None:
        for item in process.work:
            self.started(item)

    def between(self) -> None:
        """No work without a lease, but what winds up since that has ended."""
        for one in self.environment.processes.values():
            machine = one.machine
            if not machine.alive or machine.frozen or one.world.now_ms <= one.group.lease_end_ms:
                continue
            going_on = [str(item) for item, instance in one.work.items() if not instance.void]
            if going_on:
                raise Violation(f"{one.name} runs {', '.join(going_on)} without a lease")

    # once things are calm

    def complaints(self) -> list[str]:
        """Why the group is not at peace yet."""
        living = [one for one in self.environment.processes.values() if one.machine.alive]
        if not living:
            return ["nobody lives"]
        found = [f"{one.name} is {one.herder.mode}" for one in living if one.herder.mode is not HerderMode.MEMBER]
        found += [f"{one.name} is behind" for one in living if one.position < len(self.environment.topic.records)]
        generations = {one.herder.generation for one in living}
        leaders = [one.name for one in living if one.herder.is_leader]
        if len(generations) > 1 or len(leaders) != 1:
            found.append(f"generations {generations}, leaders {leaders}")
        for one in living:
            found += [f"{one.name} does not reply to {number}" for number, count in one.replies.items() if not count]
        return found or self._work_complaints(living, living[0].herder.snapshot)

    def _work_complaints(self, living: list[Process], log: ConfigLog) -> list[str]:
        found: list[str] = []
        wanted: dict[Item, Mapping[str, str] | None] = {}
        for name in log.connectors():
            wanted[name] = log.connector_config(name)
            wanted.update({task: log.task_config(task) for task in log.task_ids(name)})
            found += _config_complaints(log, name)
        for item, config in wanted.items():
            owners = [one for one in living if item in one.work]
            if len(owners) != 1:
                found.append(f"{item} runs on {[one.name for one in owners]}")
                continue
            one = owners[0].work[item]
            if one.void:
                found.append(f"{item} has outlived its lease on {owners[0].name}")
            if one.config != config:
                found.append(f"{item} runs on {owners[0].name} with {one.config} instead of {config}")
            target = log.target_state(item.connector if isinstance(item, TaskId) else item)
            if one.target is not target:
                found.append(f"{item} on {owners[0].name} is to be {target}, and is {one.target}")
        found += [f"{item} runs on {one.name}" for one in living for item in one.work if item not in wanted]
        return found

    def final(self) -> None:
        """No acknowledged write is lost: what is there now is of a request that nobody has overwritten since."""
        log = next(one.herder.snapshot for one in self.environment.processes.values() if one.machine.alive)
        for (name, what), written in self.history.items():
            present = log.connector_config(name) if what == "config" else log.target_state(name)
            if what == "target" and name not in log:
                continue
            initial: object = None if what == "config" else TargetState.STARTED
            candidates = [*written, Written(initial, 0, 0, acknowledged=True)]
            acknowledged = [one for one in candidates if one.acknowledged]
            if not any(
                one.value == present
                and not any(one.end_ms is not None and later.start_ms > one.end_ms for later in acknowledged)
                for one in candidates
            ):
                last = max(acknowledged, key=lambda one: one.start_ms)
                raise Violation(f"{what} of {name} is {present}, although {last.value} was acknowledged")


def _owns(process: Process, item: Item) -> bool:
    one = process.work.get(item)
    return (
        one is not None and not one.void and process.machine.alive and process.world.now_ms < process.group.lease_end_ms
    )


def _config_complaints(log: ConfigLog, name: str) -> list[str]:
    config = log.connector_config(name) or {}
    target = log.target_state(name)
    if target is TargetState.STARTED and tuple(log.all_task_configs(name)) != task_configs(config):
        return [f"the tasks of {name} are {log.all_task_configs(name)}, which is not by {config}"]
    if target is TargetState.STOPPED and log.task_count(name):
        return [f"{name} is stopped and has {log.task_count(name)} tasks"]
    return []
