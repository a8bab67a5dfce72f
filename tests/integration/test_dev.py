"""``heliograph dev`` as its user runs it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient

from connect.embedded import cluster_config
from tests.kit.processes import gone, tree, wait_until

pytestmark = pytest.mark.integration

#: Not only an end: on a machine without a Kafka yet, the first of these tests fetches it.
_EXIT_S = 150.0
#: What a first start on a machine says.
PREPARING = ("downloading ", "waiting for another process ", "recording the classes ")
_COMMAND = [str(Path(sys.executable).with_name("heliograph")), "dev"]


@contextmanager
def dev(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = subprocess.Popen(
        [*_COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        yield command
    finally:
        command.kill()
        command.communicate()


def first_lines(command: subprocess.Popen[str], count: int) -> list[str]:
    assert command.stdout is not None
    return [command.stdout.readline().rstrip("\n") for _ in range(count)]


def until(command: subprocess.Popen[str], words: str) -> str:
    """What it prints up to the line with ``words``."""
    assert command.stdout is not None
    lines: list[str] = []
    while words not in (line := command.stdout.readline()):
        assert line, "".join(lines)
        lines.append(line)
    return "".join([*lines, line])


def reported(err: str) -> list[str]:
    """The lines that are there on every machine, whether it had a Kafka yet or not."""
    return [line for line in err.splitlines() if not line.startswith(PREPARING)]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_clusters_serve_until_a_signal_and_leave_nothing(tmp_path: Path, number: signal.Signals) -> None:
    port = cluster_config.choose(1)[0]
    with dev("--clusters", "us", "--port-base", str(port), folder=tmp_path) as command:
        assert first_lines(command, 2) == ["clusters = us", f"us.bootstrap.servers = {cluster_config.HOST}:{port}"]
        admin = KafkaAdminClient(bootstrap_servers=f"{cluster_config.HOST}:{port}")
        assert len(admin.describe_cluster()["brokers"]) == 1
        admin.close()
        below = tree(command.pid)[1:]
        assert below
        command.send_signal(number)
        out, err = command.communicate(timeout=_EXIT_S)
        assert (command.returncode, reported(err)) == (0, [])
        assert out.endswith("stopping\n")
        wait_until(lambda: gone(below), _EXIT_S, "nothing it started is left")
    assert list(tmp_path.iterdir()) == []


def test_the_death_of_a_broker_ends_nothing_and_a_hangup_starts_it_again(tmp_path: Path) -> None:
    with dev("--clusters", "us", folder=tmp_path) as command:
        printed = until(command, "# Ctrl-C ")
        pid = int(printed.split("# Brokers of us: process ")[1].split()[0])
        os.kill(pid, signal.SIGKILL)
        assert Path(until(command, "has ended").rpartition("Its log: ")[2].strip()).is_file()
        assert until(command, "To start it again: ").endswith(f"kill -HUP {command.pid}\n")
        command.send_signal(signal.SIGHUP)
        back = int(until(command, "broker 1 is process ").split()[-1])
        assert back != pid
        assert psutil.Process(back).is_running()
        command.send_signal(signal.SIGTERM)
        _, err = command.communicate(timeout=_EXIT_S)
        assert command.returncode == 0
        assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_closed_terminal_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    ours, its = pty.openpty()

    def own_terminal() -> None:
        # These tests may run without a terminal, and then they ignore its end.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = subprocess.Popen(
        [*_COMMAND, "--clusters", "us"],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
        preexec_fn=own_terminal,  # noqa: PLW1509 (one thread only)
    )
    os.close(its)
    try:
        printed = b""
        while b"# Ctrl-C " not in printed:
            printed += os.read(ours, 65536)
        below = tree(command.pid)[1:]
        os.close(ours)
        command.wait(_EXIT_S)
        wait_until(lambda: gone(below), _EXIT_S, "nothing it started is left")
    finally:
        command.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_line_and_a_code(tmp_path: Path) -> None:
    with socket.create_server((cluster_config.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with dev("--clusters", "us", "--port-base", str(port), folder=tmp_path) as command:
            _, err = command.communicate(timeout=_EXIT_S)
    assert command.returncode == 1
    (line,) = reported(err)
    assert f"cluster us: port {port} is in use" in line
