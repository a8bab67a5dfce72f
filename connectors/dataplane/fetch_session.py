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
    """One session with one broker. Call ``request``, send it, then ``answered`` or ``lost``; never two at once."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._sent: dict[K, Position] = {}

    def request(self, wanted: Mapping[K, Position]) -> SessionRequest[K]:
        """The request that makes the session hold ``wanted`` and nothing else."""
        if self._epoch == INITIAL_EPOCH:
            self._sent = dict(wanted)
            return SessionRequest(0, INITIAL_EPOCH, self._sent, ())
        changed = {key: position for key, position in wanted.items() if self._sent.get(key) != position}
        forgotten = tuple(key for key in self._sent if key not in wanted)
        self._sent.update(changed)
        for key in forgotten:
            del self._sent[key]
        return SessionRequest(self._id, self._epoch, changed, forgotten)

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
        self._sent = {}
