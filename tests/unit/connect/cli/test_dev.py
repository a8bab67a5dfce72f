from __future__ import annotations

import pytest

from connect.cli.dev import dev
from connect.core.errors import ConfigError


@pytest.mark.parametrize("clusters", ["", ",", "us,us", "us, eu ,us"])
def test_clusters_must_be_named_and_differ(clusters: str) -> None:
    with pytest.raises(ConfigError, match=r"--clusters: .* Use names such as us,eu"):
        dev(clusters)


@pytest.mark.parametrize("alias", ["a/b", "a b", "../up", "a.b"])
def test_an_alias_that_is_no_file_name_is_named(alias: str) -> None:
    with pytest.raises(ConfigError) as raised:
        dev(f"us,{alias}")
    assert str(raised.value).startswith(f"--clusters: {alias} is not an alias")


def test_ports_beyond_the_last_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="--port-base 65533 leaves too few ports for 2 clusters of 2 nodes"):
        dev("us,eu", 2, 65_533)
