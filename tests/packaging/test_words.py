"""The check of words: what it reads of a file, and what it finds there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.words import faults


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", '"""A topic that was made anew."""\n', ["'anew'"]),
        ("a.py", "x = 1  # nobody reads it\n", ["'nobody'"]),
        ("a.py", 'raise E(f"{nobody} was told")\n', ["'told'"]),
        ("a.py", "def told(anew): return anew\n", []),
        ("a.py", '"""``anew`` is an option."""\n', []),
        ("a.py", '"""Is no longer there."""\n', []),
        ("a.py", '"""Is no topic. T stands for a target."""\n', ["'Is no'"]),
        ("a.md", "It is told\n\n    anew, in code\n\n```\nmended\n```\nand `whoever` [lies](beside.md)\n", ["'told'"]),
    ],
)
def test_listed_words_are_found_in_text_and_not_in_code(tmp_path: Path, name: str, text: str, found: list[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [fault.split(": ")[1].split(";")[0] for fault in faults(path)] == found


def test_a_fault_names_its_line_and_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""First line.\n\nSecond thoughts, anew.\n"""\n')
    assert list(faults(path)) == [f"{path}:3: 'anew'; write again"]
