"""A flow whose tasks two workers have: each worker's page shows the whole flow, and names a worker that is silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.kit.mirror import Mirror, with_rest
from tests.kit.processes import wait_until
from tests.ui.stage import DEADLINE_S, TOPICS, Stage, save, staged

FLOW = "#/flow/us-%3Eeu"


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(browser, tmp_path_factory.mktemp("one"), {"tasks.max": "2"}) as stage:
        yield stage


@pytest.fixture(scope="module")
def second(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    """A node with the same file, except for its listener, that has a task of the flow."""
    with Mirror({**stage.properties, **with_rest()}, tmp_path_factory.mktemp("two")) as mirror:
        mirror.start()
        wait_until(lambda: len(details(stage)["workers"]) == 2, DEADLINE_S, "both have work")
        yield mirror


def details(stage: Stage) -> Any:
    return stage.ask("/ui/api/flows/us-%3Eeu/details")


def test_the_page_of_one_worker_shows_the_rates_and_the_last_hour_of_both(stage: Stage, second: Mirror) -> None:
    def both() -> Any:
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                stage.write(topic, partition, *(b"%d" % number for number in range(500)))
        found = details(stage)
        rates = [one["records_per_s"] or 0 for one in found["workers"]]
        return found if min(rates) > 0 and len(found["history"]["at_ms"]) > 3 else None

    found = wait_until(both, DEADLINE_S, "both workers copy")
    assert [one["problem"] for one in found["workers"]] == ["", ""]
    assert len(found["histories"]) == len(found["sparks"]) == 2
    assert stage.overview()["rates"]["is_whole"]
    with stage.page(FLOW) as page:
        page.get_by_text("all 2 workers").wait_for()
        page.locator(".chart canvas").nth(3).wait_for()
        page.wait_for_timeout(1500)
        page.get_by_role("heading", name="Last hour").scroll_into_view_if_needed()
        save(page, "two-workers")


def test_a_worker_that_does_not_answer_is_named_and_then_its_tasks_move(stage: Stage, second: Mirror) -> None:
    members = second.members()
    for member in members:
        member.process.suspend()
    with stage.page(FLOW) as page:
        page.get_by_text("Not counted here").first.wait_for()
        save(page, "two-workers-silent")
    with stage.page() as page:
        page.get_by_text("because a worker is silent").wait_for()
    second.kill()
    for member in members:
        if member.process.is_running():
            member.process.kill()
    stage.await_word("running")
    with stage.page(FLOW) as page:
        page.get_by_text("Not counted here").first.wait_for(state="hidden", timeout=120_000)
    wait_until(
        lambda: [one["tasks"] for one in details(stage)["workers"]] == [{"RUNNING": 2}], DEADLINE_S, "one has all"
    )
