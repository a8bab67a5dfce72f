"""Parses ``sasl.jaas.config``, following Kafka's ``JaasConfig`` and Java's ``StreamTokenizer``.

Users rely on the tokenizer's details: quotes may be double or single, a backslash escapes inside them, ``/`` outside of
them starts a comment, and a bare number is not a value.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_WORD_START: Final = frozenset(string.ascii_letters + "_$")
_WORD_GOES_ON: Final = _WORD_START | frozenset(string.digits + ".-")
_NUMBER: Final = frozenset(string.digits + ".")
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


@dataclass(frozen=True, slots=True)
class _JaasToken:
    """``word`` is None for a number or a single character, as ``StreamTokenizer.sval`` is null for them."""

    char: str
    word: str | None = None


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
    at = 0
    while at < len(text):
        char = text[at]
        if char <= " ":
            at += 1
        elif char == "/":
            at = _after_comment(text, at)
        elif char in "\"'":
            value, at = _quoted(text, at)
            yield _JaasToken(char, value)
        elif char in _WORD_START or char >= "\xa0":
            end = at + 1
            while end < len(text) and (text[end] in _WORD_GOES_ON or text[end] >= "\xa0"):
                end += 1
            yield _JaasToken("", text[at:end])
            at = end
        else:
            at += 1
            if char in _NUMBER:
                while at < len(text) and text[at] in _NUMBER:
                    at += 1
            yield _JaasToken(char)


def _after_comment(text: str, at: int) -> int:
    """Return the position after a comment: a star comment ends at its mark, any other at the end of the line."""
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return len(text) if end < 0 else end + 2
    while at < len(text) and text[at] not in "\r\n":
        at += 1
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the value whose quote is at ``at``, and the position after it; the end of the line also ends it."""
    quote, at = text[at], at + 1
    value: list[str] = []
    while at < len(text) and text[at] != quote and text[at] not in "\r\n":
        if text[at] != "\\" or at + 1 == len(text):
            value.append(text[at])
            at += 1
            continue
        escaped = text[at + 1]
        if escaped in "01234567":
            end = at + 2
            # Java reads a third octal digit only if the number still fits in a byte.
            limit = at + (4 if escaped <= "3" else 3)
            while end < min(limit, len(text)) and text[end] in "01234567":
                end += 1
            value.append(chr(int(text[at + 1 : end], 8)))
            at = end
        else:
            value.append(_ESCAPES.get(escaped, escaped))
            at += 2
    closed = at < len(text) and text[at] == quote
    return "".join(value), at + 1 if closed else at
