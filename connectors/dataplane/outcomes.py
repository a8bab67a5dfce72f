"""What a transformation makes of records, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from connect.wire.records import Record
from connectors.dataplane.plan import PartitionPlan


@dataclass(frozen=True, slots=True)
class Unfit:
    """A record that could not be transformed: ``reason`` for people, without what stands in the record but for
    a topic that is made of it.

    ``stops``: it is not to be left out, whatever ``errors.tolerance`` says.
    """

    reason: str
    stops: bool = False


#: Of the records of one call, in their order; None for each that is dropped.
Outcome = list[Record | Unfit | None]
Done = Callable[[Outcome], None]
#: Gets records of a partition, and what takes their outcome, after those of all calls before.
Submit = Callable[[PartitionPlan, Sequence[Record], Done], None]
