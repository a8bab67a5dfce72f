"""Where the flow back is to begin, and what stands in the way of it: found by every step in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from connectors.dataplane.plan import TopicPartition
from connectors.failover.draining import CopiedEnd, FlowControl, why_back_runs
from connectors.failover.journal import StartBefore
from connectors.failover.marks import appended_up_to
from connectors.failover.site import Site
from connectors.failover.starting import passed_over, starts_due


class WayBack(NamedTuple):
    """``due`` is to be stored, and may not while there are ``objections``."""

    due: list[StartBefore]
    objections: list[str]


async def way_back(
    site: Site, ends: Mapping[TopicPartition, CopiedEnd], back: FlowControl | None, *, leaves_unreplicated: bool
) -> WayBack:
    """Look, and change nothing. ``ends`` are by source partition. Raises as the clusters."""
    due, objections = await starts_due(site, ends)
    if due and (why := await why_back_runs(site, back)):
        objections.append(
            f"{site.back.flow} runs and copies back what came from cluster {site.flow.source_alias} ({why}): stop it "
            "first"
        )
    if not leaves_unreplicated and await passed_over(site, due, ends):
        appended = await appended_up_to(site.turned())
        objections += [
            f"only cluster {site.flow.target_alias} holds {own}, which {site.back.flow} has not copied and would pass "
            "over: see heliograph unreplicated; --leave-unreplicated goes on"
            for own in await passed_over(site, due, ends, appended)
        ]
    return WayBack(due, objections)
