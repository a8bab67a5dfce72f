"""``docs/reference`` against the declarations that it is made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.reference import index, pages, reference
from connect.core.config.client_settings import CLIENTS
from connect.core.config.connector_settings import SOURCE_CONNECTOR
from connect.core.config.worker_settings import WORKER
from connect.core.errors import ConfigError
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, SOURCE

FOLDER = Path(__file__).parents[4] / "docs" / "reference"


def test_the_pages_are_as_the_code_declares_them() -> None:
    """``python -m connect.cli.reference docs/reference`` writes them anew."""
    found = pages()
    there = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    assert there == {**{name: page.markdown() for name, page in found.items()}, "README": index(found)}


@pytest.mark.parametrize("config", [WORKER, SOURCE_CONNECTOR, SOURCE, CHECKPOINT, HEARTBEAT, *CLIENTS.values()])
def test_no_setting_is_left_out(config) -> None:
    named = {key for page in pages().values() for _, table in page.tables for key in table.settings}
    assert set(config.settings) <= named


def test_one_page_or_all() -> None:
    assert reference(["worker"]).startswith("# Worker\n")
    assert "# Mirror connectors\n" in reference()
    with pytest.raises(ConfigError, match="Use one of worker, source"):
        reference(["nope"])


def test_every_setting_says_what_it_is_for() -> None:
    settings = [each for page in pages().values() for _, table in page.tables for each in table.settings.values()]
    assert not [each.name for each in settings if len(each.doc.split()) < 2]
