"""One line in the log for each partition that was taken over: operators and tests read it."""

from __future__ import annotations

import logging

from connectors.dataplane.plan import PartitionPlan, TopicPartition
from connectors.dataplane.resumed import Resumed
from connectors.positions import Position

log = logging.getLogger("connectors.source.resume")


def tell(flow: str, one: Resumed) -> None:
    """Where a partition goes on, and whether that was proven. ``may_double``: at most so many records come again, or
    ``unknown``;
    ``may_be_there``: at most so many are named as lost though they are at the target."""
    plan = one.plan
    if one.fallback:
        log.warning(
            "resumed %s %s: surplus=%d verified=false fallback=%s may_double=%s may_be_there=%d source_offset=%d "
            "reason=%s",
            flow,
            plan.source,
            one.surplus_records,
            "gap" if one.may_be_there and one.may_double == 0 else "at-least-once",
            "unknown" if one.may_double is None else one.may_double,
            one.may_be_there,
            plan.next_source_offset,
            one.fallback.replace(" ", "_"),
        )
    else:
        log.info(
            "resumed %s %s: surplus=%d verified=true fallback=none source_offset=%d target_offset=%d",
            flow,
            plan.source,
            one.surplus_records,
            plan.next_source_offset,
            plan.target_end,
        )


def tell_gone(flow: str, source: TopicPartition, arrived: int, lost_from: int) -> None:
    """What had arrived of a source topic that is gone: by how many offsets less is lost."""
    log.warning(
        "resumed %s %s: surplus=%d verified=false fallback=gap may_double=0 may_be_there=%d source_offset=%d "
        "reason=its_source_topic_is_gone",
        flow,
        source,
        arrived,
        arrived,
        lost_from,
    )


def tell_committed(flow: str, plan: PartitionPlan, position: Position) -> None:
    """Where a partition goes on that was stored together with its records; ``aborted`` offsets behind it, those of
    markers too, hold nothing that counts."""
    log.info(
        "resumed %s %s: surplus=0 aborted=%d verified=true fallback=none source_offset=%d target_offset=%d",
        flow,
        plan.source,
        plan.target_end - position.target_end,
        plan.next_source_offset,
        plan.target_end,
    )
