"""Fill one transaction after the other with the batches of a slice, under exactly-once.

The worker begins and ends the transactions, and the slice goes through these states::

    open     batches are sent; the first of them begins the transaction
    closing  no batch is sent for the first time; those in flight are answered, or sent again until they are
    ended    all is acknowledged and reported as ``drained``; nothing is sent until the worker says ``begin``

The worker commits on ``drained`` only, because a commit succeeds even if batches of the transaction were refused
(tested). Fetching continues meanwhile, so that the next transaction finds batches waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from typing import Any, Final

from connect.core.errors import RetriableError
from connect.kafka.concurrency import is_set_within
from connectors.control_link.protocol import Message, TransactionTerms
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.send_queue import SendQueue
from connectors.formats.types import ProducerIdAndEpoch

_LOOK_S: Final = 0.01
#: How long a position may move past markers and left-out records alone before it is stored.
_IDLE_S: Final = 1.0


class TransactionLost(RetriableError):
    """The open transaction can no longer be committed: the worker aborts it and takes over."""


class _State(Enum):
    OPEN = auto()
    CLOSING = auto()
    ENDED = auto()


class SliceTransaction:
    """Decides when a transaction is worth ending, and tells the worker once it is drained. ``send`` sends it a message;
    ``collect`` returns the copiers' reports since the last call, as the link carries them; ``offer`` is called with
    copiers that may have batches to send."""

    def __init__(
        self,
        terms: TransactionTerms,
        *,
        send: Callable[[Message], None],
        collect: Callable[[], list[Any]],
        offer: Callable[[Iterable[PartitionCopier]], None],
    ) -> None:
        self._terms = terms
        self._send = send
        self._collect = collect
        self._offer = offer
        self._state = _State.OPEN
        self._copiers: list[PartitionCopier] = []
        self._filled: set[SendQueue] = set()
        self._stored: dict[PartitionCopier, int] = {}
        self._enlisted: set[SendQueue] = set()
        self._wanted: set[SendQueue] = set()
        self._began_s = self._ended_s = 0.0
        self._sent = asyncio.Event()
        self._answered = asyncio.Event()
        self._begun = asyncio.Event()

    def add(self, copiers: Iterable[PartitionCopier]) -> None:
        """Include these copiers in the transactions."""
        for copier in copiers:
            self._stored[copier] = copier.next_source_offset
            self._copiers.append(copier)

    @property
    def is_idle(self) -> bool:
        """Whether the copiers' reports are true even if the transaction is aborted."""
        return self._state is _State.OPEN and not self._filled

    def admits(self, copier: SendQueue) -> bool:
        """Return whether a batch of the copier may be sent for the first time."""
        if self._state is not _State.OPEN:
            return False
        if self._terms.adds_implicitly or copier in self._enlisted:
            return True
        if copier not in self._wanted:
            if not self._wanted:
                asyncio.get_running_loop().call_soon(self._ask_to_enlist)
            self._wanted.add(copier)
        return False

    def sends(self, copier: SendQueue) -> None:
        if not self._filled:
            self._began_s = time.monotonic()
            self._sent.set()
        self._filled.add(copier)

    def answered(self) -> None:
        """Look again: answers came, or a partition was stopped."""
        self._answered.set()

    def enlisted(self, targets: Collection[tuple[str, int]], refused: Collection[tuple[str, int]] = ()) -> None:
        """Send to target partitions that the worker added to the transaction; quarantine the ``refused`` ones."""
        copiers = [copier for copier in self._copiers if copier.plan.target in targets]
        unwritable = [copier for copier in self._copiers if copier.plan.target in refused]
        for copier in unwritable:
            code, target = error_codes.TOPIC_AUTHORIZATION_FAILED, copier.plan.target
            copier.quarantine(
                error_codes.explained(code, target, "to be part of a transaction"), error_codes.code_name(code)
            )
        self._wanted.difference_update(copiers, unwritable)
        self._enlisted.update(copiers)
        self._ask_to_enlist()  # for copiers that came after the request
        self._offer(copiers)

    def begin(self, producer: ProducerIdAndEpoch, *, restarts: bool) -> None:
        """Fill the next transaction, after the worker ended the last one."""
        self._filled.clear()
        self._enlisted.clear()
        self._wanted.clear()
        self._sent.clear()
        self._state = _State.OPEN
        for copier in self._copiers:
            if not copier.stopped:
                copier.begin(producer, restarts=restarts)
        self._begun.set()
        self._offer([copier for copier in self._copiers if copier.has_unsent])

    async def run(self) -> None:
        """Fill one transaction after the other, until cancelled. Raises TransactionLost."""
        while True:
            await self._until_worth_ending()
            await self._drain()
            await self._begun.wait()

    def finish(self) -> None:
        """Report the last transaction for a clean end, once :meth:`run` is cancelled and every batch is answered."""
        if self._state is not _State.ENDED:
            self._give_up_stopped()
            if self._filled or self._has_moved():
                self._report_drained()

    async def _until_worth_ending(self) -> None:
        while not self._filled:
            await is_set_within(self._sent, _IDLE_S)
            if not self._filled and self._has_moved():
                return
        while True:
            now_s = time.monotonic()
            if now_s - self._began_s >= self._terms.length_ms / 1000:
                return
            if now_s - self._ended_s >= self._terms.spacing_ms / 1000 and self._is_quiet():
                return
            await asyncio.sleep(_LOOK_S)

    def _is_quiet(self) -> bool:
        """Return whether the source has nothing more for this transaction at the moment."""
        return not any(copier.has_unsent or not copier.is_settled for copier in self._filled if not copier.stopped)

    def _has_moved(self) -> bool:
        return any(copier.next_source_offset != self._stored[copier] for copier in self._copiers)

    async def _drain(self) -> None:
        self._state = _State.CLOSING
        while True:
            self._give_up_stopped()
            if all(copier.is_settled for copier in self._filled):
                break
            self._answered.clear()
            await self._answered.wait()
        self._report_drained()

    def _report_drained(self) -> None:
        self._begun.clear()
        self._ended_s = time.monotonic()
        self._state = _State.ENDED
        self._stored = {copier: copier.next_source_offset for copier in self._copiers}
        self._send({"type": "drained", "partitions": self._collect()})

    def _give_up_stopped(self) -> None:
        """Take stopped partitions out of the transaction; it is lost if their batches may be in the log."""
        stopped = [one for one in self._filled if one.stopped and not one.unanswered and not one.is_settled]
        for copier in stopped:
            if copier.is_in_doubt:
                # Because the successor would otherwise try the same again.
                self._send({"type": "progress", "partitions": self._collect()})
                raise TransactionLost(
                    f"target {copier.plan.target}: {copier.stopped_reason}; it may hold batches without acknowledgement"
                )
        self._filled.difference_update(stopped)

    def _ask_to_enlist(self) -> None:
        if self._wanted and self._state is _State.OPEN:
            self._send({"type": "enlist", "partitions": [list(copier.plan.target) for copier in self._wanted]})
