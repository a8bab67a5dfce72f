"""What connectors, users and other workers bring that cannot be stored: refused, and the herder goes on."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import pytest

from connect.core.herder import events
from connect.core.herder.events import ComputeTaskConfigs, FailConnector, ReadConfig, WriteConfig
from connect.core.herder.membership import MAX_STRING_BYTES
from connect.core.herder.task_configs import InvalidTaskConfigs
from connect.core.herder_api import BadRequest
from tests.kit.herding import Bench, error_of, kinds, leading_bench, none, only

_SURROGATE = "secret \udcff"
_BAD: list[tuple[Any, str]] = [
    ([{"k": PurePath("/secret")}], r"the value of 'k' of task 0 is a PurePosixPath"),
    ([{"k": "v"}, {"k": b"secret"}], r"the value of 'k' of task 1 is a bytes"),
    ([{"k": 8080}], r"the value of 'k' of task 0 is a int"),
    ([{"k": None}], r"the value of 'k' of task 0 is a NoneType"),
    ([{"k": _SURROGATE}], r"text with a lone surrogate"),
    ([{_SURROGATE: "v"}], r"a key of task 0 is not text"),
    ([{7: "v"}], r"a key of task 0 is not text"),
    (["k=v"], r"that of task 0 is a str, not a mapping"),
    ("k=v", r"they are a str, not a list of mappings"),
    (None, r"they are a NoneType, not a list of mappings"),
]


@pytest.mark.parametrize(("configs", "why"), _BAD)
def test_task_configs_that_cannot_be_stored_fail_the_connector_or_the_request(configs: Sequence[Any], why: str) -> None:
    bench = leading_bench()
    compute = only(bench.step(events.TaskConfigsWanted("c")), ComputeTaskConfigs)
    effects = bench.step(events.TaskConfigsComputed(compute.token, "c", configs))
    assert kinds(effects) == ["FailConnector"]
    failed = only(effects, FailConnector)
    assert isinstance(failed.error, InvalidTaskConfigs)
    assert "secret" not in str(failed.error)
    with pytest.raises(InvalidTaskConfigs, match=why):
        raise failed.error
    assert none(bench.tick(120_000), ComputeTaskConfigs)
    refused = error_of(bench.ask(events.PutTaskConfigs("c", configs)))
    assert isinstance(refused, BadRequest)
    assert str(failed.error).partition("stored: ")[2].startswith(str(refused).partition("stored: ")[2])


@pytest.mark.parametrize(
    "operation",
    [
        events.PutConnector(_SURROGATE, {}, None, True, "source"),
        events.PutConnector("d", {"k": _SURROGATE}, None, True, "source"),
        events.PutConnector("d", {_SURROGATE: "v"}, None, True, "source"),
        events.SetLogger(_SURROGATE, "DEBUG"),
        events.SetLogger("root", _SURROGATE),
    ],
)
def test_what_utf_8_cannot_hold_is_a_bad_request(operation: events.HerderOperation) -> None:
    effects = leading_bench().ask(operation)
    assert none(effects, WriteConfig)
    assert isinstance(error_of(effects), BadRequest)


def test_a_session_key_that_is_refused_is_tried_ever_less_often() -> None:
    bench = Bench()
    bench.step(events.Ready())
    effects = bench.lead()
    pauses_ms = []
    for _ in range(11):
        write = only(bench.step(events.SessionKeyMade(b"k" * 32)), WriteConfig)
        read = only(bench.step(events.ConfigWritten(write.token, PermissionError("no"))), ReadConfig)
        bench.step(events.ConfigRead(read.token, ok=True))
        deadline_ms = bench.herder.next_deadline_ms()
        assert deadline_ms is not None
        pauses_ms.append(deadline_ms - bench.now_ms)
        effects = bench.tick(pauses_ms[-1])
        only(effects, events.MakeSessionKey)
    assert pauses_ms == [250 * 2**n for n in range(8)] + [60_000] * 3


def test_whoever_is_out_of_the_group_waits_for_what_is_under_way_without_a_deadline() -> None:
    """A deadline that has passed would keep its driver turning."""
    bench = leading_bench()
    effects = bench.ask(events.DeleteConnector("c"))
    bench.step(events.ConfigLogReset())
    bench.tick(1_000)
    assert bench.herder.next_deadline_ms() is None
    write = only(effects, WriteConfig)
    assert kinds(bench.step(events.ConfigWritten(write.token, TimeoutError("no")))) == ["Reply", "ReadConfig"]


@pytest.mark.parametrize(("letters", "refused"), [(MAX_STRING_BYTES // 2, False), (MAX_STRING_BYTES // 2 + 1, True)])
def test_names_that_are_too_long_for_the_group_protocol_are_refused(letters: int, refused: bool) -> None:
    name = "é" * letters
    effects = leading_bench().ask(events.PutConnector(name, {"name": name}, None, False, "source"))
    assert none(effects, WriteConfig) is refused
    if refused:
        assert isinstance(error_of(effects), BadRequest)
