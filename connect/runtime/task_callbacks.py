"""What a task and the listener hear of records that were sent; an error in a callback is told and goes no further."""

from __future__ import annotations

import logging

from connect.api.source import RecordMetadata, SourceRecord, SourceTask
from connect.core.model import TaskId
from connect.kafka.plugin_thread import PluginThread
from connect.runtime.listener import WorkerListener
from connect.runtime.plugin_calls import plugin_call
from connect.runtime.traces import Secrets

log = logging.getLogger(__name__)


class TaskCallbacks:
    """``commit_record`` and ``commit`` of one task."""

    def __init__(self, task_id: TaskId, task: SourceTask, secrets: Secrets, thread: PluginThread) -> None:
        self._id = task_id
        self._task = task
        self._secrets = secrets
        self._thread = thread
        #: Whether the task wants to hear of single records at all.
        self.wants_records = type(task).commit_record is not SourceTask.commit_record

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """A record was acknowledged, or (None) left out."""
        if not self.wants_records:
            return
        try:
            with plugin_call("commit_record"):
                await self._thread.call(self._task.commit_record, record, metadata)
        except Exception as error:
            log.error("task %s: its commit_record raised an error\n%s", self._id, self._secrets.trace(error))

    async def commit(self) -> None:
        """Offsets were stored, or there was nothing to store."""
        try:
            with plugin_call("commit"):
                await self._thread.call(self._task.commit)
        except Exception as error:
            log.error("task %s: its commit raised an error\n%s", self._id, self._secrets.trace(error))


class TopicsInUse:
    """Tells the listener of each topic once (KIP-558)."""

    def __init__(self, task: TaskId, listener: WorkerListener, *, tracked: bool) -> None:
        self._task = task
        self._listener = listener
        self._tracked = tracked
        self._told: set[str] = set()

    def used(self, topic: str) -> None:
        """A record has arrived in ``topic``."""
        if self._tracked and topic not in self._told:
            self._told.add(topic)
            self._listener.topic_used(topic, self._task)
