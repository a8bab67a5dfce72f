"""Before a worker joins a group that has members: what its work will need comes up first.

Who joins is given work at once, and takes it from where it runs. A worker whose engine still starts would let it stand
still until then. Where the group has no members there is nobody else to do the work, so nothing is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.runtime.stage import Stages

log = logging.getLogger(__name__)

#: An engine that is not up by then keeps nobody out of the group.
WITHIN_S: Final = 30.0


class Engine(Protocol):
    """What the tasks of some connectors run on."""

    def is_for(self, connector_class: str) -> bool: ...

    async def ready(self) -> None:
        """Begins it, and returns once it takes work; raises what stands in its way."""
        ...


async def prepare(
    name: str,
    engine: Engine | None,
    classes: Iterable[str],
    others: Callable[[], Awaitable[int]],
    stages: Stages,
    within_s: float = WITHIN_S,
) -> None:
    """Returns when the group may be joined, and raises nothing.

    Args:
        name: What lines of the log begin with.
        classes: Of the connectors that the group has.
        others: How many members it has.
    """
    if engine is None or not any(map(engine.is_for, classes)):
        return
    try:
        count = await others()
    except (RetriableError, SecurityError) as error:
        log.debug("%s: who is in the group is not known, so it is joined at once: %s", name, error)
        return
    if not count:
        return
    log.info("%s: the group has %d members; it is joined once the engine of its connectors is up", name, count)
    try:
        with stages.doing("waiting for the engine of the group's connectors before it joins"):
            async with asyncio.timeout(within_s):
                await engine.ready()
    except TimeoutError:
        log.warning("%s: the engine is not up after %g s; the group is joined without it", name, within_s)
    except HeliographError as error:
        log.warning("%s: the engine does not come up; the group is joined without it: %s", name, error)
