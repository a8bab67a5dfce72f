"""What effects reach beside group and config topic."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connect.runtime.around import Around
from connect.runtime.loggers import Loggers


def test_a_level_that_nobody_knows_is_left_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """It stands in the config topic, where every worker of the group reads it."""
    nothing = cast(Any, None)
    around = Around(
        *(nothing,) * 7,
        Loggers(lambda: 0),
        worker_id="one:8083",
        now_ms=lambda: 0,
        changed=lambda: None,
    )
    around.set_level("connect", "NONSENSE")
    assert "invalid log level 'NONSENSE'" in caplog.text
