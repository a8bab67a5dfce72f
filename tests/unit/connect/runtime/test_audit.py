"""The audit's queue when the worker stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from connect.core.audit import AuditEntry
from connect.core.errors import RetriableError
from connect.core.model import NewTopic
from connect.runtime.audit import AuditLog
from tests.kit.members import until


async def test_a_stop_writes_what_waits_for_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Sequence[AuditEntry]]()

    async def write(_cluster: Any, _admin: Any, _topic: NewTopic, entries: Sequence[AuditEntry]) -> None:
        tried.append(entries)
        if len(tried) == 1:
            raise RetriableError("no answer")

    monkeypatch.setattr("connect.runtime.audit.write_entries", write)
    monkeypatch.setattr("connect.runtime.audit._RETRY_S", (30.0, 30.0))
    audit = AuditLog(Mock(), Mock(), NewTopic("audit", 1, 1), "w")
    audit.start()
    audit.put(AuditEntry("worker", "a"))
    await until(lambda: tried, "a first attempt")
    await audit.stop()
    assert audit.written == 1
    await audit.stop()
