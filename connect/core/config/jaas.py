"""Parses ``sasl.jaas.config``, following Kafka's ``JaasConfig`` and Java's ``StreamTokenizer``.

Users rely on the tokenizer's details: quotes may be double or single, a backslash escapes inside them, ``/`` outside of
them starts a comment, and a bare number is not a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Blanks and comments; a word; a quoted value, which the end of the line also ends; a number or a single character.
_TOKEN: Final = re.compile(
    r"""(?P<ignored>[\x00-\x20]+|/\*.*?(?:\*/|\Z)|/[^\r\n]*)"""
    r"""|(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)"""
    r"""|"(?P<double>(?:\\.|[^"\\\r\n])*\\?)"?|'(?P<single>(?:\\.|[^'\\\r\n])*\\?)'?"""
    r"""|[0-9.]+|.""",
    re.DOTALL,
)
#: Java reads a third octal digit only if the number still fits in a byte.
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
#: Any other word may be part of a badly quoted password, so no message repeats it.
_KNOWN_OPTIONS: Final = frozenset({"username", "password", "tokenauth", "serviceName", "principal", "keyTab"})


class JaasError(ValueError):
    """The line cannot be parsed; the message never repeats a value of it."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module with its options; the options hold secrets, so ``repr`` omits them."""

    login_module: str
    options: dict[str, str] = field(repr=False)


class _JaasToken(NamedTuple):
    """``word`` is None for a number or a single character, as ``StreamTokenizer.sval`` is null for them."""

    char: str
    word: str | None


def parse_jaas(line: str) -> JaasEntry:
    """Return the single login module of the line. Raises JaasError if the line is invalid by ``JaasConfig`` and
    ``JaasContext``: no module or several, an unknown control flag, an option without a value, no semicolon at the
    end."""
    tokens = _tokens(line)
    entries: list[JaasEntry] = []
    for token in tokens:
        entries.append(_entry(token, tokens))
    if not entries:
        raise JaasError("names no login module")
    if len(entries) > 1:
        raise JaasError(f"holds {len(entries)} login modules and should hold one; is a semicolon or a quote misplaced?")
    return entries[0]


def _entry(first: _JaasToken, tokens: Iterator[_JaasToken]) -> JaasEntry:
    if first.word is None:
        raise JaasError("does not begin with the name of a login module")
    flag = next(tokens, None)
    if flag is None or flag.word is None or flag.word.upper() not in _FLAGS:
        raise JaasError("has no control flag (such as 'required') after the login module")
    options: dict[str, str] = {}
    for token in tokens:
        if token.char == ";":
            return JaasEntry(first.word, options)
        equals, value = next(tokens, None), next(tokens, None)
        if token.word is None or equals is None or equals.char != "=" or value is None or value.word is None:
            name = f"option '{token.word}'" if token.word in _KNOWN_OPTIONS else "an option"
            raise JaasError(f'has {name} without a value; write options as name="value", with the quotes')
        options[token.word] = value.word
    raise JaasError("does not end with a semicolon")


def _tokens(text: str) -> Iterator[_JaasToken]:
    for match in _TOKEN.finditer(text):
        quoted = match["double"] if match["single"] is None else match["single"]
        if match["word"] is not None:
            yield _JaasToken("", match["word"])
        elif quoted is not None:
            yield _JaasToken(match[0][0], _ESCAPE.sub(_unescaped, quoted))
        elif match["ignored"] is None:
            yield _JaasToken(match[0][0], None)


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 8)) if match[2] is None else _ESCAPES.get(match[2], match[2])
