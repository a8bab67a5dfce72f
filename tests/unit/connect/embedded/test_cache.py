from __future__ import annotations

from pathlib import Path

import pytest

from connect.embedded.java import cache_dir


def test_xdg_cache_home_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "heliograph"


@pytest.mark.parametrize("value", [None, "", "relative/folder"])
def test_otherwise_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_dir() == tmp_path / ".cache" / "heliograph"
