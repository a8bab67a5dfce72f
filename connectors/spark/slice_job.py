"""What the job of a plain slice names, so that the driver loads nothing of what the task does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def copy_slice(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Run the slice of this task, once for each row, and return no rows; ``payload`` as in ``executor.copy_slices``."""
    from connectors.dataplane import slice as dataplane_slice

    for _ in rows:
        dataplane_slice.run_slice(payload)
    return ()


def begin(rows: Iterable[int]) -> Iterable[int]:
    """Do nothing, in a Python worker that a slice may have next."""
    return rows
