"""The functions that jobs of plain slices refer to by name, so that the driver does not import the copier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def copy_slice(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Run a slice for each row and return no rows; ``payload`` as in ``dataplane.slice.copy_slices``."""
    from connectors.dataplane import slice as dataplane_slice

    for _ in rows:
        dataplane_slice.run_slice(payload)
    return ()


def begin(rows: Iterable[int]) -> Iterable[int]:
    """Do nothing: start a Python worker that a slice may use next."""
    return rows
