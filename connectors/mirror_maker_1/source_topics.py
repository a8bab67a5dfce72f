"""Topics that a member is to copy, as the source has them now: one that was deleted meanwhile holds up no other."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.dataplane.lost import known_topics

#: So long is asked for one that a broker may not have heard of yet; it is looked for again later.
_SHOWN_WITHIN_S: Final = 2.0


async def shown(source: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
    """Those of ``names`` that the source has. Errors as those of ``source.topics``."""
    known = await known_topics(source, names, _SHOWN_WITHIN_S)
    return dict((await source.topics(known)).topics)
