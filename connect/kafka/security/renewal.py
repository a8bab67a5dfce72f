"""Uses renewed key stores, trust stores and passwords of files without a restart.

A thread looks at the files of this process' connections every ten seconds, which works on every file system, unlike
inotify: stores, and files that config providers read. Contexts are built there, because opening a store takes up to
100 ms of CPU. New connections use the new contents, existing ones are kept. What cannot be used is reported once, and
the earlier contents are kept.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, Self, TypeVar
from weakref import WeakSet

from connect.core.config.config_def import trim
from connect.core.config.properties import Resolved
from connect.core.errors import HeliographError

log = logging.getLogger(__name__)

_LOCATIONS: Final = ("ssl.keystore.location", "ssl.truststore.location")
_INTERVAL_S: Final = 10.0
#: How many owners' files are watched; those that were used least lately go first.
MOST_OWNERS: Final = 4096


class Contents(Protocol):
    """What was read from files: ``TlsSettings`` and ``ConnectionSettings``."""

    @property
    def files(self) -> str:
        """The name from :func:`watch`."""


T = TypeVar("T", bound=Contents)
#: Makes contents of properties, for an owner that messages name.
Read = Callable[[Mapping[str, str], str], Contents]
#: The states of stores, and the properties.
_Stamp = tuple[list[tuple[int, int, int]], dict[str, str]]


class RenewedContext(ssl.SSLContext):
    """A context that is, for all who use it, the newest one of its files: each connection asks it for ``wrap_bio``."""

    current: ssl.SSLContext
    make: Callable[[Any], ssl.SSLContext]

    def __getattribute__(self, name: str) -> Any:
        own = name in ("current", "make")
        return super().__getattribute__(name) if own else getattr(super().__getattribute__("current"), name)


class NewestPassword(str):
    """A password for a library that logs its arguments and keeps them as long as its clients live: ``repr`` is hidden,
    and ``newest`` returns the user and the password that their files have now."""

    __slots__ = ("newest",)

    newest: Callable[[], tuple[str, str]]

    @classmethod
    def of(cls, text: str, newest: Callable[[], tuple[str, str]]) -> Self:
        made = cls(text)
        made.newest = newest
        return made

    def __repr__(self) -> str:
        return "'[hidden]'"


class _Files:
    """The files of one owner, and what was made of them."""

    def __init__(self, name: str, properties: Mapping[str, str], where: str, read: Read) -> None:
        self._name = name
        self._properties = properties
        self._where = where
        self._read = read
        self._paths = [trim(str(properties[key])) for key in _LOCATIONS if key in properties]
        self._what = " and ".join(self._paths) or "values of config providers"
        self._stamp = self._look()
        self.newest: Any = None
        self.contexts: WeakSet[RenewedContext] = WeakSet()

    def renew(self) -> None:
        stamp = self._look()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            read: Any = self._read(stamp[1], self._where)
            newest = replace(read, files=self._name)
            with _lock:
                contexts = list(self.contexts)
            made = {context: context.make(newest) for context in contexts}
        except HeliographError as error:
            log.warning("%s; new connections use what was there before the change", error)
            return
        with _lock:
            self.newest = newest
            for context in self.contexts:
                context.current = made.get(context) or context.make(newest)
        log.info("%s: new connections use the changed %s", self._where, self._what)

    def _look(self) -> _Stamp | None:
        try:
            found = [os.stat(path) for path in self._paths]
            now = {key: _again(value) for key, value in self._properties.items()}
        except (OSError, HeliographError):
            return None  # while it is replaced
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found], now


def _again(value: str) -> str:
    """Return a value as a plain text, trimmed, with references to files resolved as they are now."""
    return trim(value.again()) if isinstance(value, Resolved) else trim(str(value))


def _written(value: str) -> str:
    """Return what tells apart values that are equal now and come from different files."""
    return value.written if isinstance(value, Resolved) else ""


_lock: Final = threading.Lock()
#: In the order of their last use.
_by_name: Final[dict[str, _Files]] = {}
#: Names are made of properties, which hold secrets, and travel to slices.
_naming_key: Final = secrets.token_bytes(32)


def watch(properties: Mapping[str, str], where: str, read: Read) -> str:
    """Return a name for the files of these properties in this process; empty if they depend on none."""
    if not any(key in _LOCATIONS or isinstance(value, Resolved) for key, value in properties.items()):
        return ""
    text = repr(sorted((key, _written(value), str(value)) for key, value in properties.items()))
    name = hmac.digest(_naming_key, text.encode("utf-8", "surrogatepass"), "sha256").hex()
    with _lock:
        if not _by_name:
            threading.Thread(target=_watch, name="renewal", daemon=True).start()
        found = _by_name.pop(name) if name in _by_name else _Files(name, properties, where, read)
        _by_name[name] = found
        if len(_by_name) > MOST_OWNERS:
            del _by_name[next((each for each, files in _by_name.items() if not files.contexts), next(iter(_by_name)))]
    return name


def _used(name: str) -> _Files | None:
    with _lock:
        found = _by_name.pop(name, None)
        if found is not None:
            _by_name[name] = found
    return found


def newest(settings: T) -> T:
    """Return the settings with the newest contents of their files."""
    found = _used(settings.files)
    return settings if found is None or found.newest is None else found.newest


def context(settings: T, make: Callable[[T], ssl.SSLContext]) -> ssl.SSLContext:
    """Return the context that ``make`` makes of settings; of files, one that is renewed with them."""
    files = _used(settings.files)
    if files is None:
        return make(settings)
    with _lock:
        found = RenewedContext(ssl.PROTOCOL_TLS_CLIENT)
        found.make, found.current = make, make(files.newest or settings)
        files.contexts.add(found)
    return found


def renew() -> None:
    """Read files again that have changed since the last call. The thread does so every ten seconds."""
    with _lock:
        watched = list(_by_name.values())
    for files in watched:  # without the lock, for which the event loop may wait: a file system may be slow
        files.renew()


def _watch() -> None:
    while True:
        time.sleep(_INTERVAL_S)
        renew()
