"""What ``heliograph lag`` says of a flow whose connector is stopped: the command that starts it, ready to be typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.commands.lag import _rest_url, _stopped
from connectors.config.mm2_properties import Flow, load

FILE = "clusters = us, eu\nus->eu.enabled = true\n"


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ("", "URL"),
        ("dedicated.mode.enable.public.rest = true", "http://localhost:8083/us/eu"),
        ("dedicated.mode.enable.public.rest = true\nlisteners = https://:9", "https://localhost:9/us/eu"),
        ("dedicated.mode.enable.public.rest = true\nlisteners = http://mirror:9", "http://mirror:9/us/eu"),
    ],
)
def test_the_address_is_that_of_the_file(tmp_path: Path, more: str, url: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE + more)
    assert _rest_url(Flow(load(file), "us", "eu")) == url


def test_a_connector_that_is_stopped_comes_with_its_command() -> None:
    stopped, paused = (_stopped("Source", state, "http://one:1/us/eu") for state in ("STOPPED", "PAUSED"))
    assert stopped is not None and paused is not None
    assert stopped.endswith("heliograph connectors resume Source --rest http://one:1/us/eu")
    assert "run heliograph failback" in stopped and "failback" not in paused
    assert _stopped("Source", "RUNNING", "http://one:1/us/eu") is None
