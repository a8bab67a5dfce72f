"""The functions that jobs refer to by name, so that the driver imports neither the copier nor the verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def copy_slice(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Run a slice for each row and return no rows; ``payload`` as in ``dataplane.slice.copy_slices``."""
    from connectors.dataplane import slice as dataplane_slice

    for _ in rows:
        dataplane_slice.run_slice(payload)
    return ()


def verify(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Verify ranges for each row and return no rows; ``payload`` as in ``verification.task.run_task``."""
    from connectors.verification import task

    for _ in rows:
        task.run_task(payload)
    return ()


def verify_in_arrow(payload: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Do the same in a job of Spark Connect, for each row of its batches of pyarrow."""
    import pyarrow as pa

    for batch in batches:
        verify(payload, range(batch.num_rows))
    yield pa.RecordBatch.from_pylist([], schema=pa.schema([("nothing", pa.int32())]))


def begin(rows: Iterable[int]) -> Iterable[int]:
    """Do nothing: start a Python worker that a slice may use next."""
    return rows
