from __future__ import annotations

import socket

import pytest

from connect.embedded import cluster_config


@pytest.fixture
def range_of_ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """All that there is to choose from, whatever share of the ports these tests have; none was chosen yet."""
    every = range(31_900, 32_000)
    monkeypatch.setattr(cluster_config, "_LOWEST", every.start)
    monkeypatch.setattr(cluster_config, "_HIGHEST", every.stop)
    monkeypatch.setattr(cluster_config, "_given", set())
    return every


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((cluster_config.HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not cluster_config.is_free(port)
    assert cluster_config.is_free(port)


def test_chosen_ports_differ_and_leave_out_the_taken(range_of_ports: range) -> None:
    taken = range_of_ports[:-10]
    chosen = cluster_config.choose(5, taken)
    assert len(set(chosen)) == 5
    assert not set(chosen) & set(taken)


def test_no_port_is_chosen_twice_as_long_as_there_are_others(
    range_of_ports: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was given one may not listen on it yet."""
    monkeypatch.setattr("random.shuffle", lambda _: None)
    (first,) = cluster_config.choose(1)
    assert first not in cluster_config.choose(3)
    assert cluster_config.choose(1, [port for port in range_of_ports if port != first]) == [first]


def test_a_machine_without_free_ports_is_an_error_and_no_endless_loop(range_of_ports: range) -> None:
    with pytest.raises(OSError, match="free ports"):
        cluster_config.choose(1, range_of_ports)
