"""Nothing that stands in a topic, in a member's metadata or in a request ends a herder, or keeps it turning."""

import pytest

from tests.simulation.conftest import seeds
from tests.simulation.garbage import Vandal

_AT_ONCE = 120


@pytest.mark.parametrize("first", seeds(240, 600, _AT_ONCE))
def test_a_herder_takes_whatever_comes(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        try:
            Vandal(seed).run(120)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
