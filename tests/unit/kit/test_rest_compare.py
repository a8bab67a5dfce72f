"""The judge of REST answers: it sees every difference, and excuses the meant ones alone."""

from __future__ import annotations

from typing import Any

from tests.interop.rest.answers import Answer, normalise
from tests.interop.rest.compare import Intended, compare, unused

_JSON = {"content-type": "application/json"}


def _answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> dict[str, Answer]:
    return {"ask": Answer(status, _JSON if headers is None else headers, body)}


def _fields(java: dict[str, Answer], ours: dict[str, Answer]) -> list[str]:
    return [difference.field for difference in compare(java, ours)]


def test_the_same_is_the_same() -> None:
    body = {"name": "x", "config": {"a": "1", "b": "2"}, "tasks": [{"connector": "x", "task": 0}]}
    assert compare(_answer(body), _answer({**body, "config": {"b": "2", "a": "1"}})) == []


def test_each_difference_is_named() -> None:
    assert _fields(_answer({"a": 1}), _answer({"a": 2})) == ["body.a"]
    assert _fields(_answer({"a": 1}), _answer({"a": True})) == ["body.a"]
    assert _fields(_answer({"a": 1}), _answer({})) == ["body.a"]
    assert _fields(_answer({}), _answer({"a": 1})) == ["body.a"]
    assert _fields(_answer([1]), _answer([1, 2])) == ["body.1"]
    assert _fields(_answer({"name": "x", "type": "y"}), _answer({"type": "y", "name": "x"})) == ["body#order"]
    assert _fields(_answer({}), _answer({}, headers={})) == ["headers.content-type"]
    assert _fields(_answer({}), _answer({}, status=201)) == ["status"]
    assert _fields(_answer({}), {}) == ["status"]


def test_lists_are_matched_by_name() -> None:
    java = [{"name": "a", "value": 1}, {"name": "b", "value": 2}, {"name": "c", "value": 3}]
    assert _fields(_answer(java), _answer(java[1:])) == ["body.a"]
    assert _fields(_answer(java), _answer([java[1], java[0], java[2]])) == ["body#order"]
    plugins = [{"class": "A", "type": "converter"}, {"class": "A", "type": "header_converter"}]
    assert _fields(_answer(plugins), _answer(plugins[:1])) == ["body.A/header_converter"]


def test_words_of_inner_errors_are_free() -> None:
    java = _answer({"error_code": 500, "message": "java.lang.NullPointerException"}, status=500)
    assert compare(java, _answer({"error_code": 500, "message": "no body"}, status=500)) == []
    assert _fields(java, _answer({"error_code": 500, "message": ""}, status=500)) == ["body.message"]
    assert _fields(java, _answer({"error_code": 400, "message": "x"}, status=500)) == ["body.error_code"]


def test_only_what_is_meant_is_excused() -> None:
    java, ours = _answer({"a": 1, "b": 1}), _answer({"a": 2, "b": 2})
    meant = Intended("as*", "body.a", "because")
    idle = Intended("other", "*", "because")
    assert [difference.field for difference in compare(java, ours, [meant])] == ["body.b"]
    assert unused(java, ours, [meant, idle]) == [idle]


def test_what_differs_by_run_is_taken_out() -> None:
    text = '{"commit":"1f","trace":null,"path":"/tmp/x/lines.txt","worker_id":"127.0.0.1:80"}'
    names = {"$FOLDER": "/tmp/x", "$WORKER": "127.0.0.1:80"}
    answer = normalise(200, {"date": "now", "content-type": "application/json"}, text, names, "whole")
    assert answer.headers == _JSON
    assert answer.body == {"commit": "*", "trace": None, "path": "$FOLDER/lines.txt", "worker_id": "$WORKER"}
