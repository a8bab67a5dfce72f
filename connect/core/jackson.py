"""Writes JSON and numbers in Java's bytes, and reads untrusted JSON with limits.

* Stored bytes depend on the JSON that Jackson writes and on ``Float.toString`` and ``Double.toString``.
* Untrusted JSON comes from records of internal topics and from request bodies. The length of a text limits neither the
  memory of its value nor the stack for parsing it: 10 MiB of ``[{},{},...]`` become gigabytes, and 100 kB of ``[``
  exceed Python's recursion limit. So elements and levels are counted before parsing.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ESCAPED: Final = re.compile('["\\\\\x00-\x1f\U00010000-\U0010ffff]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def string_text(value: str) -> str:
    """Encode a JSON string: with short escapes where JSON has them, else upper-case hexadecimal. Beyond ASCII only
    characters that need a surrogate pair are escaped."""
    return '"' + _ESCAPED.sub(_escape, value) + '"'


def json_text(value: object) -> str:
    """Encode None, booleans, numbers, strings, lists and dicts with string keys as compact JSON, in dict order. Raises
    TypeError if ``value`` is of another type."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # Jackson quotes NaN and infinity, which JSON does not have.
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
    """Format as ``Double.toString`` since Java 19: the shortest digits that identify the number."""
    # If one digit suffices, Java writes the two nearest digits: 4.9E-324 instead of 5e-324.
    two_digits = f"{value:.1e}"
    return _java_text(value, two_digits if float(two_digits) == value else repr(value))


def float32_text(value: float) -> str:
    """Format a single-precision number as ``Float.toString``."""
    if not math.isfinite(value):
        return float64_text(value)
    single = to_float32(value)
    for digits in range(2, 10):
        text = f"{single:.{digits}g}"
        if to_float32(float(text)) == single:
            break
    return _java_text(single, text)


def to_float32(value: float) -> float:
    """Round to single precision; infinite if the number is too large."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _java_text(value: float, shortest: str) -> str:
    """Format the ``shortest`` digits as Java does: plain from 0.001 to ten million, else with an exponent."""
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
    # The number is 0.digits times ten to the power of ``exponent``.
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


#: Records of workers have at most four levels.
MAX_DEPTH: Final = 100
#: Offsets of ten thousand partitions have 70,000 elements.
MAX_ELEMENTS: Final = 100_000

# Possessive, so that an unterminated string is scanned once and not again from each quote.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_DECODER: Final = json.JSONDecoder()


class TooManyElements(ValueError):
    """A text has more elements than the reader allows."""


def decode_json(data: bytes | str, *, max_elements: int = MAX_ELEMENTS, decoder: json.JSONDecoder = _DECODER) -> Any:
    """Decode a JSON text, or its bytes in an encoding that JSON allows, with ``decoder``. ``max_elements`` limits
    commas and opening brackets outside strings. Raises TooManyElements if the text has more, and ValueError if it is
    not JSON, or has more than MAX_DEPTH levels."""
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    _check(text, max_elements)
    return decoder.decode(text)


def _check(text: str, max_elements: int) -> None:
    opened = text.count("[") + text.count("{")
    if opened <= MAX_DEPTH and opened + text.count(",") <= max_elements:
        return  # because the content of strings only increases these counts
    structure = _STRING.sub("", text)
    opened = structure.count("[") + structure.count("{")
    if opened + structure.count(",") > max_elements:
        raise TooManyElements(f"it has more than {max_elements} elements")
    depth = 0
    for bracket in _BRACKET.findall(structure):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_DEPTH} levels")
