"""What a task of MirrorSource is told, and what it is lent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from connect.kafka.admin import Admin
from connect.kafka.offsets import EARLIEST
from connectors.dataplane.plan import ONE_WAY, SliceSettings, TopicPartition, Ways
from connectors.flow_name import FlowName
from connectors.gaps import GapPolicy
from connectors.partition_states import StateRecords
from connectors.source.ledger import Entry
from connectors.source.links import LinkServer
from connectors.source.sync_writer import SyncWriter
from connectors.source.takeover import Clusters
from connectors.spark.engine import SparkEngine


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Of one task: ``epoch_ms`` is the length of a Spark job, ``flush_interval_ms`` that of Java's offsets.
    ``ways``: how records of a topic of the source are told apart."""

    flow: FlowName
    transactional_id: str
    partitions: tuple[TopicPartition, ...]
    remote_topic: Callable[[str], str]
    slice: SliceSettings
    epoch_ms: int = 3_600_000
    flush_interval_ms: int = 60_000
    reset_to: int = EARLIEST
    logs_skipped: bool = False
    connector: str = ""
    #: why an entry stopped and what to do about it; None: as a connector's user does, over REST
    told: Callable[[Entry], str] | None = None
    gap_policy: GapPolicy = field(default_factory=GapPolicy)
    initial_group: str = ""
    ways: Callable[[str], Ways] = lambda _: ONE_WAY
    transaction_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What the worker lends its tasks."""

    engine: SparkEngine
    links: LinkServer
    clusters: Clusters
    admin: Admin
    #: The task's own, where offset syncs are written; whoever starts the task ends it.
    syncs: SyncWriter | None = None
    #: Where states of partitions are noted.
    states: StateRecords | None = None
    #: Whether the work is ours, asked in the lease thread. By default a predecessor is left to the fence.
    holds: Callable[[], bool] = lambda: True
