"""Reading from a replica in our own rack (KIP-392): which partitions are, and for how long.

A leader that is told the rack names a replica in it where there is one, in place of records (Kafka
``RackAwareReplicaSelector``). That one is asked from then on. The leader is asked again now and then, as replicas come
and go, and at once where the replica fails; it sends the records itself then, for it alone can say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Final

from connectors.dataplane.copier import PartitionCopier

#: When the leader is asked again: after Java's ``metadata.max.age.ms`` (``SubscriptionState.preferredReadReplica``).
REVISIT_S: Final = 300.0
#: How long leaders are not told the rack after a replica failed: they name it until they know that it is gone.
SHUN_S: Final = 10.0


class Nearby:
    """Of one slice; ``now_s`` is a steady clock."""

    def __init__(self, rack: str, now_s: Callable[[], float]) -> None:
        self._rack = rack
        self._now_s = now_s
        self._until_s: dict[PartitionCopier, float] = {}
        self._shunned_until_s = 0.0

    def rack(self) -> str:
        """What a fetch says."""
        return self._rack if self._now_s() >= self._shunned_until_s else ""

    def follow(self, copier: PartitionCopier) -> None:
        """Its leader named another replica."""
        self._until_s.pop(copier, None)  # what is due first stands first
        self._until_s[copier] = self._now_s() + REVISIT_S

    def __contains__(self, copier: PartitionCopier) -> bool:
        """Whether it is read from another than its leader."""
        return copier in self._until_s

    def overdue(self) -> list[PartitionCopier]:
        """Those whose leaders are to be asked again."""
        now_s = self._now_s()
        return [*takewhile(lambda copier: now_s >= self._until_s[copier], self._until_s)]

    def forget(self, copier: PartitionCopier) -> None:
        self._until_s.pop(copier, None)

    def fail(self, copier: PartitionCopier) -> None:
        """Nothing to come of the replica; of no effect where it was read from its leader."""
        if self._until_s.pop(copier, None) is not None:
            self._shunned_until_s = self._now_s() + SHUN_S
