"""Reads and sets the levels of this process's loggers, with Java's names (Kafka's ``Loggers``, KIP-495)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from connect.core.herder_api import LoggerLevel, NotFound

ROOT: Final = "root"
TRACE: Final = 5
_OFF: Final = logging.CRITICAL + 10
#: Below INFO these log whole requests, with passwords, so their level cannot be lower.
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
#: Loggers here by the beginning of a Java logger's name, the longest first.
_OF_JAVA: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.kafka.connect.mirror.MirrorSource": ("connectors.source", "connectors.topic_sync"),
    "org.apache.kafka.connect.mirror.MirrorCheckpoint": ("connectors.checkpoint",),
    "org.apache.kafka.connect.mirror.MirrorHeartbeat": ("connectors.heartbeat",),
    "org.apache.kafka.connect.runtime.distributed": ("connect.core.herder", "connect.runtime.herder"),
    "org.apache.kafka.connect.runtime.rest": ("rest",),
    "org.apache.kafka.connect.mirror": ("connectors",),
    "org.apache.kafka.connect.runtime": ("connect.core", "connect.runtime"),
    "org.apache.kafka.connect": ("connect.", "connectors", "rest"),
    "org.apache.kafka.clients": ("connect.kafka", "aiokafka"),
    "org.apache.kafka": ("connect.", "connectors", "rest", "aiokafka"),
    "org.apache.spark": ("connectors.spark", "pyspark"),
}


class Loggers:
    """The loggers of this process. ``now_ms`` is the clock that stamps changes."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._changed_ms: dict[str, int] = {}

    def all(self) -> dict[str, LoggerLevel]:
        """Return the effective level of every logger that is not off, by name, sorted."""
        levels = {name: self._level(logger) for name, logger in _existing()}
        return {name: level for name, level in sorted(levels.items()) if level.level != "OFF"}

    def one(self, name: str) -> LoggerLevel:
        """Return a logger's level; raises :class:`NotFound` if no code has used it or set its level."""
        for known, logger in _existing():
            if known == name or (known == ROOT and name.lower() == ROOT):
                return self._level(logger)
        raise NotFound(f"Logger {name} not found.")

    def set(self, namespace: str, level: str) -> list[str]:
        """Set the level of ``namespace`` and of all loggers whose names begin with it; return those that changed,
        sorted. A Java logger's name stands for the loggers here that log the same. Loggers that write passwords below
        INFO stay at INFO. Raises NotFound for an unknown level."""
        number = check_level(level)
        is_root = namespace.lower() == ROOT
        if not is_root:
            logging.getLogger(namespace)
        ours = next((ours for java, ours in _OF_JAVA.items() if namespace.startswith(java)), ())
        concerned = [
            (name, logger)
            for name, logger in _existing()
            if is_root or (name != ROOT and name.startswith((namespace, *ours)))
        ]
        # Determined before any level is set, because a child's effective level follows its parent's.
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
    """Return Python's number for Java's level. Raises :class:`NotFound`, like Java, if there is none."""
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
    """Return the nearest level that lets through at least as much."""
    return max((name for name, level in _LEVELS.items() if level <= max(number, 1)), key=_LEVELS.__getitem__)
