"""The dashboards are as their description says, and each alert has words and a place in the docs."""

from __future__ import annotations

import re

import pytest

from tests.kit import boards
from tests.packaging.test_deploy import ROOT

PAGE = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
HEADINGS = {text.lower() for text in re.findall(r"^#+ (\w+)$", PAGE, re.MULTILINE)}


def test_the_dashboards_are_those_of_the_description() -> None:
    for path, text in boards.generator().files().items():
        assert path.read_text("utf-8") == text, f"{path.name}: write it again with deploy/grafana/boards.py"


def test_each_panel_says_in_a_sentence_what_it_shows_and_where_to_go_on() -> None:
    for board, panel in boards.panels():
        assert panel["description"][0].isupper() and "." in panel["description"], (board, panel["title"])
        assert {f"#{one}" for one in HEADINGS} >= set(re.findall(r"#\w+", panel["description"]))


@pytest.mark.parametrize("name", boards.alerts())
def test_an_alert_says_what_is_wrong_and_where_to_go_on(name: str) -> None:
    alert = boards.alerts()[name]
    words = alert["annotations"]
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert words["summary"].endswith(".") and words["description"].endswith(".")
    assert words["runbook_url"] == f"docs/monitoring.md#{name.lower()}"
    assert name.lower() in HEADINGS


def test_a_name_or_label_that_no_worker_has_is_found() -> None:
    query = boards.Query("x", 'sum by (flow) (rate(kafka_connect_a_total{job="x, y"}[5m])) / heliograph_b')
    assert query.names == {"kafka_connect_a_total", "heliograph_b"}
    assert query.labels_of("kafka_connect_a_total") == {"flow", "job"}
    assert len(boards.unknown({})) > len(boards.alerts())
    page = boards.of_page('# TYPE a_total counter\na_total{x="1"} 2\n# TYPE b gauge\n')
    assert page == {"a_total": {"x"}, "b": None}


def test_the_page_has_no_alert_that_is_gone() -> None:
    assert {one for one in HEADINGS if one.startswith("heliograph")} == {name.lower() for name in boards.alerts()}


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    tested = "".join(path.read_text("utf-8") for path in boards.RULE_TESTS)
    assert {name for name in boards.alerts() if f"alertname: {name}\n" not in tested} == set()
