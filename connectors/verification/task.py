"""Run one Spark task of a verification: it takes ranges over the control link, and returns what it found in each.

Its arguments are where the command listens, that listener's certificate, and a token. Connection settings with secrets
come over the link, as for a slice, so no plan of Spark holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import Any, Final

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire.records import Record as WireRecord
from connectors.control_link.code_version import running_code, running_from
from connectors.control_link.protocol import Link, LinkAddress, LinkClosed, Message, PartitionPlan
from connectors.transforms.smt_chain import Chain, ChainPlan, Untransformable
from connectors.verification.comparison import Comparison
from connectors.verification.log_reader import AnyKeyRecord, LogReader, ReadLimit, Transform
from connectors.verification.ranges import RangePlan

log = logging.getLogger(__name__)

_REPORT_S: Final = 0.5


def run_task(payload: Message) -> None:
    """Verify ranges until the command ends or needs no more.

    ``payload``: host, port and certificate of the listener, token, slice (a name) and epoch (the task's number).
    """
    asyncio.run(_run(payload))


async def _run(payload: Message) -> None:
    hello = {
        **{name: payload[name] for name in ("token", "slice", "epoch")},
        "attempt": "verification",
        "code": running_code(),
        "from": running_from(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    link = await Link.connect(LinkAddress(payload["host"], payload["port"], payload["certificate"]), hello)
    task = VerificationTask(link)
    try:
        await task.run()
    finally:
        await task.close()


class VerificationTask:
    """One connection to each cluster's leaders, and one range at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._clusters: dict[str, Cluster] = {}
        self._is_committed = False
        self._fetch_bytes = 1024 * 1024
        self._pace: ReadLimit | None = None
        self._chain: Chain | None = None
        self._comparison: Comparison | None = None
        self._scope = Scope("verification")

    async def run(self) -> None:
        """Serve the command; a closed link ends it quietly."""
        self._scope.spawn(self._report_forever(), "progress")
        with contextlib.suppress(LinkClosed):
            while True:
                message = await self._link.receive()
                if message["type"] == "config":
                    self._configure(message)
                elif message["type"] == "range":
                    # In the background, so that a closed link ends it.
                    self._scope.spawn(self._verify(message), "range")
                elif message["type"] in ("stop", "refused"):
                    return

    async def close(self) -> None:
        await self._scope.close()
        for cluster in self._clusters.values():
            await cluster.close()
        if self._chain is not None:
            self._chain.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._link.close()

    def _configure(self, message: Message) -> None:
        for side in ("source", "target"):
            self._clusters[side] = Cluster(ConnectionSettings.from_wire(message[side]), side)
        self._is_committed = message["is_committed"]
        self._fetch_bytes = message["fetch_bytes"]
        self._pace = ReadLimit(message["bytes_s"])
        if message["chain"] is not None:
            self._chain = Chain(ChainPlan.from_wire(message["chain"]))

    async def _verify(self, message: Message) -> None:
        try:
            plan = RangePlan.from_wire(message["plan"])
            transform = None if self._chain is None else chain_transform(self._chain, message["partition"])
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
                # Both logs have about the same bytes, so the source's limit is both's.
                pace=self._pace if is_source else None,
            )

        return open_reader

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            comparison = self._comparison
            self._link.send({"type": "progress", "bytes": comparison.read_bytes if comparison else 0})


def chain_transform(chain: Chain, partition: Message) -> Transform:
    """Return the flow's transforms as a function of one record of aiokafka. ``partition``: a PartitionPlan on the wire,
    from which the transforms know topics."""
    plan = PartitionPlan.from_wire(partition)

    def transform(record: Any) -> Any:
        time_ms = -1 if record.timestamp is None else record.timestamp
        before = WireRecord(record.offset, time_ms, record.key, record.value, list(record.headers))
        after = chain.transform(plan, before)
        if after is None or isinstance(after, Untransformable):
            return None
        # A copy has the record's visible timestamp, whatever the source's log says of its origin.
        return AnyKeyRecord(after.offset, after.timestamp_ms, 0, after.key, after.value, after.headers)

    return transform
