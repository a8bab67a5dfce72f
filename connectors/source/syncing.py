"""What a flow's connector and tasks need for offset syncs, made from its settings and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.producer import PlainWriter
from connectors.clients import FlowClients
from connectors.settings import MirrorSourceSettings, OffsetSyncsSettings
from connectors.source.sync_topic import OffsetSyncsTopic
from connectors.source.sync_writer import SyncWriter


def topic_of(settings: MirrorSourceSettings, clients: FlowClients) -> OffsetSyncsTopic | None:
    """The topic, to be closed; None where no syncs are written."""
    syncs = settings.offset_syncs
    if syncs is None:
        return None
    return OffsetSyncsTopic(syncs, Admin(clients.offset_syncs_admin(), _place(settings, syncs)), settings.flow)


@asynccontextmanager
async def writer(settings: MirrorSourceSettings, clients: FlowClients, task: int) -> AsyncIterator[SyncWriter | None]:
    """A task's writer, which lasts as long as the context; None where no syncs are written."""
    syncs = settings.offset_syncs
    if syncs is None:
        yield None
        return
    cluster = Cluster(clients.offset_syncs_producer(task), _place(settings, syncs))
    try:
        write = PlainWriter(cluster).write
        async with SyncWriter(f"{settings.flow} task {task}", syncs.topic, syncs.lag_max, write) as made:
            yield made
    finally:
        await cluster.close()


def _place(settings: MirrorSourceSettings, syncs: OffsetSyncsSettings) -> str:
    return settings.source_alias if syncs.on_source else settings.target_alias
