"""What a run would change on a cluster, as data (pure): planned, shown before, then applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connect.core.acls import AclBinding


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """``topic`` on the target, for ``source_topic``; empty where no topic of the source stands behind it."""

    topic: str
    source_topic: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """From ``have`` partitions to ``want``."""

    topic: str
    source_topic: str
    have: int
    want: int


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """One setting of a topic; ``after`` None resets it to the cluster's default. ``before`` is what is in force."""

    topic: str
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """``topic`` is to go, as ``source_topic`` is gone since ``gone_since_ms``; not before ``due_ms`` (since 1970)."""

    topic: str
    source_topic: str
    gone_since_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """A group without members, to the next record to read; ``before`` None where it has stored nothing."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class CreateAcl:
    binding: AclBinding


@dataclass(frozen=True, slots=True)
class DeleteAcl:
    """Only ever of a rule that this flow has made."""

    binding: AclBinding


Change = CreateTopic | AddPartitions | AlterConfig | DeleteTopic | MoveGroup | CreateAcl | DeleteAcl
