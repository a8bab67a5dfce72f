"""Hold what all copies of a process share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from connect.core.errors import PermanentError
from connect.kafka.log.topic_admin import Admin
from connect.kafka.threads import LeaseLoop
from connectors.control_link.protocol import SliceSettings
from connectors.control_link.server import LinkServer
from connectors.mirror_maker_1.config import SLICE_LEASE_MS, MirrorConsumerSettings, MirrorSettings
from connectors.source.positions.partition_pairs import Clusters
from connectors.spark.engine import SparkEngine

_ID_END: Final = "kafka-mirror-maker"


class UnsendableRecord(PermanentError):
    """A record can never be sent, and the process is to end."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What one member of a group gets: ``number`` counts members of this process, ``instance`` is unique to the
    process. ``clusters`` are shared by the members of one source."""

    settings: MirrorSettings
    source: MirrorConsumerSettings
    number: int
    instance: str
    engine: SparkEngine
    links: LinkServer
    leases: LeaseLoop
    clusters: Clusters
    admin: Admin

    @property
    def name(self) -> str:
        """The member's name in messages."""
        return f"{self.source.flow} stream {self.number}"

    def transactional_id(self) -> str:
        """Return the id by which the target can fence us; a group's ids share a prefix, for one grant."""
        return f"{self.source.group.group_id}-{self.source.name}-{self.instance}.{self.number}-{_ID_END}"

    def slice_settings(self) -> SliceSettings:
        settings, source = self.settings, self.source
        client_id = f"{source.group.client_id}-{self.number}"
        plain = SliceSettings(
            flow=source.flow,
            source_alias=source.flow_name.source,
            target_alias=source.flow_name.target,
            task=self.number,
            source=source.connection.with_client_id(client_id).to_wire(),
            target=settings.target.with_client_id(f"{settings.target.client_id}-{self.number}").to_wire(),
            read_committed=source.read_committed,
            rack=source.rack,
            lease_ms=SLICE_LEASE_MS,
            skip_refused=not settings.options.aborts,
            compression=settings.compression,
        )
        named: dict[str, Any] = {**source.fetching}
        if settings.batch_bytes is not None:
            named["batch_bytes"] = settings.batch_bytes
        return replace(plain, **named)
