"""How a dedicated mirror's worker stores the connectors of its file, and what it says of a failure."""

from __future__ import annotations

import asyncio
import traceback
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli.flow_worker import FlowWorker, reason
from connect.core.errors import ConfigError
from connect.core.herding import BadRequest, RebalanceExpected


def trace_of(error: Exception) -> str:
    try:
        raise error
    except type(error) as raised:
        return "".join(traceback.format_exception(raised))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("topics is wrong; mend it"), "topics is wrong; mend it"),
        (ValueError("a: b"), "ValueError: a: b"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_failure_is_its_last_line_ours_without_the_class(error: Exception, text: str) -> None:
    assert reason(trace_of(error)) == text


def test_a_cause_does_not_stand_for_what_came_of_it() -> None:
    try:
        try:
            raise ValueError("cause")
        except ValueError as cause:
            raise ConfigError("what came of it") from cause
    except ConfigError as error:
        text = "".join(traceback.format_exception(error))
    assert reason(text) == "what came of it"


def test_no_trace_is_no_crash() -> None:
    assert reason("") == "no reason is known"


class Leading:
    """The worker and the herder of one flow: it leads, and its configs are refused as ``refusals`` says, one each."""

    def __init__(self, **refusals: list[Exception]) -> None:
        self.is_leader = True
        self.refusals = refusals
        self.stored: dict[str, Any] = {}
        self.snapshot = SimpleNamespace(connector_config=self.stored.get)

    async def put_connector(self, name: str, config: Any, *_: object, **__: object) -> None:
        if refusals := self.refusals.get(name):
            raise refusals.pop(0)
        self.stored[name] = config

    def flow_worker(self) -> FlowWorker:
        made = FlowWorker.__new__(FlowWorker)
        made.flow = cast(Any, SimpleNamespace(connector_config=lambda connector: {"name": connector.value}))
        made.worker = cast(Any, SimpleNamespace(core=self, herder=self))
        made._elections = asyncio.Queue(1)
        made._elected()
        return made


async def test_a_connector_that_is_refused_is_in_no_other_ones_way(caplog: pytest.LogCaptureFixture) -> None:
    group = Leading(
        MirrorSourceConnector=[BadRequest("values must not be duplicated")] * 9,
        MirrorCheckpointConnector=[RebalanceExpected()],
    )
    seeing = asyncio.create_task(group.flow_worker()._see_to_connectors())
    async with asyncio.timeout(30):
        while len(group.stored) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    seeing.cancel()
    assert sorted(group.stored) == ["MirrorCheckpointConnector", "MirrorHeartbeatConnector"]
    assert len(group.refusals["MirrorSourceConnector"]) == 8, "what is wrong is said once"
    assert "MirrorSourceConnector is not configured anew: values must not be duplicated" in caplog.text
