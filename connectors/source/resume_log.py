"""One line in the log for each partition that was taken over: operators and tests read it."""

from __future__ import annotations

import logging

from connectors.dataplane.plan import PartitionPlan, TopicPartition
from connectors.dataplane.resume import Resumed
from connectors.positions import Position

log = logging.getLogger("connectors.source.resume")


def tell(flow: str, one: Resumed) -> None:
    """Log where a partition continues; ``may_double``: at most so many records appear twice."""
    plan = one.plan
    if one.fallback or one.may_double:
        log.warning(
            "resumed %s %s: surplus=%d verified=%s fallback=at-least-once may_double=%d source_offset=%d reason=%s",
            flow,
            plan.source,
            one.arrived,
            "false" if one.fallback else "true",
            one.may_double,
            plan.next_source_offset,
            (one.fallback or _LATE).replace(" ", "_"),
        )
    else:
        log.info(
            "resumed %s %s: surplus=%d verified=true fallback=none source_offset=%d target_offset=%d",
            flow,
            plan.source,
            one.arrived,
            plan.next_source_offset,
            plan.target_end,
        )


_LATE = "batches of a predecessor that could not be fenced came in late"


def tell_late(flow: str, source: TopicPartition, late: int) -> None:
    """Log how many records at most an unfenced predecessor wrote behind the scan of the target."""
    log.warning(
        "resumed %s %s: surplus=0 verified=false fallback=at-least-once may_double=%d reason=%s",
        flow,
        source,
        late,
        _LATE.replace(" ", "_"),
    )


def tell_committed(flow: str, plan: PartitionPlan, position: Position) -> None:
    """Log where a partition continues that was stored together with its records; ``aborted``: so many offsets behind it
    hold nothing that counts, markers included."""
    log.info(
        "resumed %s %s: surplus=0 aborted=%d verified=true fallback=none source_offset=%d target_offset=%d",
        flow,
        plan.source,
        plan.target_end - position.target_end,
        plan.next_source_offset,
        plan.target_end,
    )
