from __future__ import annotations

import socket

import pytest

from connect.embedded import ports


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_chosen_ports_differ_and_leave_out_the_taken() -> None:
    taken = range(20_000, 31_990)
    chosen = ports.choose(5, taken)
    assert len(set(chosen)) == 5
    assert not set(chosen) & set(taken)


def test_a_machine_without_free_ports_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(OSError, match="free ports"):
        ports.choose(1, range(20_000, 32_001))
