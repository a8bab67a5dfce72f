"""The source connector of a flow, found at the REST API of its workers and told to stop or to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from connect.cli.rest_client import RestClient, WorkerRefused, WorkerUnreachable, connector_path
from connect.core.errors import HeliographError

_NOT_FOUND: Final = 404
_CLASSES: Final = ("MirrorSourceConnector", "MirrorSource")


class RestControl:
    """One connector. Errors as of :class:`RestClient`."""

    def __init__(self, worker: RestClient, name: str) -> None:
        self._worker = worker
        #: As its workers know it.
        self.name = name

    async def state(self) -> str:
        """STOPPED only where no task is left."""
        status = await self._ask("GET", "status")
        running = [task["state"] for task in status["tasks"] if task["state"] != "UNASSIGNED"]
        state = str(status["connector"]["state"])
        return "STOPPING" if state == "STOPPED" and running else state

    async def stop(self) -> None:
        await self._ask("PUT", "stop")

    async def resume(self) -> None:
        await self._ask("PUT", "resume")

    async def _ask(self, method: str, what: str) -> Any:
        return await asyncio.to_thread(self._worker.ask, method, connector_path(self.name, what))


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
            for known_name in sorted(known, key=lambda one: (one != name, one)):
                config = known[known_name]["info"]["config"]
                is_mirror = config.get("connector.class", "").strip().rpartition(".")[2] in _CLASSES
                ends = (config.get("source.cluster.alias"), config.get("target.cluster.alias"))
                # A mirror has a worker for heartbeats alone too, with a connector of the flow that runs nothing.
                is_on = config.get("enabled", "true").strip().lower() != "false"
                if is_mirror and is_on and ends == (source, target):
                    return RestControl(worker, known_name)
    if len(errors) == 2 * len(urls) and errors:
        raise errors[0]
    return None
