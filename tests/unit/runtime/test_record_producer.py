"""A producer without a cluster; the rest of its life is in the integration tests."""

from __future__ import annotations

import pytest

from connect.core.errors import PermanentError
from connect.core.worker_config import WorkerConfig
from connect.runtime.clients import producer_settings
from connect.runtime.record_producer import OutgoingRecord, RecordProducer
from tests.kit.work import WORKER


async def test_a_producer_that_was_closed_does_not_come_back() -> None:
    producer = RecordProducer(producer_settings(WorkerConfig.parse(WORKER), {}, "c-0", None))
    await producer.close(0)
    with pytest.raises(PermanentError, match="connector-producer-c-0 is closed"):
        await producer.start()
    with pytest.raises(PermanentError, match="is closed"):
        await producer.send(OutgoingRecord("t", None, b"x"), lambda metadata, error: None)
