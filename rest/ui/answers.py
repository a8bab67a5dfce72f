"""Keeps the last answer to each question, so that one that takes long delays nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from connect.core.errors import HeliographError
from connect.kafka.concurrency import Scope

log = logging.getLogger(__name__)

#: An answer that was not asked for again is forgotten after this time.
_KEPT_S: Final = 600.0

Ask = Callable[[], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a question.

    Args:
        data: The last answer; None before the first.
        problem: Why the last attempt gave none.
        late_s: How long the attempt under way has taken; None if none is late.
        age_s: How old ``data`` is.
    """

    data: Mapping[str, Any] | None
    problem: str | None
    late_s: float | None
    age_s: float


@dataclass(slots=True)
class _Known:
    data: Mapping[str, Any] | None = None
    problem: str | None = None
    asking: asyncio.Task[None] | None = None
    began_s: float = 0.0
    found_s: float = 0.0
    due_s: float = 0.0


class KeptAnswers:
    """The answers of a process, by question. Each is asked for once at a time, and goes on when its caller leaves."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Known] = {}
        self._scope = Scope("answers for the dashboard")

    async def close(self) -> None:
        await self._scope.close()

    async def get(
        self, question: Hashable, ask: Ask, *, within_s: float, fresh_s: float = 0.0, again_s: float = 0.0
    ) -> Answer:
        """Return the answer to ``question``, found at most ``fresh_s`` ago, or what is known ``within_s`` after ``ask``
        began. After an error ``ask`` is not called again for ``again_s``."""
        clock = asyncio.get_running_loop().time
        kept = self._kept.get(question)
        if kept is None:
            self._forget(clock() - _KEPT_S)
            kept = self._kept[question] = _Known()
        if kept.asking is None and clock() >= kept.due_s:
            kept.began_s = clock()
            kept.asking = self._scope.spawn(self._ask(kept, ask, fresh_s, again_s), "an answer")
        if kept.asking is not None and (left_s := kept.began_s + within_s - clock()) > 0:
            await asyncio.wait({kept.asking}, timeout=left_s)
        late_s = None if kept.asking is None else clock() - kept.began_s
        return Answer(kept.data, kept.problem, late_s, clock() - kept.found_s)

    async def _ask(self, kept: _Known, ask: Ask, fresh_s: float, again_s: float) -> None:
        clock = asyncio.get_running_loop().time
        try:
            kept.data, kept.problem, kept.found_s = await ask(), None, clock()
            kept.due_s = kept.found_s + fresh_s
        except Exception as error:
            if not isinstance(error, HeliographError):
                log.error("a report for the dashboard failed because of a bug", exc_info=error)
            said = (
                str(error) if isinstance(error, HeliographError) else f"{type(error).__name__}; see the worker's log."
            )
            kept.problem, kept.due_s = said, clock() + again_s
        finally:
            kept.asking = None

    def _forget(self, before_s: float) -> None:
        """Forget what was last asked for before that time, because flows and workers come and go."""
        for question, kept in list(self._kept.items()):
            if kept.asking is None and kept.began_s < before_s:
                del self._kept[question]
