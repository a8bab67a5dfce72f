"""The documentation against the tree: what it names is there, and what is there it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connectors.formats.gap import STATES
from connectors.formats.types import QUARANTINED, STOPPED
from connectors.source.positions.partition_pairs import RECOVERING, WAITING

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ATTACKS = "| attack | test | outcome |\n| --- | --- | --- |\n"
_CODE_BLOCK = re.compile(r"^(?: {4}.*|```.*?^```)$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_CODE_BLOCK.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_of_decisions_has_every_page_under_its_title() -> None:
    folder = DOCS / "decisions"
    index = re.findall(r"^\* (\d+)\. \[(.+)\]\((\d{4})-[\w-]+\.md\)$", (folder / "README.md").read_text(), re.MULTILINE)
    pages = sorted(folder.glob("[0-9]*.md"))
    titles = [page.read_text().splitlines()[0] for page in pages]
    assert [f"# {number}. {title}" for number, title, _ in index] == titles
    assert [int(name) for _, _, name in index] == list(range(1, len(pages) + 1))


def test_the_runbook_of_stopped_partitions_has_every_state() -> None:
    text = (DOCS / "runbooks" / "stopped-partition.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted([*STATES, STOPPED, QUARANTINED, WAITING, RECOVERING])


def attacks(text: str) -> dict[str, list[str]]:
    """Return the files of tests that each row of a table of attacks names; "the same" are those of the row above."""
    found: dict[str, list[str]] = {}
    above: list[str] = []
    for line in text.partition(_ATTACKS)[2].partition("\n\n")[0].splitlines():
        attack, tests, outcome = (cell.strip() for cell in line.strip("| ").split(" | "))
        assert outcome, attack
        above = above if tests == "the same" else re.findall(r"`(tests/[\w/]+\.py)`", tests)
        found[attack] = above
    return found


@pytest.mark.parametrize("page", sorted((DOCS / "security").glob("*.md")), ids=lambda page: page.name)
def test_each_attack_has_a_test(page: Path) -> None:
    found = attacks(page.read_text())
    assert found, "the page has a table of attacks"
    for attack, files in found.items():
        assert any("def test_" in (ROOT / file).read_text() for file in files), attack


def test_an_attack_without_a_test_is_noticed() -> None:
    table = f"{_ATTACKS}| a | `tests/x/test_y.py`, `tests/kit/z.py` (long) | x |\n| b | the same | x |\n| c | - | x |\n"
    files = ["tests/x/test_y.py", "tests/kit/z.py"]
    assert attacks(table) == {"a": files, "b": files, "c": []}
