"""A flow that a run before has stopped, and that is behind: nothing more is copied until it runs again."""

from __future__ import annotations

from typing import Final

from connect.core.errors import PermanentError
from connectors.failover.behind import behind
from connectors.failover.draining import FlowControl, Tell, copied_ends
from connectors.failover.site import Site
from connectors.failover.starting import starts_due
from connectors.lag_reader import LagReader

_STOPPED: Final = frozenset({"STOPPED", "STOPPING"})


async def start_again(site: Site, control: FlowControl | None, tell: Tell) -> None:
    """Where its workers can be told, and it has something to copy.

    Raises PermanentError where it would copy back what came from its target, and as the clusters and the workers.
    """
    if control is None or await control.state() not in _STOPPED:
        return
    now = await behind(site, LagReader(site.flow, site.source, site.target))
    if now.is_copied:
        return
    flow, there = site.flow, site.turned()
    due, refused = await starts_due(there, await copied_ends(there))
    if due or refused:
        raise PermanentError(
            f"{flow.flow} is stopped, {now}, and would copy back what {there.flow.flow} has brought to cluster "
            f"{flow.source_alias}: heliograph failback --from {flow.source_alias} --to {flow.target_alias} has it "
            "begin behind that"
        )
    await control.resume()
    tell(f"{flow.flow} is stopped, {now}: its workers were told to start it again")
