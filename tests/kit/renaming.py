"""A message handler of a user: topics get a beginning."""

from __future__ import annotations

from connect.api.message_handler import MirroredRecord


class Renaming:
    """``--message.handler tests.kit.renaming:Renaming --message.handler.args us.``"""

    def __init__(self, beginning: str) -> None:
        self._beginning = beginning

    def handle(self, record: MirroredRecord) -> list[MirroredRecord]:
        return [record._replace(topic=self._beginning + record.topic, partition=None)]
