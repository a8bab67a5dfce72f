"""The worker's end of one slice: its Spark job, its link, its lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from connect.core.errors import PermanentError, RetriableError
from connectors.dataplane.link import Link, LinkClosed, LinkServer, Message
from connectors.dataplane.plan import (
    PartitionPlan,
    PartitionProgress,
    ProducerIdentity,
    SliceSettings,
    TopicPartition,
)
from connectors.dataplane.resuming import Resumed
from connectors.source.engine import Job, SparkEngine

log = logging.getLogger(__name__)

_RENEW_S: Final = 1.0
_OPEN_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 7.0
_CANCEL_AFTER_S: Final = 10.0


class SliceLost(RetriableError):
    """A slice ended without saying that all is acknowledged; its successor must fence and prove."""


class SliceFenced(PermanentError):
    """The target's brokers know a successor of ours that we did not start."""


class SliceHandle:
    """Opens one slice and steers it. ``on_progress`` gets each partition's report in order."""

    def __init__(
        self,
        engine: SparkEngine,
        links: LinkServer,
        settings: SliceSettings,
        epoch: int,
        on_progress: Callable[[PartitionProgress], None],
    ) -> None:
        self.epoch = epoch
        self.pid = 0
        #: Set when the slice has ended: None after a clean «done», else the error.
        self.ended: asyncio.Future[SliceLost | SliceFenced | None] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._links = links
        self._settings = settings
        self._on_progress = on_progress
        self._job: Job | None = None
        self._link: Link | None = None
        self._heard_s = time.monotonic()
        self._ready = asyncio.Event()
        self._resumed: asyncio.Future[list[Resumed]] | None = None
        self._unclean: list[TopicPartition] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Start the job and wait until its slice has its configuration and warm connections.

        Raises :class:`SliceLost` when the slice does not come up, or Spark's own errors.
        """
        token, linked = self._links.expect()
        host, port = self._links.address
        payload = {
            "host": host,
            "port": port,
            "token": token,
            "flow": f"{self._settings.flow} task {self._settings.task}",
            "epoch": self.epoch,
        }
        try:
            self._job = await self._engine.start_job(payload)
            either: list[asyncio.Future[Any]] = [linked, self._job.finished]
            await asyncio.wait(either, timeout=_OPEN_TIMEOUT_S, return_when="FIRST_COMPLETED")
            if not linked.done():
                raise self._no_slice(self._job)
            self._link, hello = linked.result()
        finally:
            self._links.forget(token)
            if self._link is None and linked.done() and not linked.cancelled():
                linked.result()[0].abort()  # cancelled just when it came: nobody else would let go of it
        self.pid = int(hello["pid"])
        self._heard_s = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._listen(self._link), name=f"slice {payload['flow']}"),
            asyncio.create_task(self._renew(self._link), name=f"lease {payload['flow']}"),
        ]
        self._link.send({"type": "config", "settings": self._settings.to_wire()})
        await self._until(self._ready.wait())

    async def resume(self, plans: Sequence[PartitionPlan]) -> list[Resumed]:
        """Let the slice find the exact places of these plans; :class:`SliceLost` if it ends meanwhile."""
        self._resumed = asyncio.get_running_loop().create_future()
        self._send({"type": "resume", "plans": [plan.to_wire() for plan in plans]})
        await self._until(self._resumed)
        return self._resumed.result()

    def go(self, producer: ProducerIdentity, plans: Sequence[PartitionPlan]) -> None:
        """Copy. What the plans say must be stored before."""
        self._send(
            {
                "type": "go",
                "producer": {"producer_id": producer.producer_id, "epoch": producer.epoch},
                "plans": [plan.to_wire() for plan in plans],
            }
        )

    async def stop(self) -> list[TopicPartition]:
        """End cleanly; returns partitions whose last batches have no answer. :class:`SliceLost` if it is silent."""
        self._send({"type": "stop"})
        done, _ = await asyncio.wait({self.ended}, timeout=_STOP_TIMEOUT_S)
        if not done:
            raise SliceLost(f"the slice did not stop within {_STOP_TIMEOUT_S:.0f} s")
        error = self.ended.result()
        if error is not None:
            raise error
        return self._unclean

    async def close(self) -> None:
        """Let go of the link and its tasks; a job that does not end by itself is cancelled later."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            self._link.abort()
        if self._job is not None and not self._job.finished.done():
            loop, job = asyncio.get_running_loop(), self._job
            loop.call_later(_CANCEL_AFTER_S, self._engine.cancel, job)

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def _no_slice(self, job: Job) -> Exception:
        if job.finished.done() and (error := job.finished.exception()) is not None:
            return error if isinstance(error, (RetriableError, PermanentError)) else SliceLost(str(error))
        if not job.finished.done():
            self._engine.abandon()
        return SliceLost(f"no slice connected within {_OPEN_TIMEOUT_S:.0f} s")

    async def _until(self, waited: Any) -> None:
        """Wait for something the slice will say, or for its end, which is raised."""
        waiting = asyncio.ensure_future(waited)
        try:
            await asyncio.wait({waiting, self.ended}, return_when="FIRST_COMPLETED")
            if not waiting.done():
                raise self.ended.result() or SliceLost("the slice ended early")
        finally:
            waiting.cancel()

    async def _renew(self, link: Link) -> None:
        lease_s = self._settings.lease_ms / 1000
        while not self.ended.done():
            link.send({"type": "lease"})
            await asyncio.sleep(min(_RENEW_S, lease_s / 4))
            if time.monotonic() - self._heard_s > lease_s:
                self._end(SliceLost(f"nothing heard from the slice (pid {self.pid}) for {lease_s:.1f} s"))

    async def _listen(self, link: Link) -> None:
        try:
            while True:
                message = await link.receive()
                self._heard_s = time.monotonic()
                self._heard(message)
        except LinkClosed:
            self._end(SliceLost(f"the slice (pid {self.pid}) is gone"))
        except Exception as error:
            log.error("a message of the slice (pid %d) could not be taken", self.pid, exc_info=error)
            self._end(SliceLost(f"a message of the slice (pid {self.pid}) could not be taken: {error!r}"))

    def _heard(self, message: Message) -> None:
        kind = message["type"]
        if kind == "progress":
            for partition in message["partitions"]:
                self._on_progress(PartitionProgress.from_wire(partition))
        elif kind == "log":
            log.log(message["level"], "%s", message["text"])
        elif kind == "ready":
            self._ready.set()
        elif kind == "resumed" and self._resumed is not None and not self._resumed.done():
            self._resumed.set_result([Resumed.from_wire(one) for one in message["partitions"]])
        elif kind == "done":
            self._unclean = [TopicPartition(*one) for one in message["unclean"]]
            self._end(None)
        elif kind == "failed":
            fenced = message["fault"] == "Fenced"
            self._end(SliceFenced(message["error"]) if fenced else SliceLost(message["error"]))

    def _end(self, error: SliceLost | SliceFenced | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


async def close_quietly(handle: SliceHandle | None) -> None:
    """Close a handle that may be half open."""
    if handle is not None:
        with contextlib.suppress(RetriableError):
            await handle.close()
