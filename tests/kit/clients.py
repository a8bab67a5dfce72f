"""Clients of a cluster whose listener asks for nothing, closed at the end of their context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from kafka import KafkaAdminClient

from connect.kafka.cluster import Cluster
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings


def settings_of(bootstrap: str, **properties: str) -> ConnectionSettings:
    """Return the settings for these addresses; keys of ``properties`` have underscores instead of dots."""
    keys = {key.replace("_", "."): value for key, value in properties.items()}
    return connection_settings({"bootstrap.servers": bootstrap, **keys}, client_id="test-kit", where="the test")


@asynccontextmanager
async def cluster_at(bootstrap: str, alias: str | None = None, **properties: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(settings_of(bootstrap, **properties), alias)
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def cluster_and_admin(
    bootstrap: str, alias: str | None = None, **properties: str
) -> AsyncIterator[tuple[Cluster, Admin]]:
    admin = Admin(settings_of(bootstrap, **properties), alias)
    try:
        async with cluster_at(bootstrap, alias, **properties) as cluster:
            yield cluster, admin
    finally:
        await admin.close()


@contextmanager
def stock_admin(bootstrap: str) -> Iterator[Any]:
    """kafka-python's admin client, whose types are incomplete."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="test-kit")
    try:
        yield admin
    finally:
        admin.close()
