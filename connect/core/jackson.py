"""Writes JSON and numbers in Java's bytes, and reads untrusted JSON within bounds.

* JSON as Jackson writes it, and numbers as ``Float.toString`` and ``Double.toString`` write them, are parts of stored
  bytes.
* Untrusted JSON comes in records of internal topics and in bodies of requests. The size of a text bounds neither the
  memory of its value nor the stack that reading it takes: 10 MiB of ``[{},{},...]`` become gigabytes, and 100 kB of
  ``[`` more levels than Python can go down. So both are counted before the text is parsed.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ESCAPED: Final = re.compile('["\\\\\x00-\x1f\U00010000-\U0010ffff]')
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def string_text(value: str) -> str:
    """A JSON string: short escapes where JSON has them, else upper-case hexadecimal.

    Beyond ASCII nothing is escaped but what takes a surrogate pair.
    """
    return '"' + _ESCAPED.sub(_escape, value) + '"'


def json_text(value: object) -> str:
    """Compact JSON of None, booleans, numbers, strings, lists and dicts with string keys, which keep their order.

    Raises:
        TypeError: ``value`` is none of these.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # Jackson quotes what JSON cannot say.
            return float64_text(value) if math.isfinite(value) else string_text(float64_text(value))
        case str():
            return string_text(value)
        case Mapping():
            return "{" + ",".join(f"{_name(name)}:{json_text(each)}" for name, each in value.items()) + "}"
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return "[" + ",".join(map(json_text, value)) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")


def float64_text(value: float) -> str:
    """``Double.toString``: the shortest digits that name the number (since Java 19; before sometimes one more)."""
    # Of one-digit numbers Java takes the two digits that are nearest: 4.9E-324, where 5e-324 would do.
    two_digits = f"{value:.1e}"
    return _java_text(value, two_digits if float(two_digits) == value else repr(value))


def float32_text(value: float) -> str:
    """``Float.toString`` of a number of single precision."""
    if not math.isfinite(value):
        return float64_text(value)
    single = to_float32(value)
    for digits in range(2, 10):
        text = f"{single:.{digits}g}"
        if to_float32(float(text)) == single:
            break
    return _java_text(single, text)


def to_float32(value: float) -> float:
    """The number of single precision that is nearest; infinite where it is too large."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _java_text(value: float, shortest: str) -> str:
    """``shortest`` digits laid out as Java does: plain from 0.001 up to ten million, else with an exponent."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return sign + "Infinity"
    if value == 0:
        return sign + "0.0"
    mantissa, _, power = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The number is 0.digits times ten to this power.
    exponent = int(power or 0) + len(whole) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if -2 <= exponent <= 7:
        if exponent <= 0:
            return f"{sign}0.{'0' * -exponent}{digits}"
        padded = digits.ljust(exponent, "0")
        return f"{sign}{padded[:exponent]}.{padded[exponent:] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent - 1}"


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{type(name).__name__} names no field in JSON")
    return string_text(name)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    short = _SHORT.get(char)
    if short is not None:
        return short
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))


#: What workers write has four levels at most.
MAX_DEPTH: Final = 100
#: The offsets of ten thousand partitions have 70,000.
MAX_ELEMENTS: Final = 100_000

# Possessive, so that a string without an end is looked at once and not from each of its quotes.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_DECODER: Final = json.JSONDecoder()


class TooManyElements(ValueError):
    """A text has more elements than its reader takes."""


def decode_json(data: bytes | str, *, max_elements: int = MAX_ELEMENTS, decoder: json.JSONDecoder = _DECODER) -> Any:
    """Return the value of a JSON text.

    Args:
        data: The text, or its bytes in an encoding that JSON allows.
        max_elements: How many commas and opening brackets it may have outside strings.
        decoder: Makes the value.

    Raises:
        TooManyElements: It has more.
        ValueError: It is not JSON, or has more than MAX_DEPTH levels.
    """
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    _check(text, max_elements)
    return decoder.decode(text)


def _check(text: str, max_elements: int) -> None:
    opened = text.count("[") + text.count("{")
    if opened <= MAX_DEPTH and opened + text.count(",") <= max_elements:
        return  # because what strings hold only adds to these counts
    structure = _STRING.sub("", text)
    opened = structure.count("[") + structure.count("{")
    if opened + structure.count(",") > max_elements:
        raise TooManyElements(f"it has more than {max_elements} elements")
    depth = 0
    for bracket in _BRACKET.findall(structure):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_DEPTH} levels")
