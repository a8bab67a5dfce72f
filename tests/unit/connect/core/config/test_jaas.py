"""The JAAS line as people write it; what each comes to was asked of Kafka 4.3's ``JaasContext``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.config.security_settings import JaasError, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"{PLAIN} REQUIRED username='a' password='b' ;", {"username": "a", "password": "b"}),
        (f'{PLAIN} sufficient\n  username = "a"\n  password="b";\n', {"username": "a", "password": "b"}),
        (f'{PLAIN} required password="a\\"b\\\\c";', {"password": 'a"b\\c'}),
        (f'{PLAIN} required password="tab\\tnew\\101\\z";', {"password": "tab\tnewAz"}),
        (f'{PLAIN} required password="\\4001";', {"password": " 01"}),
        (f'{PLAIN} required password="a;b=c//d";', {"password": "a;b=c//d"}),
        (f"{PLAIN} required username=alice-1.x password=$ecret_1;", {"username": "alice-1.x", "password": "$ecret_1"}),
        (f'{PLAIN} required /* c */ username="a" // rest\n password="b";', {"username": "a", "password": "b"}),
        (f'{PLAIN} required username="a" username="b";', {"username": "b"}),
        (f"{PLAIN} required;", {}),
    ],
)
def test_lines_that_java_reads(line: str, options: dict[str, str]) -> None:
    entry = parse_jaas(line)
    assert (entry.login_module, entry.options) == (PLAIN, options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "names no login module"),
        ("   // only a comment", "names no login module"),
        (PLAIN, "no control flag"),
        (f'{PLAIN} username="a";', "no control flag"),
        (f'{PLAIN} required username="a"', "does not end with a semicolon"),
        (f'{PLAIN} required username "a";', "option 'username' without a value"),
        (f"{PLAIN} required password=12345;", "option 'password' without a value"),
        (f"{PLAIN} required password=s3/cret;", "does not end with a semicolon"),
        (f"{PLAIN} required password=s3#cret;", "an option without a value"),
        (f"{PLAIN} required; {PLAIN} required;", "holds 2 login modules"),
        (f'"{PLAIN}', "no control flag"),
        ("12 required;", "does not begin with the name"),
    ],
)
def test_lines_that_java_refuses(line: str, message: str) -> None:
    with pytest.raises(JaasError, match=message):
        parse_jaas(line)


def test_neither_repr_nor_errors_show_values() -> None:
    assert "s3cret" not in repr(parse_jaas(f'{PLAIN} required password="s3cret";'))
    with pytest.raises(JaasError) as caught:
        parse_jaas(f"{PLAIN} required password=half s3cret;")
    assert "s3cret" not in str(caught.value)


@given(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])))
def test_any_password_survives_quoting(password: str) -> None:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_jaas(f'{PLAIN} required password="{quoted}";').options == {"password": password}


@given(st.text("ab =;\"'\\/*\n12.-$#"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entry = parse_jaas(text)
    except JaasError:
        return
    assert entry.login_module
