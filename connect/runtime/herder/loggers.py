"""The levels of this process's loggers, by Java's names (Kafka's ``Loggers``, KIP-495)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from connect.core.herder_api import LoggerLevel, NotFound

ROOT: Final = "root"
TRACE: Final = 5
_OFF: Final = logging.CRITICAL + 10
#: They write whole requests below INFO, those that carry a password included, so nobody gets them lower.
REVEALING: Final = ("aiokafka.conn", "kafka.net", "kafka.protocol", "py4j")
_LEVELS: Final[Mapping[str, int]] = {
    "ALL": 1,
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": _OFF,
}


class Loggers:
    """Reads and sets levels. ``now_ms`` is the clock that stamps changes."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._changed_ms: dict[str, int] = {}

    def all(self) -> dict[str, LoggerLevel]:
        """Every logger that is not off, by name, sorted, with its effective level."""
        levels = {name: self._level(logger) for name, logger in _existing()}
        return {name: level for name, level in sorted(levels.items()) if level.level != "OFF"}

    def one(self, name: str) -> LoggerLevel:
        """Raises :class:`NotFound` for a logger that nobody has used or set."""
        for known, logger in _existing():
            if known == name or (known == ROOT and name.lower() == ROOT):
                return self._level(logger)
        raise NotFound(f"Logger {name} not found.")

    def set(self, namespace: str, level: str) -> list[str]:
        """Set the level of ``namespace`` and of all that begins with it; returns those that changed, sorted. What
        writes passwords below INFO stays at INFO.

        Raises:
            NotFound: There is no such level.
        """
        number = check_level(level)
        is_root = namespace.lower() == ROOT
        if not is_root:
            logging.getLogger(namespace)
        concerned = [
            (name, logger) for name, logger in _existing() if is_root or (name != ROOT and name.startswith(namespace))
        ]
        # Told apart before anything is set: a child's effective level follows its parent's.
        levels = {name: max(number, logging.INFO) if _reveals(name) else number for name, _ in concerned}
        changed = [name for name, logger in concerned if logger.getEffectiveLevel() != levels[name]]
        for name, logger in concerned:
            logger.setLevel(levels[name])
            if name in changed:
                self._changed_ms[name] = self._now_ms()
        return sorted(changed)

    def _level(self, logger: logging.Logger) -> LoggerLevel:
        name = ROOT if logger is logging.getLogger() else logger.name
        return LoggerLevel(_name(logger.getEffectiveLevel()), self._changed_ms.get(name))


def check_level(level: str) -> int:
    """Python's number for Java's level. Raises :class:`NotFound`, as Java answers, where there is none."""
    number = _LEVELS.get(level.upper())
    if number is None:
        raise NotFound(f"invalid log level '{level}'.")
    return number


def _reveals(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in REVEALING)


def _existing() -> Iterable[tuple[str, logging.Logger]]:
    yield ROOT, logging.getLogger()
    for name, logger in list(logging.getLogger().manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _name(number: int) -> str:
    """The nearest level that lets through no less."""
    return max((name for name, level in _LEVELS.items() if level <= max(number, 1)), key=_LEVELS.__getitem__)
