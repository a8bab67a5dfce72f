"""The connectors of a flow, found at the REST API of its workers and stopped or resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from connect.cli.rest_client import RestClient, WorkerRefused, WorkerUnreachable, connector_path
from connect.core.errors import HeliographError

_NOT_FOUND: Final = 404
_CLASSES: Final = ("MirrorSourceConnector", "MirrorSource")
_CHECKPOINT_CLASSES: Final = ("MirrorCheckpointConnector", "MirrorCheckpoint")


class RestControl:
    """The source connector of a flow, and with it those of checkpoints, which would move groups. Errors as of
    :class:`RestClient`."""

    def __init__(self, worker: RestClient, name: str, checkpoints: Sequence[str] = ()) -> None:
        self._worker = worker
        #: As its workers know it.
        self.name = name
        self._names = (name, *checkpoints)
        #: For people: what starts them again.
        self.start_command = f"heliograph connectors resume {' '.join(self._names)} --url {worker.shown_url}"

    async def state(self) -> str:
        """STOPPED only where no task is left."""
        status = await self._ask("GET", "status")
        running = [task["state"] for task in status["tasks"] if task["state"] != "UNASSIGNED"]
        state = str(status["connector"]["state"])
        return "STOPPING" if state == "STOPPED" and running else state

    async def stop(self) -> None:
        for name in self._names:
            await self._ask("PUT", "stop", name)

    async def resume(self) -> None:
        for name in self._names:
            await self._ask("PUT", "resume", name)

    async def _ask(self, method: str, what: str, name: str = "") -> Any:
        return await asyncio.to_thread(self._worker.ask, method, connector_path(name or self.name, what))


def find_control(closing: ExitStack, urls: Sequence[str], source: str, target: str, name: str) -> RestControl | None:
    """The connector of a flow at one of ``urls``, each of a worker of Connect or of a dedicated mirror; None for none.
    Of several that mirror there it is the one called ``name``, else the first; one that is not enabled mirrors nothing.
    Its connections are closed with ``closing``.

    Raises as :class:`RestClient` where none of them answers as a worker.
    """
    errors: list[HeliographError] = []
    for url in urls:
        for place in (f"{url.rstrip('/')}/{source}/{target}", url):
            worker = closing.enter_context(RestClient(place))
            try:
                known = worker.ask("GET", "/connectors?expand=info")
            except WorkerRefused as error:
                if error.status != _NOT_FOUND:  # else it answers, and runs other flows
                    errors.append(error)
                continue
            except WorkerUnreachable as error:
                errors.append(error)
                continue
            of_flow = {
                known_name: config.get("connector.class", "").strip().rpartition(".")[2]
                for known_name, one in known.items()
                if _is_of(config := one["info"]["config"], source, target)
            }
            checkpoints = sorted(one for one, kind in of_flow.items() if kind in _CHECKPOINT_CLASSES)
            for known_name in sorted(of_flow, key=lambda one: (one != name, one)):
                if of_flow[known_name] in _CLASSES:
                    return RestControl(worker, known_name, checkpoints)
    if len(errors) == 2 * len(urls) and errors:
        raise errors[0]
    return None


def _is_of(config: Mapping[str, str], source: str, target: str) -> bool:
    """Whether a connector is of the flow, and runs. A mirror has a worker for heartbeats alone too, with a connector of
    the flow that runs nothing."""
    ends = (config.get("source.cluster.alias"), config.get("target.cluster.alias"))
    return ends == (source, target) and config.get("enabled", "true").strip().lower() != "false"
