"""What the dashboard says in each state that needs an operator: a case each, with a screenshot. Run by ``make ui``."""

from __future__ import annotations

from tests.ui.stage import Stage, save


def shows(stage: Stage, name: str, *texts: str) -> None:
    """Look at the first screen: it says all ``texts``."""
    with stage.page() as page:
        for text in texts:
            page.get_by_text(text).first.wait_for()
        save(page, f"state-{name}")


def test_a_frozen_source_is_unreachable_and_the_lag_unknown(stage: Stage) -> None:
    stage.us.freeze(0)
    try:
        stage.await_word("unreachable")
        shows(stage, "source-frozen", "its lag is unknown: the source us does not answer", "--source-gone us")
    finally:
        stage.us.thaw(0)
    stage.await_word("running")


def test_a_frozen_target_is_unreachable_and_no_failover_could_start(stage: Stage) -> None:
    stage.eu.freeze(0)
    try:
        stage.await_word("unreachable")
        shows(stage, "target-frozen", "the target eu does not answer", "No failover could start now")
    finally:
        stage.eu.thaw(0)
    stage.await_word("running")


def test_a_quarantined_partition_is_named_with_its_reason(stage: Stage) -> None:
    stage.write("orders", 1, b"x" * 5000)
    stage.await_word("degraded")
    shows(stage, "partition-quarantined", "does not copy 1 partition: orders-1 is QUARANTINED", "could not move")
    with stage.page("#/flow/us-%3Eeu/partitions") as page:
        row = page.locator("tbody tr").first
        row.get_by_text("orders-1").first.wait_for()
        assert row.get_by_role("button", name="Retry").count() == 1
        assert row.get_by_role("button", name="Set position").count() == 1
