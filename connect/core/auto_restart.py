"""When a failed connector or task is restarted automatically: Strimzi's rule (``AbstractConnectOperator``).

The first restart is immediate, the next ones follow 2, 6, 12, 20 ... minutes (n² + n) after the one before. The count
returns to 0 when the connector or task has run for longer than that pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.config import AtLeast, ConfigDef, Setting, Type
from connect.core.errors import ConfigError
from connect.core.model import Restarts

ENABLED: Final = "auto.restart.enabled"
MAX_RESTARTS: Final = "auto.restart.max.restarts"
MAX_BACKOFF_MINUTES: Final = "auto.restart.max.backoff.minutes"
#: They follow Kafka's own of this heading.
_GROUP: Final = "Error Handling"

AUTO_RESTART: Final = ConfigDef.of(
    Setting(
        ENABLED,
        Type.BOOLEAN,
        False,
        "Restart a connector and its tasks that fail, unless a restart cannot help; connect-mirror-maker sets true.",
        group=_GROUP,
        order=6,
        display_name="Restart automatically",
    ),
    Setting(
        MAX_RESTARTS,
        Type.INT,
        None,
        "Most automatic restarts in a row; null is no limit.",
        AtLeast(0, nullable=True),
        group=_GROUP,
        order=7,
        display_name="Maximum restarts",
    ),
    Setting(
        MAX_BACKOFF_MINUTES,
        Type.INT,
        60,
        "Longest pause between automatic restarts.",
        AtLeast(1),
        group=_GROUP,
        order=8,
        display_name="Maximum pause in minutes",
    ),
)

PERMANENT_ERROR: Final = "a restart cannot fix this error"
NO_MORE: Final = f"{MAX_RESTARTS} is reached"


@dataclass(frozen=True, slots=True)
class AutoRestart:
    """The rule of a connector. ``max_restarts`` None: no limit."""

    max_restarts: int | None = None
    max_backoff_minutes: int = 60

    @classmethod
    def of(cls, config: Mapping[str, str]) -> AutoRestart | None:
        """Return the rule that a connector's config sets; None when it is never restarted automatically.

        Raises:
            ConfigError: A value is wrong.
        """
        values = AUTO_RESTART.parse({key: config[key] for key in AUTO_RESTART.settings if key in config})
        if not values.boolean(ENABLED):
            return None
        most = None if values[MAX_RESTARTS] is None else values.integer(MAX_RESTARTS)
        return cls(most, values.integer(MAX_BACKOFF_MINUTES))

    @classmethod
    def applies(cls, config: Mapping[str, str]) -> bool:
        """Whether a connector's config has a rule; a wrong value is none."""
        try:
            return cls.of(config) is not None
        except ConfigError:
            return False

    def backoff_ms(self, count: int) -> int:
        """Return the pause after the restart of this number, which is also how long it must run to be healthy."""
        return 60_000 * min(count * count + count, self.max_backoff_minutes)

    def after_failure(self, before: Restarts, now_ms: int, *, may_recover: bool) -> Restarts:
        """Return what follows a failure at ``now_ms``: the next restart with its time, or why there is none."""
        pause_ms = self.backoff_ms(before.count)
        if before.count and now_ms - before.at_ms > pause_ms:
            before = Restarts(at_ms=before.at_ms)
        if not may_recover:
            return Restarts(before.count, before.at_ms, PERMANENT_ERROR)
        if self.max_restarts is not None and before.count >= self.max_restarts:
            return Restarts(before.count, before.at_ms, NO_MORE)
        # No longer than the pause, also where the clock was set back or is behind that of the owner before.
        at_ms = min(max(now_ms, before.at_ms + pause_ms), now_ms + pause_ms)
        return Restarts(before.count + 1, at_ms if before.count else now_ms)
