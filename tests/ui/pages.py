"""What the pages of the dashboard say in a browser, against a real mirror. Run by ``make ui``, not by ``make test``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import wait_until
from tests.ui.stage import DEADLINE_S, PHONE, Stage

FLOW = "#/flow/us-%3Eeu"
PARTITIONS = f"{FLOW}/partitions"
GROUPS = f"{FLOW}/groups"
MOVE = f"{FLOW}/move"
CHANGES = f"{FLOW}/changes"
VERIFY = f"{FLOW}/verify"


@pytest.fixture(autouse=True)
def without_errors(stage: Stage):
    stage.errors.clear()
    yield
    assert stage.errors == []


def test_the_first_screen_says_how_the_flow_is_and_what_a_failover_would_lose(stage: Stage) -> None:
    with stage.page() as page:
        page.get_by_text("us->eu runs: everything in 6 partitions is copied.").wait_for()
        page.get_by_text("A failover could start now, and no record would be lost.").wait_for()
    stage.pictures("overview", "", "us->eu runs")


def test_the_page_of_a_flow_shows_its_last_hour_batches_workers_and_spark(stage: Stage) -> None:
    with stage.page(FLOW) as page:
        for text in ("Lag, records", "larger than the target takes", "(this one)", "Slots in use"):
            page.get_by_text(text).first.wait_for()
        page.locator(".chart canvas").nth(3).wait_for()
    details = f"/ui/api/flows/{FLOW.rpartition('/')[2]}/details"
    wait_until(lambda: len(stage.ask(details)["history"]["at_ms"]) > 3, DEADLINE_S, "the charts have samples")
    stage.pictures("flow", FLOW, "Last hour")


def test_pause_and_resume_are_confirmed(stage: Stage) -> None:
    with stage.page(FLOW, role="operator") as page:
        page.get_by_role("button", name="Pause").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert stage.ask("/us/eu/connectors/MirrorSourceConnector/status")["connector"]["state"] == "RUNNING"
        page.get_by_role("button", name="Pause").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        page.get_by_text("us->eu copies nothing: connector MirrorSourceConnector is PAUSED.").first.wait_for()
        page.get_by_role("button", name="Resume").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        page.get_by_text("us->eu runs").first.wait_for()


def test_stop_and_restart_are_confirmed(stage: Stage) -> None:
    with stage.page(FLOW, role="operator") as page:
        page.get_by_role("button", name="Stop").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        page.get_by_text("connector MirrorSourceConnector is STOPPED").first.wait_for()
        page.get_by_role("button", name="Resume").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        page.get_by_text("us->eu runs").first.wait_for()
        page.get_by_role("button", name="Restart", exact=True).first.click()
        with page.expect_response(lambda answer: "/restart?includeTasks=true" in answer.url) as asked:
            page.get_by_role("dialog").get_by_role("button", name="Restart").click()
        assert asked.value.status == 202
        page.get_by_text("us->eu runs").first.wait_for()


def test_a_viewer_sees_no_actions(stage: Stage) -> None:
    for address in (FLOW, PARTITIONS):
        with stage.page(address, role="viewer") as page:
            page.get_by_text("viewer (view)").wait_for()
            page.get_by_text("us.orders-0" if address == PARTITIONS else "Slots in use").first.wait_for()
            for name in ("Pause", "Stop", "Restart", "Retry", "Set position"):
                assert page.get_by_role("button", name=name).count() == 0


def test_partitions_are_searched_on_the_server(stage: Stage) -> None:
    with stage.page(PARTITIONS) as page:
        page.get_by_text("6 found of 6 partitions").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("payments-1")
        page.get_by_text("1 found of 6 partitions").wait_for()
        assert page.locator("tbody tr").count() == 1
    stage.pictures("partitions", PARTITIONS, "6 found")


@pytest.fixture(scope="module")
def with_groups(stage: Stage) -> Stage:
    """Groups that are synced, filtered, in use at the source (warehouse) and in use at the target (dispatch)."""
    stage.commit("orders-mail", {("orders", 0): 120, ("orders", 1): 150, ("orders", 2): 200})
    stage.commit("orders-billing", {("orders", 0): 200, ("payments", 1): 188})
    stage.commit("dispatch", {("orders", 3): 90})
    stage.commit("console-consumer-77", {("payments", 0): 10})
    for number in range(20):
        stage.commit(f"reader-{number:02}", {("orders", number % 4): 200 - number})
    stage.join(stage.us, "payments", "warehouse")

    def is_synced() -> bool:
        found = stage.ask("/us/eu/connectors/MirrorCheckpointConnector/groups?search=dispatch")["groups"]
        return bool(found) and found[0]["synced"]

    wait_until(is_synced, DEADLINE_S, "groups are synced")
    stage.join(stage.eu, "us.orders", "dispatch")
    return stage


def test_groups_have_their_lag_on_both_sides_and_why_they_are_not_synced(with_groups: Stage) -> None:
    with with_groups.page(GROUPS, role="viewer") as page:
        page.get_by_text("20 of 25 groups").wait_for()
        first = page.locator("tbody tr").first
        first.get_by_text("on the target it has members (it is Stable)").wait_for()
        page.get_by_text("filtered: groups and groups.exclude do not select it").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("orders-")
        page.get_by_text("2 of 2 groups").wait_for()
        page.get_by_role("button", name="orders-mail").click()
        page.get_by_role("region", name="Partitions of orders-mail").get_by_text("us.orders-1").wait_for()
    with_groups.pictures("groups", GROUPS, "20 of 25 groups")


def test_a_move_of_one_group_is_previewed_in_the_words_of_the_command(with_groups: Stage) -> None:
    with with_groups.page(GROUPS, role="viewer") as page:
        page.get_by_role("button", name="dispatch").click()
        page.get_by_role("link", name="Preview a move").click()
        page.get_by_text("heliograph failover mm2.properties --to eu --group dispatch --rehearse").wait_for()


def test_the_checklist_of_a_move_says_what_is_blocked_and_rehearses(with_groups: Stage) -> None:
    with with_groups.page(MOVE, role="viewer") as page:
        page.get_by_text("blocked: group warehouse: has members on cluster us").first.wait_for()
        page.get_by_text("stop its consumers at the source, then run the command again").first.wait_for()
        page.get_by_text(f"heliograph failover mm2.properties --to eu --rest {with_groups.url} --execute").wait_for()
        page.get_by_text("What this worker cannot check").wait_for()
        page.get_by_role("button", name="Rehearse").click()
        page.get_by_text("RTO: ").wait_for()
        page.get_by_text("rehearsed", exact=True).wait_for()
    with_groups.pictures("move", MOVE, "blocked: group warehouse")


def test_changes_show_drift_and_who_did_what(stage: Stage) -> None:
    stage.operate("pause")
    stage.operate("resume")
    stage.await_word("running")
    with stage.page(CHANGES, role="viewer") as page:
        page.get_by_text("max.message.bytes").first.wait_for()
        page.get_by_text("nothing to change").wait_for()
        audit = page.get_by_role("region", name="Audit", exact=True).last
        audit.get_by_text("MirrorSourceConnector/resume").first.wait_for()
        page.get_by_label("Search the newest entries").fill("connector/pause")
        audit.get_by_text("resume").first.wait_for(state="detached")
        assert "admin (admin)" in audit.inner_text() and "answer 202" in audit.inner_text()
    stage.pictures("changes", CHANGES, "max.message.bytes")


def test_verify_shows_how_far_the_copy_is_proven(stage: Stage) -> None:
    command = [str(Path(sys.executable).parent / "heliograph"), "verify", str(stage.mirror.properties_file)]
    subprocess.run([*command, "--flow", "us->eu"], check=True, timeout=DEADLINE_S)
    with stage.page(VERIFY, role="viewer") as page:
        page.get_by_text("the same").nth(5).wait_for()
        page.get_by_label("Topic or partition").fill("payments")
        page.get_by_text("orders-0").first.wait_for(state="detached")
        assert page.locator("tbody tr").count() == 2
    stage.pictures("verify", VERIFY, "the same")


def test_all_is_reached_by_keyboard(stage: Stage) -> None:
    with stage.page() as page:
        page.get_by_text("us->eu runs").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
        page.keyboard.press("1")
        page.get_by_text("Slots in use").wait_for()
        page.keyboard.press("2")
        page.get_by_text("6 found").wait_for()
        page.keyboard.press("?")
        page.get_by_role("dialog").get_by_text("Overview").wait_for()
        page.keyboard.press("Escape")
        color = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(color)
        page.keyboard.press("t")  # light
        page.keyboard.press("t")  # dark
        # Playwright's own wait would need the page's leave to evaluate strings.
        wait_until(lambda: page.evaluate(color) != before, DEADLINE_S, "the page is dark")
        page.keyboard.press("0")
        page.get_by_text("A failover could start now").wait_for()


@pytest.mark.parametrize("address", ["", FLOW, PARTITIONS, GROUPS, MOVE, CHANGES, VERIFY])
def test_a_phone_needs_no_sideways_scrolling(stage: Stage, address: str) -> None:
    with stage.page(address, size=PHONE) as page:
        page.locator(".card").first.wait_for()
        page.wait_for_timeout(1000)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
