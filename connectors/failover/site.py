"""The clusters of a failover, and what the file says of the flows between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from connect.core.errors import ConfigError
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connectors.checkpoint.settings import CheckpointSettings, checkpoint_settings
from connectors.failover.target_offsets import Maps
from connectors.flows import Connector, Flow, MirrorMakerConfig
from connectors.settings import MirrorSourceSettings


@dataclass(frozen=True, slots=True)
class Site:
    """``flow`` goes to where readers go, ``back`` the other way; it need not be enabled."""

    flow: MirrorSourceSettings
    back: MirrorSourceSettings
    checkpoints: CheckpointSettings
    source: Cluster
    target: Cluster
    target_admin: Admin
    source_admin: Admin
    #: The groups of the workers that run either flow.
    flow_workers: str
    back_workers: str
    #: Aliases of the file's other clusters.
    others: tuple[str, ...] = ()
    #: Runs that hold a lease with these connections.
    held: set[str] = field(default_factory=set)
    maps: Maps = field(default_factory=Maps)

    def turned(self) -> Site:
        """The same for who goes the other way. ``checkpoints`` stay, which only say where groups stand."""
        return replace(
            self,
            flow=self.back,
            back=self.flow,
            source=self.target,
            target=self.source,
            target_admin=self.source_admin,
            source_admin=self.target_admin,
            flow_workers=self.back_workers,
            back_workers=self.flow_workers,
        )


@asynccontextmanager
async def site(config: MirrorMakerConfig, source: str, target: str) -> AsyncIterator[Site]:
    """Opened; nothing is asked yet. Raises ConfigError where the file does not know a cluster, or has no flow there."""
    for alias in (source, target):
        if alias not in config.clusters:
            raise ConfigError(
                f"{alias} is no cluster of the file, which has {', '.join(config.clusters)}", None, config.file
            )
    if source == target:
        raise ConfigError("--from and --to are the same cluster", None)
    flow, back = Flow(config, source, target), Flow(config, target, source)
    if not flow.enabled and not back.enabled:
        raise ConfigError(f"it mirrors neither {flow} nor {back}", f"{flow}.enabled", config.file)
    clients = flow.clients()
    async with AsyncExitStack() as closing:
        ends = Cluster(clients.source_admin(), source), Cluster(clients.target_admin(), target)
        admins = Admin(clients.source_admin(), source), Admin(clients.target_admin(), target)
        for one in (*ends, *admins):
            closing.push_async_callback(one.close)
        yield Site(
            flow=flow.settings(),
            back=back.settings(),
            checkpoints=checkpoint_settings(config.resolved(flow.connector_config(Connector.CHECKPOINT))),
            source=ends[0],
            target=ends[1],
            source_admin=admins[0],
            target_admin=admins[1],
            flow_workers=flow.worker_config()["group.id"],
            back_workers=back.worker_config()["group.id"],
            others=tuple(alias for alias in config.clusters if alias not in (source, target)),
        )
