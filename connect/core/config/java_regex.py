r"""Translates Java's regular expressions, as in lists of topics and groups, for Python's ``re``.

The dialects differ in names for the same things (``\z``, ``(?<name>``, ``\Q..\E``, ``\p{Alpha}``), in flags, which
Java allows anywhere (``(?i)``), and in nested character classes, which Python lacks. Syntax without an equivalent is
an error, because it would match differently.
"""

from __future__ import annotations

import re
from typing import Final

#: ``\p{..}`` in ASCII, as bodies of a character class (``java.util.regex.Pattern``, POSIX classes).
_POSIX: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0b\f\r",
}
_HORIZONTAL: Final = r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_SAME_ESCAPES: Final = frozenset("dDwWsStnrfa")
_SAME_OUTSIDE: Final = frozenset("bBA123456789")
_QUANTITY: Final = re.compile(r"\{\d+(,\d*)?\}")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*(?:-[a-zA-Z]+)?)([:)])")
_NAME: Final = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>")
_PROPERTY: Final = re.compile(r"\{([^}]*)\}|(.)")
_HEX: Final = re.compile(r"x\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_OCTAL: Final = re.compile(r"0([0-3]?[0-7]{1,2})")


class UnsupportedRegex(ValueError):
    """The expression is invalid in Java, or has no equivalent in Python; the message names the part."""


def compile_java(expression: str) -> re.Pattern[str]:
    r"""Compile the expression as a Python pattern with Java's ASCII meaning of ``\d``, ``\w`` and letter case. Raises
    UnsupportedRegex if the expression is invalid, or has no equivalent in Python."""
    try:
        return re.compile(_Translation(expression).run(), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedRegex(str(error)) from None


class _Translation:
    """A pass over an expression. ``_scopes`` holds, per open group, the flag scopes opened inside it."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._out: list[str] = []
        self._scopes: list[list[str]] = [[]]

    def run(self) -> str:
        while self._at < len(self._text):
            self._step()
        if len(self._scopes) > 1:
            raise UnsupportedRegex("a group is not closed")
        self._out.append(")" * len(self._scopes[0]))
        return "".join(self._out)

    def _step(self) -> None:
        char = self._text[self._at]
        if char == "\\":
            self._escape(inside=False)
        elif char == "[":
            self._class()
        elif char == "(":
            self._group()
        elif char == ")":
            if len(self._scopes) == 1:
                raise UnsupportedRegex("a group is closed that was not opened")
            self._take(1, ")" * (len(self._scopes.pop()) + 1))
        elif char == "|":
            # A flag applies to the following alternatives too, to the end of its group.
            scopes = self._scopes[-1]
            self._take(1, ")" * len(scopes) + "|" + "".join(scopes))
        elif char == "{":
            quantity = _QUANTITY.match(self._text, self._at)
            if quantity is None:
                raise UnsupportedRegex("'{' must begin a repetition count; a comma inside it splits the list")
            self._take(len(quantity.group()), quantity.group())
        else:
            self._take(1, char)

    def _take(self, length: int, translated: str) -> None:
        self._at += length
        self._out.append(translated)

    def _group(self) -> None:
        flags = _FLAGS.match(self._text, self._at)
        if flags is not None and (flags.group(1) or flags.group(2) == ")"):
            self._flag_group(flags)
            return
        self._scopes.append([])
        if self._text.startswith("(?<", self._at):
            name = _NAME.match(self._text, self._at + 2)
            if name is not None:
                self._take(2 + len(name.group()), f"(?P<{name.group(1)}>")
                return
        self._take(1, "(")

    def _flag_group(self, flags: re.Match[str]) -> None:
        # The flag x is unsupported, because the dialects disagree on what it ignores in character classes.
        unknown = set(flags.group(1)) - set("ims-")
        if unknown:
            raise UnsupportedRegex(f"the flag {'/'.join(sorted(unknown))} has no equivalent in Python")
        opening = f"(?{flags.group(1)}:" if flags.group(1) else "(?:"
        if flags.group(2) == ":":
            self._scopes.append([])
        else:
            self._scopes[-1].append(opening)
        self._take(len(flags.group()), opening)

    def _class(self) -> None:
        self._take(1, "[")
        if self._text.startswith("^", self._at):
            self._take(1, "^")
        first = True
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "]" and not first:
                self._take(1, "]")
                return
            first = False
            if char == "\\":
                self._escape(inside=True)
            elif char == "[" or self._text.startswith("&&", self._at):
                raise UnsupportedRegex("a character class within another (or &&) has no equivalent in Python")
            elif self._text.startswith("--", self._at):
                raise UnsupportedRegex("'--' in a character class has no equivalent in Python")
            else:
                self._take(1, "\\" + char if char in "&|~" else char)
        raise UnsupportedRegex("a character class is not closed")

    def _escape(self, *, inside: bool) -> None:
        """Translate an escape sequence; ``inside`` a character class."""
        start = self._at
        if start + 1 >= len(self._text):
            raise UnsupportedRegex("a backslash is at the end")
        char = self._text[start + 1]
        if char == "Q":
            end = self._text.find("\\E", start + 2)
            quoted = self._text[start + 2 :] if end < 0 else self._text[start + 2 : end]
            self._take(len(quoted) + (2 if end < 0 else 4), re.escape(quoted))
        elif char in _SAME_ESCAPES or (not inside and char in _SAME_OUTSIDE):
            self._take(2, "\\" + char)
        elif not inside and char in "zZ":
            self._take(2, r"\Z" if char == "z" else r"(?=\n?\Z)")
        elif char in "hH":
            self._ranges(2, _HORIZONTAL, negated=char == "H", inside=inside)
        elif char in "pP":
            self._property(char == "P", inside=inside)
        elif not inside and char == "k" and (name := _NAME.match(self._text, start + 2)) is not None:
            self._take(2 + len(name.group()), f"(?P={name.group(1)})")
        elif not char.isascii() or not char.isalnum():
            self._take(2, re.escape(char))
        else:
            self._character()

    def _property(self, negated: bool, *, inside: bool) -> None:
        match = _PROPERTY.match(self._text, self._at + 2)
        name = "" if match is None else match.group(1) or match.group(2) or ""
        if match is None or name not in _POSIX:
            raise UnsupportedRegex(f"\\p{{{name}}} has no equivalent in Python")
        self._ranges(2 + len(match.group()), _POSIX[name], negated=negated, inside=inside)

    def _ranges(self, length: int, body: str, *, negated: bool, inside: bool) -> None:
        if inside and negated:
            raise UnsupportedRegex("a negated class within a character class has no equivalent in Python")
        self._take(length, body if inside else f"[{'^' if negated else ''}{body}]")

    def _character(self) -> None:
        """Translate the escape of a character by its number."""
        at = self._at + 1
        if (hexadecimal := _HEX.match(self._text, at)) is not None:
            number = int(next(filter(None, hexadecimal.groups())), 16)
            length = len(hexadecimal.group())
        elif (octal := _OCTAL.match(self._text, at)) is not None:
            number, length = int(octal.group(1), 8), len(octal.group())
        elif self._text.startswith("e", at):
            number, length = 0x1B, 1
        elif self._text.startswith("c", at) and at + 1 < len(self._text):
            number, length = ord(self._text[at + 1]) ^ 64, 2
        else:
            raise UnsupportedRegex(f"\\{self._text[at]} has no equivalent in Python")
        self._take(1 + length, re.escape(chr(number)))
