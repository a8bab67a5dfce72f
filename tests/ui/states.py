"""What the dashboard says in each state that needs an operator; in order, as the last cases leave the flow so."""

from __future__ import annotations

import time

from tests.kit.direct import Broker
from tests.kit.processes import Role, wait_until
from tests.kit.quotas import WRITING
from tests.ui.stage import DEADLINE_S, TOPICS, Stage, save

PARTITIONS = "#/flow/us-%3Eeu/partitions"


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


def test_without_spark_the_flow_recovers_and_says_so(stage: Stage) -> None:
    with stage.page() as page:
        page.get_by_text("us->eu runs").first.wait_for()
        (jvm,) = [member for member in stage.mirror.members() if member.role is Role.SPARK_JVM]
        jvm.process.kill()
        page.get_by_text("Spark does not run, and the worker starts it again").first.wait_for()
        save(page, "state-spark-gone")
    stage.await_word("running")


def test_a_flow_that_a_quota_delays_is_behind_because_of_it(stage: Stage) -> None:
    hour_ago_ms = round(time.time() * 1000) - 3_600_000
    with stage.quota(WRITING, 2_000):
        stage.write("payments", 1, *(b"%1000d" % number for number in range(300)), timestamp_ms=hour_ago_ms)
        stage.await_word("behind", "catching up")
        shows(stage, "behind", "the oldest 1 h", "a quota of eu delays it", "raise it for the user of the flow")
    stage.await_word("running")


def test_a_gap_that_a_policy_skipped_is_counted(stage: Stage) -> None:
    stage.operate("pause")
    stage.await_word("paused")
    stage.write("payments", 0, *(b"lost %d" % number for number in range(50)))
    Broker(stage.us, 0).delete_records("payments", 250)
    stage.operate("resume")
    stage.write("payments", 0, b"after the gap")
    wait_until(lambda: "has lost 50 offsets" in str(stage.overview()), DEADLINE_S, "the gap is counted")
    shows(stage, "gap-skipped", "has lost 50 offsets of us, deleted before the copy")


def test_a_quarantined_partition_is_named_with_its_reason(stage: Stage) -> None:
    stage.write("orders", 1, b"x" * 5000)
    stage.await_word("degraded")
    shows(stage, "partition-quarantined", "does not copy 1 partition: orders-1 is QUARANTINED", "could not move")
    with stage.page(PARTITIONS) as page:
        row = page.locator("tbody tr").first
        row.get_by_text("orders-1").first.wait_for()
        assert row.get_by_role("button", name="Retry").count() == 1
        assert row.get_by_role("button", name="Set position").count() == 1
        save(page, "state-partition-quarantined-partitions")


def test_retry_copies_the_partition_once_its_cause_is_gone(stage: Stage) -> None:
    stage.limit("us.orders", 1 << 20)
    with stage.page(PARTITIONS, role="operator") as page:
        row = page.locator("tbody tr", has_text="us.orders-1")
        row.get_by_role("button", name="Retry").click()
        page.locator("dialog[open]").get_by_role("button", name="Retry").click()
        row.get_by_text("copying").wait_for(timeout=120_000)
        assert row.get_by_role("button").count() == 0
    stage.await_word("running")
    assert b"x" * 5000 in stage.newest("us.orders", 1, 5)


def test_set_position_goes_on_after_the_record_that_the_target_refuses(stage: Stage) -> None:
    stage.limit("us.orders", 2000)
    stage.write("orders", 2, b"y" * 5000, b"after it")
    stage.await_word("degraded")
    with stage.page(PARTITIONS) as page:
        row = page.locator("tbody tr", has_text="us.orders-2")
        row.get_by_role("button", name="Set position").click()
        dialog = page.locator("dialog[open]")
        dialog.locator("input").fill("200")
        dialog.get_by_role("button", name="Set position").click()
        row.get_by_text("copying").wait_for(timeout=120_000)
    stage.await_word("running")
    newest = stage.newest("us.orders", 2, 5)
    assert b"after it" in newest and b"y" * 5000 not in newest


def test_a_failed_task_is_named_with_its_error(stage: Stage) -> None:
    for topic, count in TOPICS.items():
        for partition in range(count):
            stage.write(topic, partition, b"x" * 5000)
    stage.await_word("failed")
    shows(stage, "task-failed", "task 0 failed", "What to do")


def test_a_killed_worker_leaves_the_page_with_a_warning(stage: Stage) -> None:
    with stage.page() as page:
        page.get_by_text("What to do").first.wait_for()
        stage.mirror.kill()
        page.get_by_text("No news from the worker").wait_for()
        save(page, "state-worker-killed")
        stage.mirror.start()
        page.get_by_text("No news from the worker").wait_for(state="hidden", timeout=180_000)
