"""Stacks to a flame graph and to the functions that took most."""

from __future__ import annotations

from xml.etree import ElementTree

from bench import flame

STACKS = flame.parse(
    [
        "main (a.py:1);loop (a.py:9);send (b.py:20) 6",
        "main (a.py:1);loop (a.py:9);send (b.py:21) 3",
        "main (a.py:1);loop (a.py:10);send (b.py:20);send (b.py:20) 1",
        "main (a.py:1);loop (a.py:9);EpollSelector.select (selectors.py:468) 40",
        "",
    ]
)


def test_waiting_and_the_frames_of_all_are_left_out() -> None:
    working = flame.working(STACKS)
    assert working.total() == 10
    assert ("loop (a.py:9)", "send (b.py:20)") in working


def test_a_function_twice_in_a_stack_counts_once() -> None:
    functions = flame.top(flame.by_function(flame.working(STACKS)))
    assert functions.own == {"send (b.py)": 10}
    assert functions.total == {"loop (a.py)": 10, "send (b.py)": 10}


def test_text_names_shares_by_function_and_by_line() -> None:
    text = flame.text("a title", flame.working(STACKS))
    assert text.startswith("a title\n")
    assert " 100.0%  send (b.py)\n" in text
    assert "  70.0%  send (b.py:20)\n" in text


def test_svg_is_well_formed_and_names_frames_whole() -> None:
    stacks = {("<module> (a & b.py:1)", "x" * 300 + " (c.py:2)"): 1, ("<module> (a & b.py:1)",): 2000}
    root = ElementTree.fromstring(flame.svg("t < u", stacks))
    titles = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["<module> (a & b.py): 2001 samples, 100.0%"], "what is narrower than a pixel is left out"
