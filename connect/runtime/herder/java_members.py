"""Says why a Java leader gave this worker a connector of a class that it does not have, and which members have it.

Java's leader gives every member any connector: the metadata of a group's members has no word about plugins, and work
that a member gives back is assigned as new work, first to the member with the least (decision 33).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from connect.core.errors import HeliographError
from connect.core.herder.herder import Herder
from connect.core.herder.membership import MalformedMembership, decode_metadata
from connect.kafka.concurrency import together
from connect.runtime.herder.effects_and_fencing import InternalRequests

#: Less than the time that a connector has to stop, because a rebalance may move it meanwhile.
_ANSWER_S: Final = 3.0


@dataclass(eq=False)
class JavaMembers:
    """Explains classes that this worker does not have, one after the other, each once in a generation.

    Args:
        members: Returns the metadata of the group's members; raises a HeliographError.
    """

    core: Herder
    members: Callable[[], Awaitable[Sequence[bytes]]]
    internal: InternalRequests
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _said: dict[tuple[str, int], str | None] = field(default_factory=dict, init=False)

    async def explain(self, connector_class: str) -> str | None:
        """Return which class this worker does not have, who gave it work of the class, which workers have the class,
        and the remedy; None unless one of Java's workers leads."""
        async with self._asking:
            key = connector_class, self.core.generation
            if key not in self._said:
                said = await self._explained(connector_class)
                self._said = {known: old for known, old in self._said.items() if known[1] == key[1]} | {key: said}
            return self._said[key]

    async def _explained(self, connector_class: str) -> str | None:
        leader = self.core.leader_url
        if leader is None or self.core.is_leader:
            return None
        having: dict[str, bool | None] = {}

        async def ask(url: str) -> None:
            with suppress(HeliographError):
                having[url] = await self.internal.has_class(url, connector_class)

        try:
            async with asyncio.timeout(_ANSWER_S):
                having = dict.fromkeys(_java_urls(await self.members()))
                if leader not in having:
                    return None
                await together(f"who has {connector_class}", map(ask, having))
        except (HeliographError, TimeoutError):
            if leader not in having:
                return None
        return (
            f"This worker does not run the class {connector_class}. The worker that leads the group, {leader}, is one "
            f"of Java's, and those give every member any connector. {_remedy(having)}"
        )


def _java_urls(members: Sequence[bytes]) -> Iterator[str]:
    for metadata in members:
        try:
            member = decode_metadata(metadata)
        except MalformedMembership:
            continue
        if member.lease_ms is None:
            yield member.url


def _remedy(having: dict[str, bool | None]) -> str:
    if all(has is False for has in having.values()):
        return (
            f"None of Java's workers has the class: install its plugin on {_listed(having)}, or delete the connector."
        )
    remedy = (
        "A restart of the connector does not move it. Restart the worker that leads, until a worker of Heliograph "
        "leads: it gives such connectors to Java's workers only."
    )
    found = [url for url, has in having.items() if has]
    if not found:
        return f"Which of Java's workers have the class is not known, because they did not answer. {remedy}"
    return f"Workers that have the class: {_listed(found)}. {remedy}"


def _listed(urls: Sequence[str] | dict[str, bool | None]) -> str:
    return ", ".join(sorted(urls))
