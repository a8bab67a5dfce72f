"""A source task that is polled: records from it, through transforms and converters, to the producer (Kafka's
``AbstractWorkerSourceTask``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from connect.api.connector import Props
from connect.api.source import OffsetReader, SourceRecord, SourceTask, TransactionContext
from connect.core.errors import RetriableError
from connect.core.model import State, TaskId
from connect.kafka.patience import Patience
from connect.kafka.plugin_thread import PluginThread
from connect.runtime.control import TaskControl
from connect.runtime.conversion import Conversion
from connect.runtime.counters import TaskCounters
from connect.runtime.delivery import Delivery
from connect.runtime.error_handling import Interrupted, LeftOut
from connect.runtime.plugin_calls import masked, plugin_call
from connect.runtime.topic_creation import TopicCreation
from connect.runtime.traces import Secrets
from connect.runtime.work import Tell

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Kafka's ``SEND_FAILED_BACKOFF_MS``.
_RETRY_FIRST_MS: Final = 100
#: Java calls a poll that failed again at once.
_POLL_RETRY_LAST_MS: Final = 500
#: A poll that comes back empty at once is not called again before this, lest a careless task eats the loop.
_EMPTY_POLL_S: Final = 0.005
#: So many records are handled before others on the loop have their turn.
_RECORDS_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Implements :class:`connect.api.source.SourceTaskContext`."""

    configs: Props
    offset_reader: OffsetReader
    thread: PluginThread
    transaction_context: TransactionContext | None = None

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        return self.thread.wait_for(asked)


class SourceWork:
    """Implements :class:`connect.runtime.work.Work` for one :class:`SourceTask`."""

    def __init__(
        self,
        task_id: TaskId,
        task: SourceTask,
        context: TaskContext,
        delivery: Delivery,
        conversion: Conversion,
        topics: TopicCreation,
        counters: TaskCounters,
        secrets: Secrets,
    ) -> None:
        self._id = task_id
        self._task = task
        self._context = context
        self._thread = context.thread
        self._delivery = delivery
        self._conversion = conversion
        self._topics = topics
        self._counters = counters
        self._secrets = secrets
        self._started = False
        self._to_send: Sequence[SourceRecord] | None = None
        self._polling = Patience(log, f"task {task_id}: its poll failed", _RETRY_FIRST_MS, _POLL_RETRY_LAST_MS)
        self._sending = Patience(log, f"task {task_id}: a record could not be sent", _RETRY_FIRST_MS, _RETRY_FIRST_MS)

    async def start(self) -> None:
        await self._delivery.start()
        # From here on the task may hold something that only its stop gives back.
        self._started = True
        await self._thread.call(self._task.initialize, self._context)
        await self._thread.call(self._task.start, self._context.configs)

    def reconfigure(self, props: Mapping[str, str]) -> bool:
        # As in Java: a task that is polled gets its config when it starts.
        return False

    async def execute(self, control: TaskControl, tell: Tell) -> None:
        try:
            await self._loop(control, tell)
        except Interrupted:
            pass
        except Exception:
            try:
                await self._delivery.finish(failed=True)
            except Exception as error:
                log.error("task %s: no final commit: %s", self._id, self._secrets.mask(str(error)))
            raise
        await self._delivery.finish(failed=False)

    async def close(self, timeout_s: float) -> None:
        if self._started:
            self._started = False
            try:
                with plugin_call("its stop"):
                    await self._thread.call(self._task.stop, always=True)
            except Exception as error:
                log.error("task %s: its stop raised an error: %s", self._id, self._secrets.line(error))
        await self._thread.close()
        await self._delivery.close(timeout_s)
        await self._topics.close()
        self._conversion.close()

    async def abandon(self) -> None:
        await self._delivery.close(0)
        await self._topics.close()

    async def _loop(self, control: TaskControl, tell: Tell) -> None:
        self._delivery.enter()
        while not control.is_stopping:
            if control.is_paused:
                tell(State.PAUSED)
                await self._delivery.pause()
                if await control.unpaused():
                    tell(State.RUNNING)
                    self._delivery.enter()
                continue
            if self._to_send is None:
                self._delivery.before_poll()
                self._to_send = await self._poll(control)
            await self._send_batch()

    async def _poll(self, control: TaskControl) -> Sequence[SourceRecord] | None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        records: Sequence[SourceRecord] | None = None
        with control.ended_by_stop() as scope:
            try:
                async with scope:
                    with plugin_call("its poll"):
                        records = await self._thread.call(self._task.poll)
            except TimeoutError:
                if not scope.expired():
                    raise
            except RetriableError as error:
                await self._polling.after(masked(error, self._secrets))
                return None
        self._polling.over()
        took_s = clock() - began_s
        if records:
            self._counters.batch_polled(len(records), took_s * 1000)
        else:
            await asyncio.sleep(_EMPTY_POLL_S if took_s < _EMPTY_POLL_S else 0)
        return records

    async def _send_batch(self) -> None:
        """Hand over what was polled. What cannot be handed over now is kept, after a pause, for the next call."""
        batch = self._to_send or ()
        if batch:
            self._counters.batch_taken(len(batch))
        for number, record in enumerate(batch):
            try:
                await self._send(record)
            except RetriableError as error:
                self._to_send = batch[number:]
                await self._sending.after(masked(error, self._secrets))
                return
            if number % _RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._sending.over()
        self._to_send = None
        await self._delivery.batch_done()

    async def _send(self, record: SourceRecord) -> None:
        try:
            with plugin_call("a transformation or a converter"):
                outgoing = await self._conversion.outgoing(record)
        except LeftOut:
            outgoing = None
        if outgoing is None:
            await self._delivery.dropped(record)
            return
        await self._topics.ensure(outgoing.topic)
        await self._delivery.send(record, outgoing)
