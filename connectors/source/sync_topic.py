"""The topic of offset syncs: made where it is missing, on the cluster that is to hold it.

Tasks of Java stop copying where it is missing, so a flow that shares its group with them needs it as well.
"""

from __future__ import annotations

import logging
from typing import Final

from connect.core.errors import HeliographError
from connect.kafka.admin import Admin, NewTopic, TopicExists
from connectors.settings import OffsetSyncsSettings

log = logging.getLogger(__name__)

#: Java makes the topic when its connector starts, and never again.
LOOK_EVERY_S: Final = 30.0


def topic_of_syncs(settings: OffsetSyncsSettings) -> NewTopic:
    """As Java makes it."""
    return NewTopic(settings.topic, 1, settings.replication_factor, {"cleanup.policy": "compact"})


class OffsetSyncsTopic:
    """Looks after the topic for a connector. ``label`` begins every line of the log; ``close`` closes ``admin``."""

    def __init__(self, settings: OffsetSyncsSettings, admin: Admin, label: str) -> None:
        self._wanted = topic_of_syncs(settings)
        self._admin = admin
        self._label = label
        self._is_there = False
        self._said = ""

    async def ensure(self) -> None:
        """Make the topic where it is missing. What is in the way is said once; rights are named, with the grant."""
        try:
            await self._make()
        except HeliographError as error:
            self._say(f"{error} (offset-syncs.topic.replication.factor={self._wanted.replication_factor})")
        else:
            self._is_there, self._said = True, ""

    async def close(self) -> None:
        await self._admin.close()

    async def _make(self) -> None:
        topic = self._wanted.name
        if topic in await self._admin.describe_topics([topic]):
            return
        if self._is_there:
            log.warning("%s: topic %s is gone and is made anew", self._label, topic)
            self._is_there = False
        outcome = (await self._admin.create_topics([self._wanted]))[topic]
        if outcome is None:
            log.info("%s: topic %s was made", self._label, topic)
        elif not isinstance(outcome, TopicExists):
            raise outcome

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning(
                "%s: offset syncs may have no topic: %s; looking again in %g s", self._label, text, LOOK_EVERY_S
            )
            self._said = text
