"""A failover in hand, while a command works on it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import platform
import time
from collections.abc import AsyncIterator
from typing import Final

from connect.core.errors import HeliographError
from connectors.failover.lease import Lease, Record, await_free, look
from connectors.failover.site import Site
from connectors.record_settings import record_settings

#: By this process, each with its site; a failback has two.
_HELD: Final[list[tuple[Site, Lease]]] = []


async def await_no_way_back(site: Site, mine: Record) -> None:
    """Raises InHand where somebody moves readers the other way, and as the source; to be called with a lease that is
    held, which whoever begins that later finds."""
    await await_free(lambda: look(site.source, site.back.map_topic, site.back.flow), mine)


def is_held_at(site: Site, record: Record) -> bool:
    """Whether it is of who works at this very site. A process and a host say little of that: containers may share a
    host's name, and in each the process is number 1."""
    return any(record.is_of(lease.record) and one.target in (site.target, site.source) for one, lease in _HELD)


@contextlib.asynccontextmanager
async def hold(site: Site, command: str, *, ends: bool = True) -> AsyncIterator[Lease]:
    """Work alone on what moves to the site's target; who comes through without an error ``ends`` what a run before has
    left undone, or leaves that as it is. Raises InHand where somebody else does."""
    flow = site.flow.flow
    await record_settings(site.flow).make_topic(site.target_admin)
    host = platform.node()
    since_ms = time.time_ns() // 1_000_000
    mine = Record(f"{_user()}@{host}", host, os.getpid(), command, since_ms, 0, marks=True)
    lease = Lease(site.target, site.flow.map_topic, flow, mine)
    await lease.claim()
    renewing = asyncio.create_task(lease.renew_forever(), name=f"lease of failover {flow}")
    is_finished = False
    held = (site, lease)
    _HELD.append(held)
    try:
        yield lease
        is_finished = ends or lease.was_finished
    finally:
        _HELD.remove(held)
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(HeliographError):  # it runs out by itself
            await lease.release(is_finished=is_finished)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"  # without an entry among the machine's users
