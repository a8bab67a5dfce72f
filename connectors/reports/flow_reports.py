"""Reports of a checkpoint connector: each is read in a thread of its own, and kept for a few seconds.

A plan of thousands of groups takes longer than the worker's loop may stand still, so it is made outside the loop, with
connections of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connect.api.connector import Props
from connect.core.errors import ConfigError, RetriableError
from connect.kafka.concurrency import wall_ms

GROUPS: Final = "groups"
MOVE: Final = "move"
_KINDS: Final = {GROUPS: ("search", "group", "top"), MOVE: ("group", "rehearse", "rest", "top")}
#: The highest ``top``.
_MOST_NAMED: Final = 1000
#: How long an answer is given again.
_FRESH_S: Final = 5.0
#: Less than the time limit of a report, so that the message is ours.
_WITHIN_S: Final = 55.0
#: Answers kept at most.
_KEPT: Final = 32

_Work = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


@dataclass(slots=True)
class FlowReports:
    """The reports of a worker's checkpoint connectors. ``worker`` are its properties, with references resolved."""

    worker: Mapping[str, str] = field(repr=False)
    _answers: dict[object, tuple[float, dict[str, Any]]] = field(default_factory=dict, repr=False)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def report(self, kind: str, props: Props, query: Mapping[str, str]) -> dict[str, Any] | None:
        """Return a report, None if there is none of this ``kind``. Blocks: call it outside the worker's loop.

        Raises:
            ConfigError: ``top`` is not a number, or a setting is invalid.
            RetriableError: The clusters did not answer in time.
        """
        if kind not in _KINDS:
            return None
        asked = {name: query.get(name, "") for name in _KINDS[kind]}
        top = _top(asked["top"] or "20")
        return self._kept(
            (kind, tuple(sorted(props.items())), tuple(asked.items())), self._work(kind, props, asked, top)
        )

    def _work(self, kind: str, props: Props, asked: Mapping[str, str], top: int) -> _Work:
        # Loaded here, because a worker starts without a failover's modules.
        from connectors.reports.flow_site import flow_site
        from connectors.reports.group_report import groups_as_json, read_groups
        from connectors.reports.move_report import look_at_move, move_as_json

        async def groups() -> dict[str, Any]:
            search, group = asked["search"], asked["group"]
            async with flow_site(props, self.worker) as site:
                seen, matching = await read_groups(site, search, group)
            shown = site.checkpoints, seen, matching, top
            return groups_as_json(*shown, with_partitions=bool(group), search=search)

        async def move() -> dict[str, Any]:
            named = [asked["group"]] if asked["group"] else []
            async with flow_site(props, self.worker) as site:
                look = await look_at_move(site, named, rehearses=asked["rehearse"] == "true")
            return move_as_json(look, site.checkpoints.name, wall_ms(), top, asked["rest"])

        return groups if kind == GROUPS else move

    def _kept(self, key: object, work: _Work) -> dict[str, Any]:
        """Return the last answer if it is new, else read one. Reports are read one after another."""
        until_s = time.monotonic() + _WITHIN_S
        if not self._reading.acquire(timeout=_WITHIN_S):
            raise RetriableError(f"other reports of groups took longer than {_WITHIN_S:.0f} s. Try again")
        try:
            if (known := self._answers.get(key)) and time.monotonic() - known[0] < _FRESH_S:
                return known[1]
            answer = asyncio.run(_within(until_s - time.monotonic(), work()))
            self._answers.pop(key, None)
            self._answers[key] = time.monotonic(), answer
            while len(self._answers) > _KEPT:
                del self._answers[next(iter(self._answers))]
            return answer
        finally:
            self._reading.release()


async def _within(timeout_s: float, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise RetriableError(f"the clusters gave no answer within {_WITHIN_S:.0f} s. Try again") from None


def _top(text: str) -> int:
    """Raises ConfigError."""
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"top is '{text}'; it has to be the number of rows to show, such as 20", "top")
    return min(int(text), _MOST_NAMED)
