from __future__ import annotations

import socket

import pytest

from connect.embedded import ports


@pytest.fixture
def range_of_ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """All that there is to choose from, whatever share of the ports these tests have; none was chosen yet."""
    every = range(31_900, 32_000)
    monkeypatch.setattr(ports, "_LOWEST", every.start)
    monkeypatch.setattr(ports, "_HIGHEST", every.stop)
    monkeypatch.setattr(ports, "_given", set())
    return every


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_chosen_ports_differ_and_leave_out_the_taken(range_of_ports: range) -> None:
    taken = range_of_ports[:-10]
    chosen = ports.choose(5, taken)
    assert len(set(chosen)) == 5
    assert not set(chosen) & set(taken)


def test_no_port_is_chosen_twice_as_long_as_there_are_others(
    range_of_ports: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was given one may not listen on it yet."""
    monkeypatch.setattr("random.shuffle", lambda _: None)
    (first,) = ports.choose(1)
    assert first not in ports.choose(3)
    assert ports.choose(1, [port for port in range_of_ports if port != first]) == [first]


def test_a_machine_without_free_ports_is_an_error_and_no_endless_loop(range_of_ports: range) -> None:
    with pytest.raises(OSError, match="free ports"):
        ports.choose(1, range_of_ports)
