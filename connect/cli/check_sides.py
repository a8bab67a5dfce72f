"""The clusters of a mirror's connector as its clients reach them, key stores read. Nobody is asked here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from connect.cli.check_clusters import Sides
from connect.core.errors import ConfigError
from connect.core.worker_config import WorkerConfig
from connect.kafka.admin import NewTopic
from connect.kafka.settings import ConnectionSettings, connection_settings
from connectors.clients import Kind, Side, connector_client, flow_clients
from connectors.settings import MirrorSourceSettings, source_settings


def sides_of(
    name: str, java_class: str, props: Mapping[str, str], worker: WorkerConfig, hidden: Collection[str] = ()
) -> Sides:
    """The clusters, and what the connector ``name`` needs there; ``props`` are resolved, but for the keys ``hidden``,
    whose values are not known here. A cluster that needs one of them has no connection.

    Raises:
        ConfigError: A key is missing or wrong; it is named as ``props`` have it.
        SecurityError: A key store cannot be used.
    """
    props = {**props, "name": name, "connector.class": java_class}
    settings = source_settings(props, worker.props)
    of_source, of_target = _connections(props, settings, worker, hidden)
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


def hidden_of(props: Mapping[str, str], side: Side, hidden: Collection[str]) -> list[str]:
    """The keys among ``hidden`` without which the cluster of a side cannot be asked."""
    if not hidden:
        return []
    keys = dict.fromkeys(key for name in connector_client(props, side, "admin") for key in _places(name, side, "admin"))
    return [key for key in keys if key in hidden]


def _connections(
    props: Mapping[str, str], settings: MirrorSourceSettings, worker: WorkerConfig, hidden: Collection[str]
) -> tuple[ConnectionSettings | None, ConnectionSettings | None]:
    def located(error: ConfigError, side: Side, kind: Kind | None) -> ConfigError:
        places = _places(error.key or "", side, kind)
        key = next((place for place in places if place in props), places[-1])
        return ConfigError(error.message.replace(error.key or "", key, 1), key)

    def admin(side: Side, alias: str) -> ConnectionSettings | None:
        if hidden_of(props, side, hidden):
            return None
        try:
            own = connector_client(props, side, "admin")
            return connection_settings(own, client_id=own.get("client.id", ""), where=f"cluster {alias}")
        except ConfigError as error:
            raise located(error, side, "admin") from None

    source, target = settings.source_alias, settings.target_alias
    if hidden:
        return admin("source", source), admin("target", target)
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
