"""What a connector says when it is asked whether its offsets may be altered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from connect.api.connector import Props
from connect.core.errors import PermanentError, RetriableError
from connect.core.herder_api import BadRequest, SourceOffset
from connect.runtime.herder.effects_and_fencing import ZombieFence
from connect.runtime.herder.offsets_and_reports import Modifiable, OffsetsApi, OffsetsRefused, OpenOffsets
from connect.runtime.plugins.plugin_errors import PluginBroke
from connect.runtime.task.connector_offsets import ConnectorOffsets, OffsetTopic, encoded_key
from tests.kit.work import TestConnector, memory_topic, plugins, with_secret, worker_config


class Refusing(TestConnector):
    error: ClassVar[BaseException]

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        assert props["password"] == "hunter2"
        raise self.error


def opening(topic: OffsetTopic) -> OpenOffsets:
    @asynccontextmanager
    async def opened(name: str, props: Mapping[str, str], for_writing: bool) -> AsyncIterator[ConnectorOffsets]:
        yield ConnectorOffsets(name, topic)

    return opened


def modifiable(raw: Props) -> Modifiable:
    async def now() -> Props:
        return raw

    return now


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ValueError("hunter2 is wrong"), OffsetsRefused("the connector refuses these offsets: [hidden] is wrong")),
        (RetriableError("hunter2 times out"), RetriableError("[hidden] times out")),
        (PermanentError("hunter2 is wrong"), PermanentError("[hidden] is wrong")),
        (SystemExit("hunter2"), PermanentError("it tried to end the whole process: SystemExit('[hidden]')")),
    ],
    ids=repr,
)
async def test_no_secret_is_in_a_refusal(error: BaseException, reported: Exception, tmp_path: Path) -> None:
    Refusing.error = error
    config, reference = with_secret(tmp_path)
    topic, log = memory_topic()

    # Asked only under exactly-once.
    api = OffsetsApi(config, plugins(Refusing), opening(topic), cast(ZombieFence, None))
    raw = {"name": "c", "connector.class": "Test", "password": reference}
    with pytest.raises(type(reported)) as raised:
        await api.modify("c", modifiable(raw), [SourceOffset({"p": 0}, {"n": 1})])
    assert str(raised.value).endswith(str(reported))
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert log.writes == []


async def test_a_constructor_that_wants_to_end_the_process() -> None:
    class Broken(TestConnector):
        def __init__(self) -> None:
            raise SystemExit(1)

    config = worker_config()
    api = OffsetsApi(config, plugins(Broken), cast(Any, None), cast(ZombieFence, None))
    with pytest.raises(PluginBroke):
        await api.modify("c", modifiable({"name": "c", "connector.class": "Test"}), None)


class Fence:
    def __init__(self) -> None:
        self.fenced: list[str] = []

    async def fence(self, name: str) -> None:
        self.fenced.append(name)


async def test_a_connector_that_is_resumed_while_it_is_fenced_off_keeps_its_offsets() -> None:
    topic, log = memory_topic()
    fence = Fence()

    async def stopped() -> Props:
        if fence.fenced:
            raise BadRequest("Connectors must be in the STOPPED state")
        return {"name": "c", "connector.class": "Test"}

    config = worker_config(exactly_once_source_support="enabled")
    api = OffsetsApi(config, plugins(TestConnector), opening(topic), cast(ZombieFence, fence))
    with pytest.raises(BadRequest, match="STOPPED"):
        await api.modify("c", stopped, [SourceOffset({"p": 0}, {"n": 1})])
    assert fence.fenced == ["c"]
    assert log.writes == []


async def test_a_connector_that_is_resumed_while_it_is_asked_keeps_its_offsets() -> None:
    is_resumed = False

    class Slow(TestConnector):
        def alter_offsets(self, *_: object) -> bool:
            nonlocal is_resumed
            is_resumed = True
            return True

    async def stopped() -> Props:
        if is_resumed:
            raise BadRequest("Connectors must be in the STOPPED state")
        return {"name": "c", "connector.class": "Test"}

    topic, log = memory_topic()
    api = OffsetsApi(worker_config(), plugins(Slow), opening(topic), cast(ZombieFence, None))
    with pytest.raises(BadRequest, match="STOPPED"):
        await api.modify("c", stopped, [SourceOffset({"p": 0}, {"n": 1})])
    assert log.writes == []


@pytest.mark.parametrize("moving", [True, False])
async def test_open_transactions_are_waited_for_where_offsets_rest(moving: bool) -> None:
    topic, log = memory_topic()

    log.put(encoded_key("c", {"p": 0}), b'{"n":1}')
    api = OffsetsApi(worker_config(), plugins(TestConnector), opening(topic), cast(ZombieFence, None))
    found = await api.read("c", {"name": "c", "connector.class": "Test"}, moving=moving)
    assert found == [SourceOffset({"p": 0}, {"n": 1})]
    assert log.committed_only is moving
