"""What users want of a flow's connector, as the config topic of its group says."""

from __future__ import annotations

from connect.core.configlog import ConfigLog
from connect.core.model import TargetState
from connect.kafka.cluster import Cluster
from connect.kafka.known_topic import known_topic
from connect.kafka.topiclog import LogRecord, read_to_end


async def read_target_state(cluster: Cluster, topic: str, connector: str) -> TargetState:
    """Return STARTED as well if there is no such topic. Raises as ``read_to_end``."""
    configs = ConfigLog()
    if await known_topic(cluster, topic) is None:
        return TargetState.STARTED

    def fold(record: LogRecord) -> None:
        configs.apply(record.offset, None if record.key is None else record.key.decode(errors="replace"), record.value)

    await read_to_end(cluster, topic, fold, partitions=[0])
    return configs.target_state(connector)
