"""Starts failed connectors of a resource again, as its ``autoRestart`` says and Strimzi does from outside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from connect.core.errors import HeliographError
from connect.core.herding import NotFound
from connect.core.model import ConnectorStateInfo, RestartRequest, State
from connect.runtime.distributed import DistributedWorker
from connectors.strimzi.auto_restart import Restarts
from connectors.strimzi.translating import Wanted

log = logging.getLogger(__name__)

#: The operator looks every two minutes, from outside; here nothing is asked but this worker's memory.
LOOK_S: Final = 10.0


def restarts_of(connectors: Sequence[Wanted]) -> dict[str, Restarts]:
    """Those that are to be started again, by name."""
    return {each.name: Restarts(each.auto_restart) for each in connectors if each.auto_restart is not None}


async def restart_failed(worker: DistributedWorker, connectors: Sequence[Wanted]) -> None:
    """Look for ever, while this worker leads; whoever leads next counts anew."""
    clock = asyncio.get_running_loop().time
    watched = restarts_of(connectors)
    while True:
        await asyncio.sleep(LOOK_S)
        if worker.core.is_leader:
            await look(worker, watched, clock())
        else:
            watched = restarts_of(connectors)


async def look(worker: DistributedWorker, watched: Mapping[str, Restarts], now_s: float) -> None:
    """Restart what has failed and is due, of each connector its failed parts only."""
    for name, restarts in watched.items():
        try:
            failed = failed_parts(worker.herder.connector_status(name))
        except NotFound:
            continue
        if not restarts.look(failed=bool(failed), now_s=now_s):
            continue
        restarts.restarted(now_s)
        parts = ", ".join(failed)
        try:
            await worker.herder.restart(RestartRequest(name, only_failed=True, include_tasks=True))
        except HeliographError as error:
            log.warning("%s: %s has failed and cannot be restarted: %s", name, parts, error)
            continue
        last = ", the last one that autoRestart.maxRestarts allows" if restarts.is_spent else ""
        log.warning("%s: %s had failed: restart %d in a row%s", name, parts, restarts.count, last)


def failed_parts(found: ConnectorStateInfo) -> list[str]:
    """The connector itself and its tasks, as far as they are FAILED."""
    parts = ["the connector"] if found.connector.state is State.FAILED else []
    return parts + [f"task {number}" for number, task in found.tasks.items() if task.state is State.FAILED]
