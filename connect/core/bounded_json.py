"""JSON of strangers: records of internal topics, and bodies of requests.

The size of a text bounds neither the memory of its value nor the stack that reading it takes: 10 MiB of ``[{},{},...]``
become gigabytes, and 100 kB of ``[`` more levels than Python can go down. So both are counted before anything is read.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

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
