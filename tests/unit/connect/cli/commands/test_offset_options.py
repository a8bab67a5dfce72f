"""``heliograph offsets``: what it takes a client's file for, before any cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.commands.offsets import OffsetsQuestion, run_offsets
from connect.core.errors import ConfigError


def test_a_clients_file_may_hold_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOCOL", "CARRIER_PIGEON")
    file = tmp_path / "client.properties"
    file.write_text("config.providers=env\nconfig.providers.env.class=env\nsecurity.protocol=${env:PROTOCOL}\n")
    question = OffsetsQuestion(None, None, "localhost:1", file, ("g",), None, frozenset(), with_brokers=False)
    with pytest.raises(ConfigError, match=r"security.protocol is 'CARRIER_PIGEON'"):
        run_offsets(question, as_json=True, watch=False, every_s=1.0)
