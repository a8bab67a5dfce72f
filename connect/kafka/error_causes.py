"""Warnings by their causes: one of each cause in a minute, by whichever part of the process meets it first.

The cause of a warning is the error that it shows. Of brokers that do not answer it is where these are, whatever each
part of the process was about to ask them. While a watch asks a cluster every few seconds, only the watch says that the
cluster does not answer; the others warn only of single brokers that do not answer while others do.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from connect.core.errors import NoAnswer

K = TypeVar("K")

_SAY_EVERY_S: Final = 60.0
#: Brokers that are met again after so long count as met for the first time.
_FORGET_S: Final = 300.0
_MOST_CAUSES: Final = 1_000
#: Where a log record has its cause if it shows no error.
CAUSE: Final = "cause"


@dataclass(frozen=True, slots=True)
class Cause:
    """Of a warning. ``addresses``: of brokers that do not answer, as ``host:port``; empty if it is something else."""

    text: str
    addresses: frozenset[str] = frozenset()


def because(text: str) -> dict[str, Cause]:
    """Return the ``extra`` of a warning that shows no error, and whose cause is ``text``."""
    return {CAUSE: Cause(text)}


class _HasAddresses(Protocol):
    @property
    def addresses(self) -> frozenset[str]:
        """Those of its brokers, as far as they are known."""
        ...


class WatchedCluster:
    """What a watch finds of one cluster."""

    def __init__(self, cluster: _HasAddresses) -> None:
        self.cluster = cluster
        self.is_silent = False
        #: When it last answered, by the clock of :class:`Causes`.
        self.answered_s = float("-inf")


class Causes:
    """Those that were said of late, and the clusters that are watched. ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_s: OrderedDict[str, float] = OrderedDict()
        #: When a part first met brokers that do not answer, of clusters that are watched.
        self._met_s: OrderedDict[frozenset[str], float] = OrderedDict()
        self._watched: list[WatchedCluster] = []

    def watch(self, cluster: _HasAddresses) -> WatchedCluster:
        """Return what its watch keeps up to date by :meth:`asked`, until :meth:`unwatch`."""
        watched = WatchedCluster(cluster)
        self._watched.append(watched)
        return watched

    def unwatch(self, watched: WatchedCluster) -> None:
        """Its watch has ended. Harmless when repeated."""
        if watched in self._watched:
            self._watched.remove(watched)

    def asked(self, watched: WatchedCluster, *, answers: bool) -> None:
        """A watch has just asked its cluster."""
        watched.is_silent = not answers
        if answers:
            watched.answered_s = self._clock()
            return
        of_cluster = watched.cluster.addresses
        for addresses in [one for one in self._met_s if one <= of_cluster]:
            del self._met_s[addresses]

    def is_news(self, text: str) -> bool:
        """Return whether a cause was not said within a minute; it counts as said then."""
        now_s = self._clock()
        said_s = self._said_s.get(text)
        if said_s is not None and now_s < said_s + _SAY_EVERY_S:
            return False
        _put(self._said_s, text, now_s)
        return True

    def over(self, text: str) -> None:
        """A cause is no more: the next time it is news."""
        self._said_s.pop(text, None)

    def needs_warning(self, cause: Cause) -> bool:
        """Return whether a part that has met ``cause`` is to warn of it; it counts as said then."""
        addresses = cause.addresses
        if not addresses:
            return self.is_news(cause.text)
        if of_cluster := [one for one in self._watched if addresses <= one.cluster.addresses]:
            if any(one.is_silent for one in of_cluster):
                return False
            now_s, met_s = self._clock(), self._met_s.get(addresses)
            if met_s is None or now_s > met_s + _FORGET_S:
                _put(self._met_s, addresses, now_s)
                return False
            if all(one.answered_s <= met_s for one in of_cluster):
                return False  # the watch may be about to find out that no broker answers
        return self.is_news(", ".join(sorted(addresses)))


def _put(times: OrderedDict[K, float], key: K, now_s: float) -> None:
    times[key] = now_s
    times.move_to_end(key)
    if len(times) > _MOST_CAUSES:
        times.popitem(last=False)


#: Of this process.
CAUSES: Final = Causes()


class OneOfEachCause(logging.Filter):
    """Lowers a warning to INFO if its cause needs no warning now."""

    def __init__(self, causes: Causes = CAUSES) -> None:
        super().__init__()
        self._causes = causes

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        cause = cause_of(record)
        if cause is None or self._causes.needs_warning(cause):
            return True
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)


def cause_of(record: logging.LogRecord) -> Cause | None:
    """Return the cause that ``record`` has, or else the error that it shows."""
    found: Cause | None = getattr(record, CAUSE, None)
    if found is None and (shown := next(_errors(record), None)) is not None:
        error: BaseException | None = shown
        while error is not None and not (isinstance(error, NoAnswer) and error.addresses):
            error = error.__cause__
        found = Cause(str(shown), error.addresses if isinstance(error, NoAnswer) else frozenset())
    return found


def _errors(record: logging.LogRecord) -> Iterator[BaseException]:
    if isinstance(record.args, tuple):
        yield from (one for one in record.args if isinstance(one, BaseException))
    if record.exc_info and record.exc_info[1] is not None:
        yield record.exc_info[1]
