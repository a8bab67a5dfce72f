"""Incremental fetch sessions (KIP-227): what to send so that the broker fetches exactly the wanted partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K")

INITIAL_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

#: Per partition: (fetch offset, current leader epoch, last fetched epoch)
Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SessionRequest(Generic[K]):
    """The session part of one fetch request; ``forgotten`` leave the session."""

    session_id: int
    epoch: int
    partitions: Mapping[K, Position]
    forgotten: tuple[K, ...]


class FetchSession(Generic[K]):
    """One session with one broker, and what is wanted of it. ``want`` and ``leave`` at any time. Call ``request``, send
    it, then ``answered`` or ``lost``; never two at once.

    A request costs what has changed since the last one, however many partitions are wanted.
    """

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._wanted: dict[K, Position] = {}
        self._asked: dict[K, Position] = {}  # what the last request asked for, and the broker's session holds
        self._changed: dict[K, None] = {}
        self._forgotten: dict[K, None] = {}

    @property
    def wants_any(self) -> bool:
        return bool(self._wanted)

    def asked(self, key: K) -> Position | None:
        """The position that an answer to the last request is for."""
        return self._asked.get(key)

    def want(self, key: K, position: Position) -> None:
        """Have a partition fetched at a position from the next request on."""
        self._forgotten.pop(key, None)
        if self._wanted.get(key) != position:
            self._wanted[key] = position
            self._changed[key] = None

    def leave(self, key: K) -> None:
        """Have it fetched no more."""
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            if key in self._asked:
                self._forgotten[key] = None

    def request(self) -> SessionRequest[K]:
        """The request that makes the session hold what is wanted and nothing else."""
        if self._epoch == INITIAL_EPOCH:
            request = SessionRequest(0, INITIAL_EPOCH, dict(self._wanted), ())
            self._asked = dict(self._wanted)
        else:
            changed = {key: self._wanted[key] for key in self._changed}
            request = SessionRequest(self._id, self._epoch, changed, tuple(self._forgotten))
            self._asked |= changed
            for key in request.forgotten:
                del self._asked[key]
        self._changed.clear()
        self._forgotten.clear()
        return request

    def answered(self, session_id: int) -> None:
        """A good answer came; session id 0 means that the broker keeps no session for us."""
        if session_id == 0:
            self.lost()
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def lost(self) -> None:
        """The connection, the answer or the session is gone: the next request is a full one."""
        self._id, self._epoch = 0, INITIAL_EPOCH
        self._changed.clear()
        self._forgotten.clear()
