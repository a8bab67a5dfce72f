"""Predicates."""

from __future__ import annotations

import pytest

from connect.api.source import Header, SourceRecord
from connect.core.errors import ConfigError
from connect.plugins.headers_routers_predicates import HasHeaderKey, RecordIsTombstone, TopicNameMatches

RECORD = SourceRecord({}, {}, "orders", "x", headers=(Header("a", 1),))


def test_header_keys() -> None:
    predicate = HasHeaderKey()
    predicate.configure({"name": "a"})
    assert predicate.test(RECORD)
    predicate.configure({"name": "b"})
    assert not predicate.test(RECORD)
    with pytest.raises(ConfigError, match="String must be non-empty"):
        predicate.configure({"name": ""})


def test_tombstones() -> None:
    predicate = RecordIsTombstone()
    predicate.configure({})
    assert not predicate.test(RECORD)
    assert predicate.test(SourceRecord({}, {}, "orders", None))


def test_topic_names_match_as_a_whole() -> None:
    predicate = TopicNameMatches()
    predicate.configure({"pattern": "ord(er)?s"})
    assert predicate.test(RECORD)
    predicate.configure({"pattern": "order"})
    assert not predicate.test(RECORD)
    for pattern, words in (("", "String must be non-empty"), ("[", "Invalid regex: ")):
        with pytest.raises(ConfigError, match=words):
            predicate.configure({"pattern": pattern})
