"""When what has failed is started again without being asked (``autoRestart`` of a Strimzi resource). Pure.

The rule is the operator's (``AbstractConnectOperator``): at once the first time, then after 2, 6, 12, 20 ... minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connectors.strimzi.documents import Node

_MAX_BACKOFF_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class AutoRestart:
    """``max_restarts`` None: as often as it fails."""

    max_restarts: int | None = None
    max_backoff_minutes: int = _MAX_BACKOFF_MINUTES

    def backoff_s(self, restarts: int) -> float:
        """How long after the last of so many restarts the next may come, and how long it has to be well after it."""
        return 60.0 * min(restarts * restarts + restarts, self.max_backoff_minutes)


def auto_restart(connector: Node) -> AutoRestart | None:
    """What a connector's field says; None where nothing is to be restarted. Raises ConfigError for a wrong number."""
    found = connector.field("autoRestart")
    if found.value is None or found.field("enabled").text() == "false":
        return None
    backoff = _number(found, "maxBackoffMinutes")
    return AutoRestart(_number(found, "maxRestarts"), _MAX_BACKOFF_MINUTES if backoff is None else backoff)


def _number(node: Node, name: str) -> int | None:
    value = node.field(name).value
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise node.field(name).error(f"{node.path}.{name} should be a number, 0 or more")
    return value


class Restarts:
    """Those of one connector: how many there were, and whether one is due. Seconds are those of one clock."""

    def __init__(self, rule: AutoRestart) -> None:
        self._rule = rule
        self._last_s = 0.0
        self.count = 0

    def look(self, *, failed: bool, now_s: float) -> bool:
        """Whether to restart it now. One that has been well for long enough begins anew with its count."""
        backoff_s = self._rule.backoff_s(self.count)
        if not failed:
            if self.count and now_s - self._last_s > backoff_s:
                self.count = 0
            return False
        return not self.is_spent and (not self.count or now_s - self._last_s >= backoff_s)

    @property
    def is_spent(self) -> bool:
        """Whether there were as many as there may be."""
        return self._rule.max_restarts is not None and self.count >= self._rule.max_restarts

    def restarted(self, now_s: float) -> None:
        """It was asked for, whether that went well or not."""
        self.count += 1
        self._last_s = now_s
