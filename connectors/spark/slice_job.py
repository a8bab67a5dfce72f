"""The functions that jobs refer to by name, so that the driver imports neither the copier nor the verification."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any, Final

#: A key of the payload of a job other than a slice: what its task runs.
FUNCTION: Final = "function"


def copy_slice(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Run a slice for each row and return no rows; ``payload`` as in ``dataplane.slice.copy_slices``."""
    from connectors.dataplane import slice as dataplane_slice

    for _ in rows:
        dataplane_slice.run_slice(payload)
    return ()


def run_named(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Run the coroutine function that ``payload`` names, ``package.module:function``, for each row; return no rows. It
    gets the payload, and the stage that passes records through Spark for ``transform.sql``, here None."""
    for _ in rows:
        asyncio.run(pkgutil.resolve_name(payload[FUNCTION])(payload, None))
    return ()


def run_named_in_arrow(payload: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Do the same in a job of Spark Connect, for each row of its batches of pyarrow."""
    import pyarrow as pa

    for batch in batches:
        run_named(payload, range(batch.num_rows))
    yield pa.RecordBatch.from_pylist([], schema=pa.schema([("nothing", pa.int32())]))


def transform_named(payload: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Run the same function with a stage for each row; yield the records for ``transform.sql``."""
    from connectors.dataplane.sql_stage import first_half

    function = pkgutil.resolve_name(payload[FUNCTION])
    for batch in batches:
        for _ in range(batch.num_rows):
            yield from first_half(payload["arrow_rows"], lambda stage: function(payload, stage))


def begin(rows: Iterable[int]) -> Iterable[int]:
    """Do nothing: start a Python worker that a slice may use next."""
    return rows
