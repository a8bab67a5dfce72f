"""Levels of loggers by Java's names."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest

from connect.core.herder_api import NotFound
from connect.runtime.herder.loggers import Loggers


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no logger has, whose loggers are as before afterwards."""
    found = f"heliograph-{uuid.uuid4().hex[:8]}"
    yield found
    for each in list(logging.getLogger().manager.loggerDict):
        if each.startswith(found):
            logging.getLogger(each).setLevel(logging.NOTSET)


@pytest.fixture
def loggers() -> Loggers:
    return Loggers(lambda: 1_700_000_000_000)


def test_a_level_is_set_for_all_that_begins_with_a_name(loggers: Loggers, name: str) -> None:
    for each in (f"{name}.a", f"{name}.a.b", f"{name}.ab", f"{name}.c"):
        logging.getLogger(each)
    assert loggers.set(f"{name}.a", "debug") == [f"{name}.a", f"{name}.a.b", f"{name}.ab"]
    assert logging.getLogger(f"{name}.a.b").level == logging.DEBUG
    assert logging.getLogger(f"{name}.c").level == logging.NOTSET
    assert loggers.one(f"{name}.a").last_modified == 1_700_000_000_000
    assert loggers.one(f"{name}.c").last_modified is None


def test_a_logger_that_nobody_has_seen_is_there_once_it_was_set(loggers: Loggers, name: str) -> None:
    with pytest.raises(NotFound, match=f"Logger {name} not found"):
        loggers.one(name)
    loggers.set(name, "WARN")
    assert loggers.one(name).level == "WARN"


def test_a_java_loggers_name_stands_for_ours(loggers: Loggers) -> None:
    logger = logging.getLogger("connectors.checkpoint.connector")
    before = logger.level
    java = "org.apache.kafka.connect.mirror.MirrorCheckpointConnector"
    try:
        assert {java, logger.name} <= set(loggers.set(java, "TRACE"))
        assert logger.getEffectiveLevel() == 5
        assert logging.getLogger("connectors.source.task").getEffectiveLevel() > 5
    finally:
        for name in loggers.set(java, "INFO"):
            logging.getLogger(name).setLevel(before)


def test_loggers_that_are_off_are_not_listed(loggers: Loggers, name: str) -> None:
    loggers.set(name, "ERROR")
    assert loggers.all()[name].level == "ERROR"
    loggers.set(name, "OFF")
    assert name not in loggers.all()
    assert loggers.one(name).level == "OFF"


def test_a_level_that_is_none_is_refused_and_nothing_is_set(loggers: Loggers, name: str) -> None:
    with pytest.raises(NotFound, match="invalid log level 'LOUD'"):
        loggers.set(name, "LOUD")
    with pytest.raises(NotFound):
        loggers.one(name)


@pytest.mark.parametrize("namespace", ["root", "aiokafka", "aiokafka.conn"])
def test_what_writes_passwords_is_kept_from_it(loggers: Loggers, namespace: str) -> None:
    revealing = [logging.getLogger("aiokafka.conn"), logging.getLogger("aiokafka.conn.sasl")]
    before = {logger: logger.level for logger in [logging.getLogger(), *map(logging.getLogger, _all())]}
    try:
        loggers.set(namespace, "TRACE")
        assert [logger.isEnabledFor(logging.DEBUG) for logger in revealing] == [False, False]
        loggers.set(namespace, "ERROR")
        assert loggers.one("aiokafka.conn").level == "ERROR"
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _all() -> list[str]:
    return [name for name, one in logging.getLogger().manager.loggerDict.items() if isinstance(one, logging.Logger)]
