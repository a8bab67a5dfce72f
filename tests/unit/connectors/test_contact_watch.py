"""Whether the clusters of a flow answer: asked every few seconds, and said once a minute."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.error_causes import Causes
from connectors.flow_progress import UNKNOWN, Contact
from connectors.formats.types import FlowName
from connectors.lag_reader import ContactWatch
from tests.kit.virtual_time import run


class FakeCluster:
    """Answers, hangs or refuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses = frozenset({name.partition("(")[2].rstrip(")")})
        self.hangs = False
        self.error: Exception | None = None

    async def metadata(self, topics: tuple[str, ...]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


def test_a_cluster_that_stands_still_is_known_within_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        source, target = FakeCluster("us (a:1)"), FakeCluster("eu (b:1)")
        watch = ContactWatch(FlowName("us", "eu"), cast(Any, source), cast(Any, target), Causes(clock))

        def seen() -> Contact:
            return watch.contact

        assert (seen().source.answers, seen().source.answered_ms) == (None, UNKNOWN)
        await asyncio.sleep(3)
        first = seen()
        assert first.knows_lag and first.source.answers and first.target.answers
        source.hangs = True
        await asyncio.sleep(10)
        assert not seen().knows_lag
        assert seen().source.answered_ms == first.source.answered_ms > 0
        assert seen().target.answers
        await asyncio.sleep(110)
        source.hangs = False
        target.error = RetriableError("connection refused")
        await asyncio.sleep(10)
        assert seen().knows_lag and seen().source.answers
        assert (seen().target.answers, seen().target.reason) == (False, "connection refused")
        await watch.stop()

    with caplog.at_level(logging.INFO, "connectors.lag_reader"):
        run(main())
    of_source = [line for line in caplog.messages if "source cluster us (a:1)" in line]
    assert len(of_source) == 3, "one a minute of two, and the end"
    assert all("us->eu: source cluster us (a:1) does not answer since 2" in line for line in of_source[:2])
    assert "so its lag is unknown: no answer within 5 s" in of_source[0]
    answering = [record.levelname for record in caplog.records if record.getMessage() == of_source[2]]
    assert answering == ["INFO"]
    assert of_source[2] == "us->eu: source cluster us (a:1) answers again"
    (of_target,) = (line for line in caplog.messages if "target cluster" in line)
    assert "lag" not in of_target and of_target.endswith(": connection refused")


def test_flows_that_share_a_cluster_say_once_that_it_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        causes = Causes(asyncio.get_running_loop().time)
        us, eu = FakeCluster("us (a:1)"), FakeCluster("eu (b:1)")
        us.hangs = True
        pairs = {FlowName("us", "eu"): (us, eu), FlowName("eu", "us"): (eu, us)}
        watches = [ContactWatch(flow, cast(Any, one), cast(Any, other), causes) for flow, (one, other) in pairs.items()]
        await asyncio.sleep(50)
        assert [watch.contact.silent for watch in watches] == [(True, False), (False, True)]
        for watch in watches:
            await watch.stop()

    with caplog.at_level(logging.WARNING, "connectors.lag_reader"):
        run(main())
    assert len(caplog.messages) == 1
