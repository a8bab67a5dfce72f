"""What the log says of a partition that was taken over."""

from __future__ import annotations

import logging

import pytest

from connectors.dataplane.resume import Surplus
from connectors.dataplane.resumed import Resumed, fallback
from connectors.source.resume_log import tell
from tests.kit.resumed import ANY, resumed
from tests.unit.dataplane.test_copier import plan


@pytest.mark.parametrize(
    ("one", "said", "may_double"),
    [
        (Resumed(plan(), (), 3, True), "verified=true", 0),
        (fallback(plan(), 9, Surplus(3, doubt="some are missing"), "some are missing"), "may_double=3", 3),
        (fallback(plan(), 9, Surplus(0, doubt="forgotten"), "forgotten"), "may_double=unknown", ANY),
        (Resumed(plan(), (), 3, False, "cut", may_be_there=2), "fallback=gap may_double=0 may_be_there=2", 0),
    ],
)
def test_how_many_may_come_twice_is_told(
    caplog: pytest.LogCaptureFixture, one: Resumed, said: str, may_double: int
) -> None:
    caplog.set_level(logging.INFO)
    tell("us->eu", one)
    assert said in caplog.text
    assert [line.may_double for line in resumed(caplog.messages)] == [may_double]
