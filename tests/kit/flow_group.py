"""The group of one flow as its own topics and its coordinator show it: a dedicated mirror need not have a REST API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from connect.core.config_topic import ConfigLog
from connect.core.errors import RetriableError
from connect.core.herder.membership import decode_assignment
from connect.core.model import State
from connect.core.status_and_offset_topics import StatusLog
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from tests.kit.clients import settings_of
from tests.kit.groups import describe
from tests.kit.processes import wait_until

SOURCE: Final = "MirrorSourceConnector"
#: What the group's coordinator says of a group at rest.
_AT_REST: Final = "Stable"


@dataclass(frozen=True, slots=True)
class Round:
    """A group at rest: its leader's URL, and how many members it has."""

    leader_url: str
    members: int


class FlowGroup:
    """The group of the flow from ``alias`` to the cluster at ``bootstrap``; use as a context manager."""

    def __init__(self, bootstrap: str, alias: str) -> None:
        self._alias = alias
        self._runner = asyncio.Runner()
        self._cluster = Cluster(settings_of(bootstrap))

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._cluster.close())
        self._runner.close()

    def round(self) -> Round | None:
        """None while there is no group, or a rebalance is under way."""
        return self._runner.run(self._round())

    def await_round(self, members: int, deadline_s: float) -> Round:
        def found() -> Round | None:
            now = self.round()
            return now if now is not None and now.members == members else None

        answer = wait_until(found, deadline_s, f"{self._alias}'s group rests with {members} members")
        assert answer is not None, "that is what was waited for"
        return answer

    def running(self, connector: str = SOURCE) -> dict[str, str]:
        """The worker id of what is RUNNING of one connector: it (by its name), and its tasks (``name-0``)."""
        log = StatusLog()
        self._fold("status", lambda record: log.apply(_text(record.key), record.value))
        statuses = {connector: log.status(connector)} | {
            f"{connector}-{number}": status for number, status in log.tasks(connector).items()
        }
        return {
            part: status.worker_id
            for part, status in statuses.items()
            if status is not None and status.state is State.RUNNING
        }

    def configs(self) -> ConfigLog:
        log = ConfigLog()
        self._fold("configs", lambda record: log.apply(record.offset + 1, _text(record.key), record.value))
        return log

    def _fold(self, topic: str, apply: Callable[[LogRecord], object]) -> None:
        """As much as there is: nothing of a topic that is not there yet."""
        try:
            self._runner.run(read_to_end(self._cluster, f"mm2-{topic}.{self._alias}.internal", _ignoring(apply)))
        except RetriableError:
            return

    async def _round(self) -> Round | None:
        picture = await describe(self._cluster, f"{self._alias}-mm2")
        if picture is None or picture.state != _AT_REST:
            return None
        assignments = [decode_assignment(one.assignment) for one in picture.members.values() if one.assignment]
        return Round(assignments[0].leader_url, len(assignments)) if assignments else None


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode()


def _ignoring(apply: Callable[[LogRecord], object]) -> Callable[[LogRecord], None]:
    def taken(record: LogRecord) -> None:
        apply(record)

    return taken
