"""Topics that may be missing: what cannot be seen is not taken for what is not there."""

from __future__ import annotations

from typing import Final

from connect.kafka.cluster import Cluster, TopicMetadata

_UNKNOWN_TOPIC_OR_PARTITION: Final = 3


async def known_topic(cluster: Cluster, name: str) -> TopicMetadata | None:
    """A topic's metadata; None where there is no such topic.

    Raises:
        NotAuthorized: DESCRIBE on it is missing, so that nobody can tell.
        RetriableError: the cluster does not answer, or cannot tell at the moment.
    """
    found = (await cluster.metadata({name})).topics.get(name)
    if found is None or found.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        return None
    return (await cluster.topics({name})).topics[name] if found.error_code else found
