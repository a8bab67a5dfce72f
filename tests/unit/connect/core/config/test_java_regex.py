"""Java's expressions in Python's dialect; which names match was asked of ``java.util.regex``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.config.java_regex import UnsupportedRegex, compile_java


@pytest.mark.parametrize(
    ("expression", "matches", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", "Orders"]),
        ("orders.*", ["orders", "orders.eu"], ["my.orders"]),
        (r"mm2.*\.internal", ["mm2-x.internal"], ["mm2-xinternal"]),
        ("a|b", ["a", "b"], ["ab"]),
        ("(?i)orders", ["ORDERS"], []),
        ("a|(?i)b|c", ["a", "B", "C"], ["A"]),
        ("x(?i)b|c", ["xb", "xB", "C", "c"], ["XB"]),
        ("(?:(?i)a|b)c", ["Ac", "Bc"], ["AC"]),
        ("(?i:a)b", ["Ab"], ["AB"]),
        ("(?i)a(?-i)b", ["Ab"], ["AB"]),
        (r"\Qa.b|c\E.", ["a.b|cx"], ["axb|cx", "a.b"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"[\Q]-\Ea]+", ["]-a"], ["b"]),
        (r"\p{Alpha}\p{Digit}\P{Digit}", ["a1a"], ["é1a", "a11"]),
        (r"[\p{Upper}_]+", ["A_B"], ["a"]),
        (r"(?<name>ab)\k<name>", ["abab"], ["abac"]),
        (r"(a)\1", ["aa"], ["ab"]),
        (r"a\z", ["a"], ["a\n"]),
        (r"\x61\u0062\x{63}\0144", ["abcd"], []),
        (r"\e\cA\t", ["\x1b\x01\t"], []),
        (r"a\-b\_c", ["a-b_c"], []),
        (r"\h+", [" \t\u3000"], ["\n"]),
        (r"\d\w", ["1a"], ["٣a", "1é"]),
        ("a++b", ["aab"], ["b"]),
        ("(?>a|ab)c", ["ac"], ["abc"]),
        ("[a&|~b]", ["&", "|", "~"], ["c"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("a{2}b{1,}c{0,1}", ["aabb", "aabc"], ["abc"]),
        ("(?=or)orders(?!x)", ["orders"], ["ordersx"]),
        ("}]", ["}]"], []),
    ],
)
def test_what_java_matches(expression: str, matches: list[str], others: list[str]) -> None:
    pattern = compile_java(expression)
    assert [name for name in matches if not pattern.fullmatch(name)] == []
    assert [name for name in others if pattern.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("[a-z&&[^b]]", "&&"),
        ("[a--b]", "'--'"),
        ("[a[bc]]", "within another"),
        (r"\p{L}", r"\p{L}"),
        (r"\pL", r"\p{L}"),
        (r"\R", r"\R"),
        (r"\Gx", r"\G"),
        (r"[^\P{Alpha}]", "negated class"),
        ("(?x)a", "the flag x"),
        ("(?u)a", "the flag u"),
        ("a{,3}", "'{'"),
        ("a{2", "splits the list"),
        ("(a", "a group is not closed"),
        ("a)", "closed that was not opened"),
        ("[a", "character class is not closed"),
        ("a\\", "backslash"),
        ("*", "nothing to repeat"),
        ("(?<=a*)b", "look-behind"),
    ],
)
def test_what_has_no_equal_is_named(expression: str, part: str) -> None:
    with pytest.raises(UnsupportedRegex) as caught:
        compile_java(expression)
    assert part in str(caught.value)


@given(st.text(st.characters(max_codepoint=0x2FF)).filter(lambda text: "\\E" not in text))
def test_a_quoted_text_matches_itself_alone(text: str) -> None:
    pattern = compile_java(f"\\Q{text}\\E")
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(text + "x")


@given(st.text("ab\\[]()|?*+{},1-^$.iQE<>:=!&p", max_size=14))
def test_any_text_compiles_or_is_refused(expression: str) -> None:
    try:
        pattern = compile_java(expression)
    except UnsupportedRegex:
        return
    pattern.fullmatch("ab")
