"""Publishes task configs of this worker's connectors to the config topic: computed, compared, written by the leader.

Failed attempts are retried without end, with growing pauses (Kafka
``reconfigureConnectorTasksWithExponentialBackoffRetries``). Too many tasks fail the connector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from connect.core.config_topic import commit_record, is_text, task_records
from connect.core.errors import NotRunning, PermanentError, RetriableError, TooManyTasks
from connect.core.herder.events import ComputeTaskConfigs, FailConnector, SendTaskConfigs
from connect.core.herder.state import HerderState, Step, pause_ms
from connect.core.herder_api import Forbidden
from connect.core.model import TargetState

#: The leader that stops a connector removes its tasks first, and sets the target state a moment later.
_CORRECTION_MS: Final = 1_000
#: During this time a rejected signature is attributed to a session key that was just replaced.
_KEY_GRACE_MS: Final = 60_000
#: Only the leader of a dedicated mirror may have no URL: other workers always have REST.
_NO_LEADER_REST: Final = (
    "the leader has no internal REST address to send them to; on all nodes set "
    "dedicated.mode.enable.internal.rest = true and listeners that the other nodes can reach"
)


class InvalidTaskConfigs(PermanentError):
    """A connector has generated task configs that cannot be stored."""


def want(s: HerderState, connector: str) -> None:
    if connector in s.running.connectors:
        s.publishing.wanted[connector] = None


def advance(s: HerderState) -> None:
    """Begin all due steps until one of them blocks the others."""
    publishing = s.publishing
    for connector in [name for name, at_ms in sorted(publishing.retry_at_ms.items()) if at_ms <= s.now_ms]:
        del publishing.retry_at_ms[connector]
        publishing.wanted[connector] = None
    for connector in list(publishing.wanted):
        if connector not in publishing.computing and connector not in publishing.sending:
            del publishing.wanted[connector]
            _compute(s, connector)
    while publishing.computed and not s.busy:
        connector = next(iter(publishing.computed))
        _publish(s, connector, publishing.computed.pop(connector))
    for connector, at_ms in sorted(publishing.remove_tasks_at_ms.items()):
        if at_ms <= s.now_ms and s.is_leader and not s.busy:
            _take_away(s, connector)


def computed(s: HerderState, token: int, connector: str, outcome: Sequence[Mapping[str, str]] | Exception) -> None:
    if s.publishing.computing.get(connector) == token:
        del s.publishing.computing[connector]
        s.publishing.computed[connector] = outcome if isinstance(outcome, Exception) else checked(connector, outcome)


def sent(s: HerderState, token: int, connector: str, error: Exception | None) -> None:
    if s.publishing.sending.get(connector) == token:
        del s.publishing.sending[connector]
        _concluded(s, connector, error)


def look_for_unwanted_tasks(s: HerderState, connector: str) -> None:
    """Schedule the removal of a stopped connector's tasks, which exist only if two leaders wrote at the same time: one
    the target state, the other the tasks."""
    if s.snapshot.target_state(connector) is TargetState.STOPPED and s.snapshot.task_count(connector):
        s.publishing.remove_tasks_at_ms.setdefault(connector, s.now_ms + _CORRECTION_MS)


def committed(s: HerderState, connector: str) -> None:
    """Handle committed task configs. If they differ from the last ones of the connector, another leader wrote older
    ones, or a write was incomplete; only the worker that runs the connector can correct that."""
    look_for_unwanted_tasks(s, connector)
    published = s.publishing.published.get(connector)
    if published is None:
        return
    present = s.snapshot.all_task_configs(connector)
    if list(present) == list(published):
        s.publishing.published[connector] = present
    elif connector not in s.publishing.sending:
        s.publishing.retry_at_ms.setdefault(connector, s.now_ms + _CORRECTION_MS)


def steps(connector: str, configs: Sequence[Mapping[str, str]]) -> tuple[Step, ...]:
    """Return the steps to store task configs: they are read back before the commit."""
    commit: Step = (commit_record(connector, len(configs)),)
    return (task_records(connector, configs), commit) if configs else (commit,)


def defect(configs: object) -> str | None:
    """Return why task configs cannot be stored, without their values; None if they can. They must be a sequence of
    mappings from text to text, but connectors may return anything."""
    if not isinstance(configs, Sequence) or isinstance(configs, str | bytes):
        return f"they are a {type(configs).__name__}, not a list of mappings"
    for number, config in enumerate(configs):
        if not isinstance(config, Mapping):
            return f"that of task {number} is a {type(config).__name__}, not a mapping"
        for key, value in config.items():
            if not is_text(key):
                return f"a key of task {number} is not text"
            if not is_text(value):
                kind = "text with a lone surrogate" if isinstance(value, str) else f"a {type(value).__name__}"
                return f"the value of '{key}' of task {number} is {kind}, not text that UTF-8 can hold"
    return None


def checked(connector: str, configs: Sequence[Mapping[str, str]]) -> tuple[Mapping[str, str], ...] | InvalidTaskConfigs:
    """Return the task configs of a connector, or the error if they cannot be stored."""
    wrong = defect(configs)
    if wrong is not None:
        return InvalidTaskConfigs(
            f"The connector {connector} has generated task configs that cannot be stored: {wrong}. This is a bug in "
            "the connector: its task configs must map strings to strings"
        )
    return tuple(configs)


def _take_away(s: HerderState, connector: str) -> None:
    remove_tasks_at_ms = s.publishing.remove_tasks_at_ms
    del remove_tasks_at_ms[connector]
    if s.snapshot.target_state(connector) is not TargetState.STOPPED or not s.snapshot.task_count(connector):
        return
    s.say(f"{connector} is stopped but has tasks; removing them", "warning")

    def written(error: Exception | None) -> None:
        if error is not None:
            remove_tasks_at_ms[connector] = s.now_ms + _CORRECTION_MS

    s.write_config(steps(connector, ()), written)


def _compute(s: HerderState, connector: str) -> None:
    if connector in s.running.connectors and s.snapshot.target_state(connector) is TargetState.STARTED:
        s.publishing.computing[connector] = token = s.next_token()
        s.publishing.first_ms.setdefault(connector, s.now_ms)
        s.emit(ComputeTaskConfigs(token, connector))


def _publish(s: HerderState, connector: str, outcome: tuple[Mapping[str, str], ...] | Exception) -> None:
    if connector not in s.snapshot or s.snapshot.target_state(connector) is not TargetState.STARTED:
        s.publishing.succeed(connector)
    elif isinstance(outcome, TooManyTasks | InvalidTaskConfigs):
        s.publishing.succeed(connector)
        s.emit(FailConnector(connector, outcome))
    elif isinstance(outcome, Exception):
        _concluded(s, connector, outcome)
    elif not _changed(s, connector, outcome):
        s.publishing.published[connector] = s.snapshot.all_task_configs(connector)
        s.publishing.succeed(connector)
    elif s.is_leader:
        token = _send(s, connector, outcome)
        s.say(f"Writing {len(outcome)} task configs of {connector}", "debug")
        s.write_config(steps(connector, outcome), lambda error: sent(s, token, connector, error))
    elif not (s.leader_url or "").startswith("http"):
        _concluded(s, connector, RetriableError(_NO_LEADER_REST))
    else:
        s.emit(SendTaskConfigs(_send(s, connector, outcome), s.leader_url or "", connector, outcome))


def _send(s: HerderState, connector: str, configs: tuple[Mapping[str, str], ...]) -> int:
    s.publishing.published[connector] = configs
    s.publishing.sending[connector] = token = s.next_token()
    return token


def _concluded(s: HerderState, connector: str, error: Exception | None) -> None:
    publishing = s.publishing
    if error is None or connector not in s.running.connectors:
        publishing.succeed(connector)
        return
    failures = publishing.failures.get(connector, 0)
    publishing.failures[connector] = failures + 1
    wait_ms = pause_ms(failures)
    publishing.retry_at_ms[connector] = s.now_ms + wait_ms
    first_ms = publishing.first_ms.setdefault(connector, s.now_ms)
    # A starting connector requests task configs before it can compute them; a failed start has its own log entry.
    is_starting = isinstance(error, NotRunning)
    quiet = (is_starting and not failures) or (isinstance(error, Forbidden) and s.now_ms <= first_ms + _KEY_GRACE_MS)
    level = "debug" if quiet else "info" if is_starting else "error"
    s.say(f"Failed to configure the tasks of {connector}; retrying in {wait_ms} ms: {error}", level)


def _changed(s: HerderState, connector: str, configs: tuple[Mapping[str, str], ...]) -> bool:
    """Return whether task configs must be written (Kafka ``AbstractHerder.taskConfigsChanged``): also if only the
    connector's config has changed, because some of its keys affect tasks without being in their configs."""
    return (
        s.snapshot.task_count(connector) != len(configs)
        or list(s.snapshot.all_task_configs(connector)) != list(configs)
        or s.snapshot.applied_config(connector) != s.snapshot.connector_config(connector)
    )
