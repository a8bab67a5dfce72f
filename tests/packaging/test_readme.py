"""The front page: its length, its figures against the pages that measured them, and what its commands name."""

from __future__ import annotations

import re

from tests.packaging.test_docs import DOCS, ROOT

README = (ROOT / "README.md").read_text("utf-8")


def row(name: str) -> list[str]:
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def measured(contender: str) -> list[str]:
    """The cells of a contender's row under the load that the page names."""
    rows = (DOCS / "benchmarks.md").read_text("utf-8").partition("Every contender")[2].splitlines()
    first = next(index for index, line in enumerate(rows) if line.startswith("| `rf3-8-16k` |"))
    (line,) = (line for line in rows[first : first + 2] if f"| {contender} |" in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_throughput_and_cpu_are_those_of_the_benchmarks() -> None:
    ours, javas = measured("Heliograph"), measured("MM2 tuned")
    assert row("throughput")[1:3] == [f"{ours[5]} MB/s", f"{javas[5]} MB/s"]
    assert row("CPU of the copier")[1:3] == [f"{ours[6]} s", f"{javas[6]} s"]
    assert "--loads rf3-8-16k'" in row("throughput")[3]


def test_exact_offsets_and_duplicates_are_those_of_the_pages() -> None:
    offsets = (DOCS / "offsets.md").read_text("utf-8")
    ours, javas = row("group offsets moved")[1:3]
    assert re.search(rf"Java's MirrorMaker 2 [\d.]+ \| {javas} \|", offsets)
    assert re.search(rf"\| Heliograph: .*\| {ours} \|", offsets)
    found = (DOCS / "reliability.md").read_text("utf-8")
    kills = next(line for line in found.splitlines() if line.startswith("| 100 kills"))
    duplicates, records = row("duplicates after 100 kills")[1].split(" of ")
    assert f"{records} records" in kills
    assert f"{duplicates} duplicates" in kills
    arguments = re.search(r"ARGS='(.+?)'", row("duplicates after 100 kills")[3])
    assert arguments is not None
    assert f"`{arguments[1]}`" in kills


def test_memory_is_that_of_the_page() -> None:
    found = re.search(r"takes ([\d,]+ MB) of memory, of which Spark takes ([\d,]+ MB)", README)
    assert found is not None
    assert f"{found[1]}, of which Spark {found[2]}" in (DOCS / "reliability.md").read_text("utf-8")


def test_its_make_targets_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for file in re.findall(r"(?:ARGS=|`)((?:tests|deploy)/[\w/.]+)", README):
        assert (ROOT / file).exists(), file
    assert "rf3-8-16k" in (DOCS / "benchmarks.md").read_text("utf-8")
