"""The clusters of a mirror's connector as its clients reach them, key stores read. Nobody is asked here."""

from __future__ import annotations

from collections.abc import Mapping

from connect.cli.check_clusters import Sides
from connect.core.errors import ConfigError
from connect.core.model import NewTopic
from connect.core.worker_config import WorkerConfig
from connect.kafka.settings import ConnectionSettings
from connectors.clients import Kind, Side, flow_clients
from connectors.settings import MirrorSourceSettings, source_settings


def sides_of(name: str, java_class: str, props: Mapping[str, str], worker: WorkerConfig) -> Sides:
    """Return the clusters, and what the connector ``name`` needs there; ``props`` are resolved.

    Raises:
        ConfigError: A key is missing or wrong; it is named as ``props`` have it.
        SecurityError: A key store cannot be used.
    """
    props = {**props, "name": name, "connector.class": java_class}
    settings = source_settings(props, worker.props)
    of_source, of_target = _connections(props, settings, worker)
    mirrors = java_class.endswith("MirrorSourceConnector")
    return Sides(
        name or settings.flow,
        settings.source_alias,
        settings.target_alias,
        of_source,
        of_target,
        settings if mirrors else None,
        [NewTopic(settings.map_topic, -1, settings.offsets_topic_replication_factor)] if mirrors else [],
        None,
    )


def _connections(
    props: Mapping[str, str], settings: MirrorSourceSettings, worker: WorkerConfig
) -> tuple[ConnectionSettings, ConnectionSettings]:
    def located(error: ConfigError, side: Side, kind: Kind | None) -> ConfigError:
        places = _places(error.key or "", side, kind)
        key = next((place for place in places if place in props), places[-1])
        return ConfigError(error.message.replace(error.key or "", key, 1), key)

    source, target = settings.source_alias, settings.target_alias
    own = {"client.id": "", **worker.props}
    clients = flow_clients(settings.flow, props, own, source=source, target=target, locate=located)
    return clients.source_admin(), clients.target_admin()


def _places(key: str, side: Side, kind: Kind | None) -> list[str]:
    """Where a connector's config may have a client's key, the place that wins first."""
    of_cluster = f"{side}.cluster.{key}"
    if kind is None:
        return [of_cluster]
    of_records = [f"producer.override.{key}"] if kind == "producer" else []
    return [*of_records, f"{side}.{kind}.{key}", f"{kind}.{key}", of_cluster]
