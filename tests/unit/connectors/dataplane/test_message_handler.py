"""What a message handler answers is looked at before anything of it is sent."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from connect.api.message_handler import MessageHandler, MirroredRecord
from connectors.dataplane.by_key_producer import HandlerPlan, NoTarget, answers

RECORD = MirroredRecord("orders", 0, 7, 1_700_000_000_000, b"k", b"v", (("h", b"1"), ("none", None)))


def other(**fields: Any) -> Any:
    """Whatever a handler may put there."""
    return RECORD._replace(**fields)


class Saying:
    """Answers with what it was made with, whatever that is."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def handle(self, record: MirroredRecord) -> Any:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [RECORD, RECORD._replace(topic="other", partition=None)],
        (RECORD._replace(key=None, value=None, headers=()),),
        iter([other(timestamp_ms=-1, headers=[["h", b""]])]),
    ],
)
def test_records_are_taken_as_they_are(answer: Any) -> None:
    expected = list(answer) if isinstance(answer, list | tuple) else None
    found = answers(Saying(answer), RECORD)
    assert expected is None or found == expected


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned no list of records"),
        (RECORD, "instead of a list of records"),
        (["orders"], "type str instead of a MirroredRecord"),
        ([tuple(RECORD)], "type tuple instead of a MirroredRecord"),
        ([other(topic=b"orders")], r"topic \(bytes\) is not a name"),
        ([other(topic="")], "topic .* is not a name"),
        ([other(partition=-1)], "partition .* is not a number"),
        ([other(partition=True)], "partition .* is not a number"),
        ([other(timestamp_ms=None)], r"timestamp_ms \(NoneType\) is not milliseconds"),
        ([other(timestamp_ms=2**63)], "timestamp_ms .* is not milliseconds"),
        ([other(key="k")], r"key \(str\) is not bytes"),
        ([other(value=1)], r"value \(int\) is not bytes"),
        ([other(headers=None)], "headers .* is not pairs"),
        ([other(headers=(("h", "1"),))], "headers .* is not pairs"),
        ([other(headers=(("\ud800", b"1"),))], "headers .* is not pairs"),
        ([RECORD, other(headers=("hv",))], "headers .* is not pairs"),
    ],
)
def test_what_cannot_be_sent_is_said(answer: Any, words: str) -> None:
    with pytest.raises(NoTarget, match=words):
        answers(Saying(answer), RECORD)


def test_keys_of_headers_that_are_no_text_are_shown_as_javas_and_kept() -> None:
    class Reporting:
        def handle(self, record: MirroredRecord) -> list[MirroredRecord]:
            reported = "".join(key for key, _ in record.headers).encode()
            return [record._replace(value=reported), record._replace(headers=(("a", b""), *record.headers[1:]))]

    own = ("n", None), ("\udce9", b"1")
    first, second = answers(Reporting(), RECORD._replace(headers=own))
    assert (first.value, first.headers) == ("n\ufffd".encode(), own)
    assert second.headers == (("a", b""), own[1])


def test_what_a_handler_raises_is_told_by_its_type_alone() -> None:
    class Raising:
        def handle(self, record: MirroredRecord) -> list[MirroredRecord]:
            raise KeyError(f"secret {record.value!r}")

    with pytest.raises(NoTarget) as raised:
        answers(Raising(), RECORD)
    assert "KeyError" in str(raised.value) and "secret" not in str(raised.value)


def test_a_lack_of_memory_is_no_fault_of_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy() -> MessageHandler:
        raise MemoryError

    monkeypatch.setitem(sys.modules, "greedy", cast(ModuleType, SimpleNamespace(Handler=greedy)))
    with pytest.raises(MemoryError):
        HandlerPlan("greedy:Handler").make()
