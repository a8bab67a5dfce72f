"""What connectors tell of themselves: found, refused, without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from connect.api.connector import Props
from connect.api.source import ConnectorReport, TaskReport
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError, RetriableError
from connect.core.herder_api import BadRequest, NotFound
from connect.core.status_and_offset_topics import StatusLog
from connect.runtime.herder.offsets_and_reports import Reports
from tests.kit.work import TestConnector, plugins, worker_config

RAW = {"name": "c", "connector.class": "Test", "ssl.key.password": "hunter2"}


class Reporting(TestConnector):
    error: ClassVar[Exception | None] = None

    async def report(
        self, kind: str, props: Props, tasks: Sequence[TaskReport], query: Mapping[str, str], connector: ConnectorReport
    ) -> Mapping[str, Any] | None:
        if self.error is not None:
            raise self.error
        return {"kind": kind, "tasks": len(tasks), "state": connector.state, **query} if kind == "lag" else None


def reports() -> Reports:
    return Reports(worker_config(), plugins(Reporting), ConfigLog, StatusLog())


async def test_a_connector_tells_what_it_knows() -> None:
    Reporting.error = None
    assert await reports().report("c", RAW, "lag", {"top": "3"}) == {
        "kind": "lag",
        "tasks": 0,
        "state": "UNASSIGNED",
        "top": "3",
    }
    with pytest.raises(NotFound, match="Connector c has no partitions report"):
        await reports().report("c", RAW, "partitions", {})


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ConfigError("top is 'hunter2'", "top"), BadRequest),
        (RetriableError("hunter2 times out"), RetriableError),
        (ValueError("hunter2"), Exception),
    ],
    ids=repr,
)
async def test_no_secret_is_in_a_refusal(error: Exception, reported: type[Exception], monkeypatch: Any) -> None:
    monkeypatch.setattr("connect.runtime.herder.offsets_and_reports.passwords", lambda *_: ["hunter2"])
    Reporting.error = error
    with pytest.raises(reported) as raised:
        await reports().report("c", RAW, "lag", {})
    assert "hunter2" not in str(raised.value)
