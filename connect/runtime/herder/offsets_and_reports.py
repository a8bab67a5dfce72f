"""Reads, alters and resets connectors' offsets over REST, and serves connectors' reports.

Offsets follow KIP-875 (Kafka's ``Worker.modifyConnectorOffsets``). Reports are an addition to Kafka Connect's API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from connect.api.source import ConnectorReport, SourceConnector, TaskReport
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.herder_api import BadRequest, NotFound, SourceOffset
from connect.core.model import State, Status, TargetState
from connect.core.status_and_offset_topics import StatusLog, in_java_order
from connect.kafka.concurrency import within
from connect.kafka.threads import PluginThread
from connect.runtime.herder.effects_and_fencing import ZombieFence
from connect.runtime.plugins.plugin_errors import SecretMask, masked, passwords, plugin_call, secrets_of
from connect.runtime.plugins.plugin_registry import Plugins
from connect.runtime.task.connector_offsets import ConnectorOffsets, encoded_key, encoded_offset

#: Java's time limit.
_TIMEOUT_S: Final = 90.0

#: Opens the offsets of a connector (name, resolved config) as a context; True: for writing.
OpenOffsets = Callable[[str, Mapping[str, str], bool], AbstractAsyncContextManager[ConnectorOffsets]]
#: Returns the raw config of a connector whose offsets may be modified now; raises if they may not.
Modifiable = Callable[[], Awaitable[Mapping[str, str]]]


class OffsetsRefused(PermanentError):
    """Offsets that cannot be altered."""


@dataclass(eq=False)
class OffsetsApi:
    """Reads and changes the stored offsets of connectors."""

    config: WorkerConfig
    plugins: Plugins
    opened: OpenOffsets
    fence: ZombieFence

    async def read(self, name: str, raw: Mapping[str, str], *, moving: bool) -> list[SourceOffset]:
        """Return every source partition with an offset. ``moving``: the connector's tasks run, so its offsets change
        anyway: do not wait for open transactions in the topic, which any connector may have. Java waits for them if it
        reads committed records only. Raises RetriableError if the topic could not be read in time."""
        props = self.config.transformer.connector_props(raw)
        in_time = within(_TIMEOUT_S, f"connector {name}: its offsets were not read")
        async with in_time, self.opened(name, props, False) as offsets:
            return [SourceOffset(*each) for each in await offsets.all(committed_only=moving)]

    async def modify(self, name: str, modifiable: Modifiable, offsets: Sequence[SourceOffset] | None) -> str:
        """Alter offsets, or reset all of them with None; return the answer's message. Raises RequestRefused if
        ``modifiable`` refuses, OffsetsRefused if an entry has no partition, or the connector refuses, and
        RetriableError if it took too long, or the cluster did not answer."""
        done = "reset" if offsets is None else "altered"
        async with within(_TIMEOUT_S, f"connector {name}: its offsets were not {done}"):
            raw = await modifiable()
            if self.config.exactly_once_enabled:
                await self.fence.fence(name)
                raw = await modifiable()  # because that may take long too
            connector, props, secrets = _created(self.config, self.plugins, raw)
            async with self.opened(name, props, True) as stored:
                wanted = await _wanted(stored, offsets)
                is_certain = await _asked(connector, props, wanted, secrets)
                # All that may have taken long, so the connector may have been resumed meanwhile.
                await modifiable()
                values = {encoded_key(name, partition): encoded_offset(offset) for partition, offset in wanted}
                await stored.store(values)
                stored.stored(values)
        return _message(done, is_certain)


def _created(
    config: WorkerConfig, plugins: Plugins, raw: Mapping[str, str]
) -> tuple[SourceConnector, dict[str, str], SecretMask]:
    """Return a new instance of a connector's class, its resolved config, and the secrets in it."""
    props = config.transformer.connector_props(raw)
    with plugin_call(f"the constructor of {props['connector.class']}"):
        connector = plugins.new_connector(props["connector.class"], props.get("connector.plugin.version"))
    return connector, props, secrets_of(config.transformer, raw).with_more(passwords(connector.config_def(), props))


