"""The coordinator of one group: found when needed, remembered while it answers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kafka.protocol.admin import DescribeGroupsRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import NOT_THE_COORDINATOR, Cluster
from connect.kafka.group_requests import GroupSettings

#: Look-ups, opening, heartbeats: a part of the session, so that a broker that is stuck does not cost all of it, but
#: enough for TLS and SASL.
_SHARE_OF_SESSION: Final = 5
_LEAST_MS: Final = 2_000


class Coordinator:
    """Sends a group's requests to whoever coordinates it, over one connection per purpose. Tries once."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self.name = cluster.name
        #: How long finding it, or an answer that it has at once, may take.
        self.prompt_ms = max(_LEAST_MS, settings.session_timeout_ms // _SHARE_OF_SESSION)
        self._cluster = cluster
        self._group_id = settings.group_id
        self._node: int | None = None
        self._asked: dict[str, int] = {}  # by purpose: whom the last request went to

    async def call(self, request: Any, purpose: str, *, timeout_ms: int, at_most: int | None = None) -> Any:
        """The answer, which has a code that the caller looks at.

        Raises:
            RetriableError: no coordinator, or no answer of it in time.
            SecurityError: no broker takes us.
        """
        try:
            connection = await self._connection(purpose)
            answer = await connection.call(request, at_most=at_most, timeout_ms=timeout_ms)
        except RetriableError:
            self._node = None
            raise
        if answer.error_code in NOT_THE_COORDINATOR:
            self._node = None
        return answer

    async def members(self, purpose: str) -> int:
        """How many members the group has now; raises as :meth:`call`."""
        connection = await self._connection(purpose)
        answer = await connection.call(DescribeGroupsRequest(groups=[self._group_id]), timeout_ms=self.prompt_ms)
        return sum(len(group.members) for group in answer.groups)

    async def has_moved(self, purpose: str) -> bool:
        """Whether another broker coordinates the group now than the one that was asked last; False if nobody says."""
        try:
            async with asyncio.timeout(self.prompt_ms / 1000):
                self._node = await self._find()
        except (RetriableError, TimeoutError):
            return False
        return self._node != self._asked.get(purpose)

    async def hang_up(self, purpose: str) -> None:
        """Close the connection of a purpose, if there is one."""
        node = self._asked.pop(purpose, None)
        if node is not None:
            await self._cluster.disconnect(node, purpose)

    async def _connection(self, purpose: str) -> Any:
        try:
            async with asyncio.timeout(self.prompt_ms / 1000):
                if self._node is None:
                    self._node = await self._find()
                if self._asked.get(purpose, self._node) != self._node:
                    await self.hang_up(purpose)
                node = self._asked[purpose] = self._node
                return await self._cluster.connection(node, purpose)
        except TimeoutError as error:
            raise RetriableError(
                f"cluster {self.name}: the coordinator of group {self._group_id} was not reached within "
                f"{self.prompt_ms / 1000:g} s"
            ) from error

    async def _find(self) -> int:
        # Time enough is left for the answer to be missed: only then is another broker asked the next time.
        return await self._cluster.find_coordinator(self._group_id, "group", timeout_ms=self.prompt_ms // 2)
