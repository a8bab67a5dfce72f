"""The functions that jobs refer to by name, so that the driver imports neither the copier nor the verification.

A task runs the coroutine function that its payload names, else a slice of a copy. It gets the payload, and the stage
that passes records through Spark for ``transform.sql``, or None.
"""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final

#: A key of the payload of a job other than a slice: what its task runs, ``package.module:function``.
FUNCTION: Final = "function"
_SLICE: Final = "connectors.dataplane.slice:run"
#: The schema of the rows that Spark gets of a task, of which there are none.
SCHEMA_DDL: Final = "nothing int"


def _task(payload: dict[str, Any], stage: Any) -> Coroutine[Any, Any, None]:
    task: Coroutine[Any, Any, None] = pkgutil.resolve_name(payload.get(FUNCTION, _SLICE))(payload, stage)
    return task


def run(payload: dict[str, Any], rows: Iterable[int]) -> Iterable[int]:
    """Run a task for each row; return no rows."""
    for _ in rows:
        asyncio.run(_task(payload, None))
    return ()


def run_in_arrow(payload: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Do the same in a job of Spark Connect, for each row of its batches of pyarrow."""
    for batch in batches:
        run(payload, range(batch.num_rows))
    yield _no_rows()


def transform(payload: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Run a task with a stage for each row; yield the records for ``transform.sql``. The payload has the number of rows
    that Spark puts into a batch."""
    from connectors.dataplane.sql_stage import first_half

    for batch in batches:
        for _ in range(batch.num_rows):
            yield from first_half(payload["arrow_rows"], lambda stage: _task(payload, stage))


def collect(batches: Iterable[Any]) -> Iterator[Any]:
    """Run the other half of :func:`transform`; yield no rows."""
    from connectors.dataplane.sql_stage import second_half

    second_half(batches)
    yield _no_rows()


def _no_rows() -> Any:
    import pyarrow as pa

    # Not a constant of the module, because the first array of a process loads pandas if it is installed.
    return pa.RecordBatch.from_pylist([], schema=pa.schema([("nothing", pa.int32())]))


def begin(rows: Iterable[int]) -> Iterable[int]:
    """Do nothing: start a Python worker that a slice may use next."""
    return rows
