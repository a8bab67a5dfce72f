"""Run one Spark task of a verification: it takes ranges over the control link, and returns what it found in each. Its
arguments only say where the command listens; settings with secrets come over the link, so no plan of Spark holds
them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire.records import Record as WireRecord
from connectors.control_link.code_version import running_code, running_from
from connectors.control_link.protocol import Link, LinkAddress, LinkClosed, Message, PartitionPlan
from connectors.transforms.smt_chain import Chain, ChainPlan, Outcome
from connectors.verification.alignment import timestamp_of
from connectors.verification.comparison import Comparison
from connectors.verification.log_reader import AnyKeyRecord, LogReader, ReadLimit, Transform
from connectors.verification.ranges import RangePlan

if TYPE_CHECKING:
    from connectors.dataplane.sql_stage import RecordStage

log = logging.getLogger(__name__)

_REPORT_S: Final = 0.5


async def run_task(payload: Message, stage: RecordStage | None) -> None:
    """Verify ranges until the command ends or needs no more. ``payload``: host, port and certificate of the listener,
    token, slice (a name) and epoch (the task's number). ``stage`` passes records through Spark for the flow's
    ``transform.sql``; None without one."""
    hello = {
        **{name: payload[name] for name in ("token", "slice", "epoch")},
        "attempt": "verification",
        "code": running_code(),
        "from": running_from(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    link = await Link.connect(LinkAddress(payload["host"], payload["port"], payload["certificate"]), hello)
    async with aclosing(VerificationTask(link, stage)) as task:
        await task.run()


class VerificationTask:
    """One connection to each cluster's leaders, and one range at a time."""

    def __init__(self, link: Link, stage: RecordStage | None) -> None:
        self._link = link
        self._transforms = FlowTransforms(stage)
        self._clusters: dict[str, Cluster] = {}
        self._is_committed = False
        self._fetch_bytes = 1024 * 1024
        self._pace: ReadLimit | None = None
        self._comparison: Comparison | None = None
        self._scope = Scope("verification")

    async def run(self) -> None:
        """Serve the command; a closed link ends it quietly."""
        self._scope.spawn(self._report_forever(), "progress")
        with suppress(LinkClosed):
            while True:
                message = await self._link.receive()
                if message["type"] == "config":
                    await self._configure(message)
                elif message["type"] == "range":
                    # In the background, so that a closed link ends it.
                    self._scope.spawn(self._verify(message), "range")
                elif message["type"] in ("stop", "refused"):
                    return

    async def aclose(self) -> None:
        await self._scope.close()
        for cluster in self._clusters.values():
            await cluster.close()
        await self._transforms.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._link.close()

    async def _configure(self, message: Message) -> None:
        for side in ("source", "target"):
            self._clusters[side] = Cluster(ConnectionSettings.from_wire(message[side]), message["aliases"][side])
        self._is_committed = message["is_committed"]
        self._fetch_bytes = message["fetch_bytes"]
        self._pace = ReadLimit(message["bytes_s"])
        await self._transforms.start(message["chain"])

    async def _verify(self, message: Message) -> None:
        try:
            plan = RangePlan.from_wire(message["plan"])
            transform = self._transforms.of(PartitionPlan.from_wire(message["partition"]))
            self._comparison = Comparison(plan, self._opener(plan), transform)
            result = await self._comparison.run()
            self._link.send({"type": "result", "result": result.to_wire()})
        except HeliographError as error:
            self._link.send({"type": "failed", "error": str(error)})
        except Exception as error:  # else the command would wait for it without end
            log.error("a range could not be compared", exc_info=error)
            self._link.send({"type": "failed", "error": f"{type(error).__name__}: {error}"})
        finally:
            self._comparison = None

    def _opener(self, plan: RangePlan) -> Any:
        def open_reader(side: str, begin: int, end: int) -> LogReader:
            is_source = side == "source"
            return LogReader(
                self._clusters[side],
                plan.source if is_source else plan.target,
                begin,
                end,
                is_committed=self._is_committed or not is_source,
                fetch_bytes=self._fetch_bytes,
                topic_id=plan.ids[0 if is_source else 1],
                # Both logs have about the same bytes, so the source's limit is both's.
                pace=self._pace if is_source else None,
            )

        return open_reader

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            comparison = self._comparison
            self._link.send({"type": "progress", "bytes": comparison.read_bytes if comparison else 0})


def _arrived(waiting: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not waiting.done():  # the range may have ended meanwhile
        waiting.set_result(outcome)


class FlowTransforms:
    """What the flow does to its records, applied again: ``transform.sql``, then its single message transforms."""

    def __init__(self, stage: RecordStage | None) -> None:
        self._stage = stage
        self._chain: Chain | None = None
        self._waiting: asyncio.Future[Outcome] | None = None

    async def start(self, chain: dict[str, Any] | None) -> None:
        """``chain``: a ChainPlan on the wire. Raises TransformUnusable."""
        if chain is not None:
            self._chain = Chain(ChainPlan.from_wire(chain))
        if self._stage is not None:
            await self._stage.start(self._broken)

    async def stop(self) -> None:
        if self._stage is not None:
            await self._stage.stop()
        if self._chain is not None:
            self._chain.close()

    def of(self, plan: PartitionPlan) -> Transform | None:
        """Return the transforms of a partition; None if records are copied as they are."""
        return None if self._chain is None and self._stage is None else partial(self._applied, plan)

    async def _applied(self, plan: PartitionPlan, records: list[Any]) -> list[Any]:
        outcome: Outcome = [
            WireRecord(one.offset, timestamp_of(one), one.key, one.value, list(one.headers)) for one in records
        ]
        if self._stage is not None and outcome:
            waiting = self._waiting = asyncio.get_running_loop().create_future()
            part = [one for one in outcome if isinstance(one, WireRecord)]
            self._stage.submit(plan, part, partial(_arrived, waiting))
            outcome = await waiting
        if (chain := self._chain) is not None:
            outcome = [chain.transform(plan, one) if isinstance(one, WireRecord) else None for one in outcome]
        return [AnyKeyRecord(one[0], one[1], 0, *one[2:]) for one in outcome if isinstance(one, WireRecord)]

    def _broken(self, error: BaseException) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
