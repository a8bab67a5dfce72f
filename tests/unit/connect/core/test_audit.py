"""Entries of the audit topic: their format, which keys of a config have changed, and who takes a worker's changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest

from connect.core.audit import AUDITED, AuditEntry, decode_entry, in_words, state_changed
from connect.core.config.config_def import ConfigDef, Setting, Type
from connect.core.config.security_settings import changed_keys, hidden


def shown(config: Mapping[str, str]) -> Mapping[str, str]:
    return hidden(config, ConfigDef())


def test_an_entry_is_json_with_a_version() -> None:
    entry = AuditEntry("rest", "PUT", "/connectors/a/config", "ann", "admin", "a", {"x": (None, "1")}, status=200)
    value = entry.to_bytes()
    assert value == (
        b'{"version":1,"by":"rest","action":"PUT","subject":"/connectors/a/config","user":"ann","role":"admin",'
        b'"connector":"a","changed":{"x":[null,"1"]},"status":200}'
    )
    assert decode_entry(value) == json.loads(value)
    words = {"who": "ann (admin)", "what": "PUT /connectors/a/config", "how": "x: not set -> 1; answer 200"}
    assert in_words(json.loads(value)) == {"when": "1970-01-01 00:00:00 UTC", **words}
    assert in_words({"by": "rest"})["how"] == "no answer"
    assert decode_entry(value.replace(b'"version":1', b'"version":2')) is None
    assert decode_entry(b"no json") is None and decode_entry(None) is None and decode_entry(b"[1]") is None


def test_an_entry_is_small_whatever_a_user_sends() -> None:
    keys = {f"{number}{'k' * 900}": ("v" * 100_000, None) for number in range(1000)}
    entry = AuditEntry("rest", "PUT", "/" + "p" * 32_000, "u" * 5000, changed=keys, detail="d" * 100_000)
    assert len(entry.to_bytes()) < 50_000
    # Twelve bytes for each character.
    wide = {f"{number}{'😀' * 900}": ("😀" * 900, "😀" * 900) for number in range(1000)}
    value = AuditEntry("rest", "PUT", "😀" * 900, "😀" * 900, detail="😀" * 900, changed=wide).to_bytes()
    assert len(value) < 50_000 and decode_entry(value) is not None


def test_an_entry_with_half_a_surrogate_pair_is_still_json() -> None:
    value = AuditEntry("worker", "task-failed", "a\ud800").to_bytes()
    assert json.loads(value)["subject"] == "a\ud800"


@pytest.mark.parametrize(
    "fields",
    [
        *('"changed":[1]', '"changed":{"a":1}', '"changed":{"a":[1,2]}', '"detail":5', '"user":"\\ud800"'),
        *('"at_ms":"x"', '"at_ms":null', '"at_ms":1000000000000000000', f'"more":"{"x" * 60_000}"'),
    ],
)
def test_a_record_that_only_looks_like_an_entry_is_passed_over(fields: str) -> None:
    assert decode_entry(f'{{"version":1,{fields}}}'.encode()) is None


def test_changed_keys_show_no_secret() -> None:
    before = {"topics": "a", "x.api.key": "old", "x.password": "same", "gone": "1"}
    after = {"topics": "b", "x.api.key": "new", "x.password": "[hidden]", "gone": None}
    changed = changed_keys(before, after, shown)
    assert changed == {"gone": ("1", None), "topics": ("a", "b"), "x.api.key": ("[hidden]", "[hidden]")}


def test_a_changed_key_is_a_secret_if_either_class_says_so() -> None:
    declared = ConfigDef.of(Setting("pin", Type.PASSWORD, "", "A number."))

    def by_class(config: Mapping[str, str]) -> Mapping[str, str]:
        return hidden(config, declared if "connector.class" in config else ConfigDef())

    before, after = {"connector.class": "a", "pin": "1234", "url": "${f:p:k}"}, {"pin": "5678", "url": "http://u:p@h"}
    assert changed_keys(before, after, by_class) == {
        "connector.class": ("a", None),
        "pin": ("[hidden]", "[hidden]"),
        "url": ("${f:p:k}", "[hidden]"),
    }


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("https://ann:pass@registry:8081", True),
        ("jdbc:sqlserver://host;user=a;password=b", True),
        ("jdbc:mysql://host/db?user=a&password=b", True),
        ("http://host:8080/a@b", False),
        ("SSL://a:9092,SSL://b:9092", False),
        ("://:" + ":" * 1_000_000, False),
        ("://" * 300_000, False),
    ],
)
def test_urls_with_a_password_are_hidden(value: str, is_secret: bool) -> None:
    assert hidden({"x.url": value}, ConfigDef()) == {"x.url": "[hidden]" if is_secret else value}


def test_a_state_change_is_audited_whatever_the_level_of_the_log() -> None:
    log, found = logging.getLogger("tests.audit"), list[AuditEntry]()
    log.setLevel(logging.CRITICAL)
    token = AUDITED.set(found.append)
    try:
        state_changed(log, logging.INFO, "topic-created", "us.orders", "%s: %s has %d partitions", "f", "us.orders", 3)
    finally:
        AUDITED.reset(token)
    assert found == [AuditEntry("worker", "topic-created", "us.orders", detail="f: us.orders has 3 partitions")]
