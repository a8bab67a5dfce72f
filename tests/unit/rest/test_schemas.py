"""States as REST shows them."""

from __future__ import annotations

from typing import Any

import pytest

from connect.core.model import Restarts, State, Status
from rest import bodies


@pytest.mark.parametrize(
    ("restarts", "shown"),
    [
        (None, {}),
        (Restarts(2, 7), {"auto_restart": {"count": 2, "at_ms": 7}}),
        (Restarts(0, 0, "why"), {"auto_restart": {"count": 0, "at_ms": 0, "given_up": "why"}}),
    ],
)
def test_automatic_restarts_are_shown_if_there_are_any(restarts: Restarts | None, shown: dict[str, Any]) -> None:
    status = Status(State.FAILED, "w:1", 1, "it broke", "4", restarts)
    java = {"state": "FAILED", "worker_id": "w:1", "version": "4", "trace": "it broke"}
    assert bodies.state(status) == java | shown
