"""Dashboards and rules ask for metrics and labels that a live mirror has."""

from __future__ import annotations

import httpx
import pytest

from tests.kit import boards
from tests.kit.processes import wait_until
from tests.kit.shared_mirror import SharedMirror

pytestmark = pytest.mark.integration

_DEADLINE_S = 120.0


def test_what_the_boards_and_rules_ask_for_is_on_the_page(shared: SharedMirror) -> None:
    def page() -> str:
        try:
            text = httpx.get(f"{shared.url}/metrics", trust_env=False, timeout=60.0).text
        except httpx.TransportError:
            return ""  # it is starting
        return text if "MirrorSourceConnector_partitions{" in text else ""

    known = boards.of_page(wait_until(page, _DEADLINE_S, "flows have partitions"))
    assert boards.unknown(known) == []
    described = boards.described()
    assert set(described) <= set(known)
    wrong = {name: found for name, labels in described.items() if (found := known[name]) not in (None, labels)}
    assert wrong == {}, "docs/monitoring.md has other labels"
