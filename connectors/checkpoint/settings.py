"""What a checkpoint connector was told, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connect.api.filters import GroupFilter, TopicFilter
from connect.api.policy import ReplicationPolicy
from connect.core.config import Values
from connect.kafka.settings import ConnectionSettings, connection_settings
from connectors.clients import Kind, Side, connector_client, inner_client_id
from connectors.config_defs import CHECKPOINT
from connectors.filter_classes import make_group_filter, make_topic_filter
from connectors.policies import make_policy

#: The keys of a task's config that its connector adds (Kafka's ``MirrorCheckpointTaskConfig``).
ASSIGNED_GROUPS = "task.assigned.groups"


@dataclass(frozen=True)
class CheckpointSettings:
    """The settings of one flow's checkpoint connector. An interval is None where its job is off.

    ``syncs_on_source``: whether the topic of offset syncs lives on the source, else on the target.
    """

    name: str
    enabled: bool
    source_alias: str
    target_alias: str
    tasks_max: int
    topic_filter: TopicFilter
    group_filter: GroupFilter
    policy: ReplicationPolicy
    admin_timeout_ms: int
    refresh_groups_interval_s: int | None
    emit_interval_s: int | None
    sync_interval_s: int | None
    replication_factor: int
    syncs_on_source: bool
    warnings: tuple[str, ...]
    _props: Mapping[str, str]

    @property
    def flow(self) -> str:
        return f"{self.source_alias}->{self.target_alias}"

    @property
    def checkpoints_topic(self) -> str:
        return self.policy.checkpoints_topic(self.source_alias)

    @property
    def offset_syncs_topic(self) -> str:
        return self.policy.offset_syncs_topic(self.target_alias if self.syncs_on_source else self.source_alias)

    @property
    def map_topic(self) -> str:
        """The offset map of the flow, on its target."""
        return f"mm2-offset-map.{self.source_alias}.internal"

    def connection(self, side: Side, kind: Kind, role: str, task: str = "") -> ConnectionSettings:
        """To one of the clusters, for a client in the role that Java gives it; ``task`` is ``-0`` in a task.

        Raises:
            ConfigError: A key is missing or wrong.
            SecurityError: A key store cannot be used.
        """
        client = connector_client(self._props, side, kind)
        client_id = inner_client_id(self.flow, self.name + task, role, client.get("client.id", ""))
        alias = self.source_alias if side == "source" else self.target_alias
        return connection_settings(client, client_id=client_id, where=f"cluster {alias}")


def checkpoint_settings(props: Mapping[str, str]) -> CheckpointSettings:
    """The settings in a checkpoint connector's configuration, references resolved. Raises ConfigError."""
    values = CHECKPOINT.parse(props)
    return CheckpointSettings(
        name=values.string("name"),
        enabled=values.boolean("enabled"),
        source_alias=values.string("source.cluster.alias"),
        target_alias=values.string("target.cluster.alias"),
        tasks_max=values.integer("tasks.max"),
        topic_filter=make_topic_filter(props),
        group_filter=make_group_filter(props),
        policy=make_policy(props),
        admin_timeout_ms=values.integer("admin.timeout.ms"),
        refresh_groups_interval_s=_interval_s(values, "refresh.groups"),
        emit_interval_s=_interval_s(values, "emit.checkpoints"),
        sync_interval_s=_interval_s(values, "sync.group.offsets"),
        replication_factor=values.integer("checkpoints.topic.replication.factor"),
        syncs_on_source=values.string("offset-syncs.topic.location") == "source",
        warnings=values.warnings,
        _props=props,
    )


def _interval_s(values: Values, name: str) -> int | None:
    """Seconds; below zero a job is off as well."""
    interval_s = values.integer(f"{name}.interval.seconds")
    return interval_s if values.boolean(f"{name}.enabled") and interval_s >= 0 else None
