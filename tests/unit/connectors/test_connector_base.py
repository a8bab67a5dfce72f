"""What offsets may be altered to, in the words of Java's ``MirrorUtils``."""

from __future__ import annotations

from typing import Any

import pytest

from connect.core.errors import PermanentError
from connectors.connector_base import require_offset, require_partition, require_string


def test_what_is_right_passes() -> None:
    require_string({"cluster": "us"}, "cluster")
    for number in (0, 2**31 - 1):
        require_partition({"partition": number})
    require_offset({}, {"offset": 0}, only_zero=True)
    require_offset({}, {"offset": 2**62}, only_zero=False)


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ({"a": None, "b": True}, "Source partition {a=null, b=true} is missing the 'cluster' key, which is required"),
        (
            {"cluster": 5},
            "Source partition {cluster=5} has an invalid value 5 for the 'cluster' key, which must be a string",
        ),
    ],
)
def test_strings(partition: dict[str, Any], words: str) -> None:
    with pytest.raises(PermanentError) as refused:
        require_string(partition, "cluster")
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("1", "must be an integer"),
        (True, "must be an integer"),
        (1.0, "must be an integer"),
        (2**31, "must be an integer"),
        (None, "must be an integer"),
        (-1, "cannot be negative"),
    ],
)
def test_partitions(value: Any, words: str) -> None:
    with pytest.raises(PermanentError, match=f"for the 'partition' key, which {words}$"):
        require_partition({"partition": value})


@pytest.mark.parametrize(
    ("offset", "only_zero", "words"),
    [
        ({}, False, "Source offset {} for source partition {p=1} is missing the 'offset' key, which is required"),
        ({"offset": "0"}, True, "has an invalid value 0 for the 'offset' key, which must be an integer"),
        ({"offset": False}, True, "has an invalid value false for the 'offset' key, which must be an integer"),
        ({"offset": 1}, True, "has an invalid value 1 for the 'offset' key; the only accepted value is 0"),
        ({"offset": -1}, False, "has an invalid value -1 for the 'offset' key, which cannot be negative"),
    ],
)
def test_offsets(offset: dict[str, Any], only_zero: bool, words: str) -> None:
    with pytest.raises(PermanentError) as refused:
        require_offset({"p": 1}, offset, only_zero=only_zero)
    assert str(refused.value).endswith(words)
