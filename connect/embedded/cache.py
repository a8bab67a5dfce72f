"""The one folder in which files that can be fetched or made again are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/heliograph``, or ``~/.cache/heliograph`` where that is unset or relative (XDG)."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "heliograph"
