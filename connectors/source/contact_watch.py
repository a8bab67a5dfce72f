"""Asks the two clusters of a flow every few seconds whether they are there, and says when one does not answer."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from connect.core.errors import HeliographError
from connect.kafka.causes import CAUSES, Causes
from connect.kafka.clock import wall_ms
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope
from connectors.contact import SOURCE, TARGET, Contact, Side, since_text
from connectors.flow_name import FlowName

log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
_WITHIN_S: Final = 5.0
#: Within so long a cluster that is stuck is known to be.
NOTICED_WITHIN_S: Final = 10.0


class ContactWatch:
    """Of one flow, while it runs; ``contact`` is what it has found so far. The clusters are their owner's.

    The first flow of those that share a cluster says that it does not answer, once a minute.
    """

    def __init__(self, flow: FlowName, source: Cluster, target: Cluster, causes: Causes = CAUSES) -> None:
        self.flow = flow
        self._causes = causes
        self._clusters = {SOURCE: source, TARGET: target}
        self._sides = {SOURCE: Side(), TARGET: Side()}
        self._watched = {side: causes.watch(each) for side, each in self._clusters.items()}
        #: Set while the source does not answer.
        self.source_is_silent = asyncio.Event()
        self._scope = Scope(str(flow))
        for side in self._clusters:
            self._scope.spawn(self._ask_forever(side), f"{flow}: does the {side} answer?")

    @property
    def contact(self) -> Contact:
        return Contact(self._sides[SOURCE], self._sides[TARGET])

    async def stop(self) -> None:
        await self._scope.close()
        for watched in self._watched.values():
            self._causes.unwatch(watched)

    async def _ask_forever(self, side: str) -> None:
        name = self._clusters[side].name
        while True:
            before = self._sides[side]
            self._sides[side] = found = await self._asked(side, before)
            self._causes.asked(self._watched[side], answers=bool(found.answers))
            if side == SOURCE and found.answers:
                self.source_is_silent.clear()
            elif side == SOURCE:
                self.source_is_silent.set()
            if not found.answers and self._causes.is_news(name):
                self._say(side, found)
            elif found.answers and before.answers is False:
                self._causes.over(name)
                log.info("%s: %s cluster %s answers again", self.flow, side, name)
            await asyncio.sleep(_EVERY_S)

    async def _asked(self, side: str, before: Side) -> Side:
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._clusters[side].metadata(())
        except TimeoutError:
            return replace(before, answers=False, reason=f"no answer within {_WITHIN_S:.0f} s")
        except HeliographError as error:
            return replace(before, answers=False, reason=str(error))
        return Side(answers=True, answered_ms=wall_ms())

    def _say(self, side: str, found: Side) -> None:
        log.warning(
            "%s: %s cluster %s does not answer %s%s: %s",
            self.flow,
            side,
            self._clusters[side].name,
            since_text(found.answered_ms),
            ", so its lag is unknown" if side == SOURCE else "",
            found.reason,
        )
