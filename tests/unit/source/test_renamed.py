"""Names of remote topics of source topics that were made anew."""

from __future__ import annotations

from uuid import UUID

import pytest

from connectors.policy import LONGEST_NAME
from connectors.source.renamed import is_copy_of, name_of_new

ID = UUID("1c9bd204-0000-4000-8000-000000000000")


@pytest.mark.parametrize(
    ("remote", "named"),
    [
        ("us.orders", "us.orders.1c9bd204"),
        ("n" * 240, "n" * 240 + ".1c9bd204"),
        ("n" * 241, "n" * 231 + ".a3938a15.1c9bd204"),
    ],
)
def test_the_id_stands_behind_as_much_of_the_name_as_kafka_takes(remote: str, named: str) -> None:
    assert name_of_new(remote, ID) == named
    assert len(named) <= LONGEST_NAME


def test_long_names_of_several_connectors_stay_apart() -> None:
    """Those of one source topic, which has one id."""
    names = {name_of_new(remote, ID) for remote in ("n" * 241, "n" * 241 + ".errors", "n" * LONGEST_NAME)}
    assert len(names) == 3
    assert all(len(name) == LONGEST_NAME for name in names)


@pytest.mark.parametrize("remote", ["us.orders", "n" * 241])
def test_a_copy_is_known_by_its_name_whatever_the_id(remote: str) -> None:
    assert is_copy_of(remote, remote) and is_copy_of(remote, name_of_new(remote, ID))
    for other in (f"{remote}.eu", f"{remote}.1c9bd20", f"{remote}1c9bd204", "other.1c9bd204"):
        assert not is_copy_of(remote, other)
