"""The table of sizes: what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.size import PAGE, Size, allowed, faults, page, rounded, sizes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("connect/kafka", "connectors", "rest"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "connect" / "kafka" / "cluster.py").write_text("class Cluster:\n    pass\n" + "\n" * 118)
    return tmp_path


def test_a_page_read_again_allows_what_it_was_made_of(root: Path) -> None:
    found = sizes(root)
    assert found == {"connect/kafka": Size(1, 120)}
    assert allowed(page(found)) == {"connect/kafka": Size(1, 200)}
    assert faults(found, allowed(page(found)), root) == []


def test_growth_beyond_the_row_and_packages_without_a_row_are_named(root: Path) -> None:
    (grown,) = faults({"connect/kafka": Size(1, 201)}, {"connect/kafka": Size(1, 200)}, root)
    assert grown == "connect/kafka has 1 files, 201 lines; docs/size.md says 1, 200"
    assert faults({"connect/kafka": Size(2, 150)}, {"connect/kafka": Size(1, 200)}, root)
    assert faults({"rest": Size(1, 9)}, {}, root) == ["package rest has no row in docs/size.md"]
    assert faults({}, {"rest": Size(1, 9)}, root) == ["docs/size.md has a row for rest, which is no package"]


def test_a_long_file_and_a_class_name_taken_twice_are_named(root: Path) -> None:
    (root / "rest" / "server.py").write_text("class Cluster:\n    pass\n" + "\n" * 499)
    assert faults({}, {}, root) == [
        "rest/server.py has 501 lines, more than 500; divide it by idea",
        "class Cluster is in connect/kafka/cluster.py and in rest/server.py",
    ]


@pytest.mark.parametrize(("lines", "expected"), [(0, 0), (1, 100), (100, 100), (101, 200)])
def test_lines_are_rounded_up(lines: int, expected: int) -> None:
    assert rounded(lines) == expected


def test_the_page_is_that_of_the_tree() -> None:
    assert faults(sizes(), allowed(PAGE.read_text())) == []
