"""Limits warnings by cause: one per cause and minute, from whichever part of the process meets it first.

The cause of a warning is the error that it shows. For brokers that do not answer, the cause is their addresses,
whatever the request was. While a watch polls a cluster every few seconds, only the watch reports that the cluster does
not answer; other parts warn only about single brokers that do not answer while others do.
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
#: Brokers that fail again after this time count as failing for the first time.
_FORGET_S: Final = 300.0
_MOST_CAUSES: Final = 1_000
#: The attribute of a log record that holds its cause if the record shows no error.
CAUSE: Final = "cause"


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a warning. ``addresses`` (``host:port``) lists brokers that do not answer, if that is the cause."""

    text: str
    addresses: frozenset[str] = frozenset()


def because(text: str) -> dict[str, Cause]:
    """Return the ``extra`` argument for a warning that shows no error and has the cause ``text``."""
    return {CAUSE: Cause(text)}


class _HasAddresses(Protocol):
    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of its brokers, as far as known."""


class WatchedCluster:
    """A cluster under watch and the watch's last result."""

    def __init__(self, cluster: _HasAddresses) -> None:
        self.cluster = cluster
        self.is_silent = False
        #: When it last answered, by the clock of :class:`Causes`.
        self.answered_s = float("-inf")


class Causes:
    """Recently reported causes and the clusters under watch. ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_s: OrderedDict[str, float] = OrderedDict()
        #: When a part first met brokers of watched clusters that do not answer.
        self._met_s: OrderedDict[frozenset[str], float] = OrderedDict()
        self._watched: list[WatchedCluster] = []

    def watch(self, cluster: _HasAddresses) -> WatchedCluster:
        """Start to watch ``cluster``; report to :meth:`asked` until :meth:`unwatch`."""
        watched = WatchedCluster(cluster)
        self._watched.append(watched)
        return watched

    def unwatch(self, watched: WatchedCluster) -> None:
        if watched in self._watched:
            self._watched.remove(watched)

    def asked(self, watched: WatchedCluster, *, answers: bool) -> None:
        watched.is_silent = not answers
        if answers:
            watched.answered_s = self._clock()
            return
        of_cluster = watched.cluster.addresses
        for addresses in [one for one in self._met_s if one <= of_cluster]:
            del self._met_s[addresses]

    def is_news(self, text: str) -> bool:
        """Return whether a cause was not reported within a minute; if so, it counts as reported now."""
        now_s = self._clock()
        said_s = self._said_s.get(text)
        if said_s is not None and now_s < said_s + _SAY_EVERY_S:
            return False
        _put(self._said_s, text, now_s)
        return True

    def over(self, text: str) -> None:
        """Forget a cause that has ended, so that its next occurrence is news."""
        self._said_s.pop(text, None)

    def needs_warning(self, cause: Cause) -> bool:
        """Return whether to warn about ``cause``; if so, it counts as reported now."""
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
                return False  # the watch may be about to find that no broker answers
        return self.is_news(", ".join(sorted(addresses)))


def _put(times: OrderedDict[K, float], key: K, now_s: float) -> None:
    times[key] = now_s
    times.move_to_end(key)
    if len(times) > _MOST_CAUSES:
        times.popitem(last=False)


#: The instance of this process.
CAUSES: Final = Causes()


class OneOfEachCause(logging.Filter):
    """Lowers a warning to INFO if its cause was reported recently or is left to a watch."""

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
    """Return the explicit cause of ``record``, or else the error that it shows."""
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
