"""Open the two clusters of a flow as a failover does, from the config of its checkpoint connector.

A worker has no ``mm2.properties``. So what the file says of the reverse flow is derived: the names are the defaults,
and the flow counts as enabled if it has stored an offset map.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.log.topic_admin import Admin, known_topic
from connect.kafka.security.connection_settings import open_stores
from connectors.config.connector_configs import (
    BYTE_ARRAY_CONVERTER,
    CONVERTERS,
    CheckpointSettings,
    MirrorSourceSettings,
    checkpoint_settings,
    source_settings,
)
from connectors.config.mm2_properties import Connector
from connectors.failover.clusters_and_lease import Site
from connectors.internal_topics import read_all_positions

_OTHER: Final = {"source": "target", "target": "source"}
#: For each of the two reads that find names.
_LOOK_S: Final = 5.0


@asynccontextmanager
async def flow_site(props: Mapping[str, str], worker: Mapping[str, str]) -> AsyncIterator[Site]:
    """Open a site for reading. ``props`` is the config of a checkpoint connector, ``worker`` that of its worker.

    Raises:
        ConfigError: A setting is invalid.
    """
    await open_stores(props)
    checkpoints = checkpoint_settings(props)
    here, there = checkpoints.source_alias, checkpoints.target_alias
    source_client = checkpoints.connection("source", "admin", "checkpoint-source-admin")
    target_client = checkpoints.connection("target", "admin", "checkpoint-target-admin")
    async with AsyncExitStack() as closing:
        source, target = Cluster(source_client, here), Cluster(target_client, there)
        admins = Admin(source_client, here), Admin(target_client, there)
        for one in (source, target, *admins):
            closing.push_async_callback(one.close)
        flow = _settings(props, worker, await _connector(checkpoints, target))
        back_worker = {**worker, "group.id": f"{there}-mm2", "offset.storage.topic": f"mm2-offsets.{there}.internal"}
        back = _settings(turned(props), back_worker, Connector.SOURCE.value)
        yield Site(
            flow=flow,
            back=replace(back, enabled=await _has_map(source, back.map_topic)),
            checkpoints=checkpoints,
            source=source,
            target=target,
            source_admin=admins[0],
            target_admin=admins[1],
            flow_workers=worker["group.id"],
            back_workers=back_worker["group.id"],
        )


def turned(props: Mapping[str, str]) -> dict[str, str]:
    """Return a connector's config with source and target exchanged."""
    changed = {}
    for key, value in props.items():
        side, dot, rest = key.partition(".")
        changed[f"{_OTHER[side]}.{rest}" if dot and side in _OTHER else key] = value
    return changed


def _settings(props: Mapping[str, str], worker: Mapping[str, str], name: str) -> MirrorSourceSettings:
    # Checkpoints may have other converters than records.
    return source_settings({**props, **dict.fromkeys(CONVERTERS, BYTE_ARRAY_CONVERTER), "name": name}, worker)


async def _connector(checkpoints: CheckpointSettings, target: Cluster) -> str:
    """Return the name under which the flow's positions are stored; if there are several or none, that of a dedicated
    mirror."""
    usual = Connector.SOURCE.value
    try:
        async with asyncio.timeout(_LOOK_S):
            stored = await read_all_positions(target, checkpoints.map_topic)
    except (HeliographError, TimeoutError):
        return usual  # the reads that follow say what is wrong
    names = {name for name, _ in stored}
    return names.pop() if len(names) == 1 else usual


async def _has_map(source: Cluster, map_topic: str) -> bool:
    try:
        async with asyncio.timeout(_LOOK_S):
            return await known_topic(source, map_topic) is not None
    except (HeliographError, TimeoutError):
        return False