async def _asked(
    connector: SourceConnector,
    props: Mapping[str, str],
    wanted: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
    secrets: SecretMask,
) -> bool:
    try:
        with plugin_call("the connector was asked whether its offsets may be altered"):
            async with PluginThread("a change of offsets") as thread:
                return bool(await thread.call(connector.alter_offsets, props, wanted))
    except HeliographError as error:
        raise masked(error, secrets) from None
    except Exception as error:
        # Only the connector author's text can tell the user why.
        raise OffsetsRefused(f"the connector refuses these offsets: {secrets.mask(str(error))}") from None


async def _wanted(
    stored: ConnectorOffsets, offsets: Sequence[SourceOffset] | None
) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    if offsets is None:
        return [(partition, None) for partition, _ in await stored.all()]
    # Fields in another order would be another key, which no task looks up.
    known = {_fields(partition): partition for partition, _ in await stored.all()}
    wanted: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = []
    for one in offsets:
        if one.partition is None:
            raise OffsetsRefused("The partition of an offset cannot be null")
        partition = known.get(_fields(one.partition)) or in_java_order(one.partition)
        wanted.append((partition, one.offset))
    return wanted


def _fields(partition: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return a source partition without the order of its fields; values may be any JSON."""
    return frozenset((key, repr(value)) for key, value in partition.items())


def _message(done: str, is_certain: bool) -> str:
    if is_certain:
        return f"The offsets for this connector have been {done} successfully"
    return (
        f"The Connect framework-managed offsets for this connector have been {done} successfully. However, if this "
        f"connector manages offsets externally, they will need to be manually {done} in the system that the "
        "connector uses."
    )


#: Less than the time limit of a request.
_REPORT_TIMEOUT_S: Final = 60.0


@dataclass(eq=False)
class Reports:
    """Reports of connectors, each from a new instance of the connector's class; any worker can serve them."""

    config: WorkerConfig
    plugins: Plugins
    snapshot: Callable[[], ConfigLog]
    statuses: StatusLog

    async def report(self, name: str, raw: Mapping[str, str], kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Return a connector's report. Raises NotFound if the connector has no report of this ``kind``, BadRequest if
        the ``query`` is wrong, and RetriableError if the report failed for now, or took too long."""
        connector, props, secrets = _created(self.config, self.plugins, raw)
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT_S) as timeout:
                with plugin_call(f"connector {name} was asked for its {kind}"):
                    reported = await _reported(
                        name, connector, kind, props, self._tasks(name), query, self._whole(name)
                    )
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RetriableError(f"connector {name} gave no {kind} report within {_REPORT_TIMEOUT_S:.0f} s") from None
        except ConfigError as error:
            raise BadRequest(secrets.mask(str(error))) from None
        except Exception as error:
            raise masked(error, secrets) from None
        if reported is None:
            raise NotFound(f"Connector {name} has no {kind} report")
        return reported

    def _whole(self, name: str) -> ConnectorReport:
        target, status = self.snapshot().target_state(name), self.statuses.status(name)
        if status is None:
            return ConnectorReport(State.UNASSIGNED.value)
        # The target state is known at once, and the status only when a worker has reached it.
        state = status.state if target is TargetState.STARTED else State(target.value)
        return ConnectorReport(state.value, status.trace or "")

    def _tasks(self, name: str) -> list[TaskReport]:
        snapshot, unassigned = self.snapshot(), Status(State.UNASSIGNED, "", -1)
        reports = []
        for task in snapshot.task_ids(name):
            status = self.statuses.status(task) or unassigned
            config = snapshot.task_config(task) or {}
            reports.append(TaskReport(task.task, status.state.value, status.worker_id, config, status.trace or ""))
        return reports


async def _reported(name: str, connector: SourceConnector, *asked: Any) -> Mapping[str, Any] | None:
    async with PluginThread(f"report of connector {name}") as thread:
        reported: Mapping[str, Any] | None = await thread.call(connector.report, *asked)
        return reported
