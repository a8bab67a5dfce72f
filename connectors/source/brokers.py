"""What brokers must be able to do, by the versions of the APIs that they offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster


class BrokersTooOld(PermanentError):
    """A cluster cannot do what an exact copy needs."""


@dataclass(frozen=True, slots=True)
class Needed:
    """An API in a version, with the release of Kafka that first had it and what it is needed for."""

    api: str
    api_key: int
    version: int
    release: str
    purpose: str


OF_SOURCE: Final = Needed("Fetch", 1, 12, "2.7", "a source tells a reader that its log was truncated")
OF_TARGET: Final = Needed("DescribeProducers", 61, 0, "2.8", "a target tells what it has of a writer that was lost")


def refuse_old_brokers(cluster: str, offered: Mapping[int, tuple[int, int]], needed: Needed) -> None:
    """``offered``: API key to its lowest and highest version. Raises :class:`BrokersTooOld`."""
    highest = offered.get(needed.api_key, (0, -1))[1]
    if highest < needed.version:
        has = f"offer {needed.api} up to version {highest}" if highest >= 0 else f"do not offer {needed.api}"
        raise BrokersTooOld(
            f"cluster {cluster}: its brokers are older than Apache Kafka {needed.release} ({has}); since then "
            f"{needed.purpose}. Use brokers of {needed.release} or later"
        )


async def refuse_old_clusters(source: Cluster, target: Cluster) -> None:
    """Raise :class:`BrokersTooOld`, or RetriableError if a cluster does not answer."""
    for cluster, needed in ((source, OF_SOURCE), (target, OF_TARGET)):
        refuse_old_brokers(cluster.name, (await cluster.any_connection()).versions, needed)
