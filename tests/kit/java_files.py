"""What people start with who know Java's: its sample files, and connectors as examples on the web have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PACKAGE: Final = "org.apache.kafka.connect.mirror."
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"

#: What Kafka's own ``config/connect-mirror-maker.properties`` sets.
SAMPLE_MIRROR: Final[Mapping[str, str]] = {
    "clusters": "A, B",
    "A.bootstrap.servers": "A_host1:9092, A_host2:9092, A_host3:9092",
    "B.bootstrap.servers": "B_host1:9092, B_host2:9092, B_host3:9092",
    "A->B.enabled": "true",
    "A->B.topics": ".*",
    "B->A.enabled": "true",
    "B->A.topics": ".*",
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
}
#: What Kafka's own ``config/connect-distributed.properties`` sets.
SAMPLE_WORKER: Final[Mapping[str, str]] = {
    "bootstrap.servers": "localhost:9092",
    "group.id": "connect-cluster",
    "key.converter": JSON,
    "value.converter": JSON,
    "key.converter.schemas.enable": "true",
    "value.converter.schemas.enable": "true",
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": "1",
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": "1",
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": "1",
    "offset.flush.interval.ms": "10000",
}


def short_source(source: str) -> dict[str, str]:
    """As KIP-382 has it: no address of the target, no converters."""
    return {
        "name": "us-west-source",
        "connector.class": f"{_PACKAGE}MirrorSourceConnector",
        "source.cluster.alias": "us-west",
        "target.cluster.alias": "us-east",
        "source.cluster.bootstrap.servers": source,
        "topics": ".*",
    }


def full_examples(source: str, target: str) -> dict[str, dict[str, str]]:
    """The three connectors by name, with names kept, converters, and keys that have no effect in a Connect group."""
    common = {
        "replication.policy.class": f"{_PACKAGE}IdentityReplicationPolicy",
        "clusters": "prim, sec",
        "source.cluster.alias": "prim",
        "target.cluster.alias": "sec",
        "source.cluster.bootstrap.servers": source,
        "source.cluster.security.protocol": "PLAINTEXT",
        "target.cluster.bootstrap.servers": target,
        "target.cluster.security.protocol": "PLAINTEXT",
        "key.converter": BYTES,
        "value.converter": BYTES,
    }
    configs = {
        "mm2-msc": {
            "connector.class": f"{_PACKAGE}MirrorSourceConnector",
            "topics": "^connecttest.*",
            "tasks.max": "3",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "offset-syncs.topic.location": "target",
            "sync.topic.configs.interval.seconds": "20",
            "refresh.topics.interval.seconds": "20",
            "refresh.groups.interval.seconds": "20",
            "consumer.group.id": "mm2-msc",
            "producer.enable.idempotence": "true",
        },
        "mm2-hbc": {
            "connector.class": f"{_PACKAGE}MirrorHeartbeatConnector",
            "tasks.max": "1",
            "replication.factor": "3",
            "heartbeats.topic.replication.factor": "1",
            "emit.heartbeats.interval.seconds": "1",
        },
        "mm2-cpc": {
            "connector.class": f"{_PACKAGE}MirrorCheckpointConnector",
            "tasks.max": "2",
            "replication.factor": "1",
            "offset-syncs.topic.location": "target",
            "checkpoints.topic.replication.factor": "1",
            "emit.checkpoints.interval.seconds": "1",
            "emit.checkpoints.enabled": "true",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
        },
    }
    return {name: {"name": name, **common, **config} for name, config in configs.items()}
