"""Automatic restarts of what fails on this worker: which there were, and what follows a failure.

The worker that runs a connector or a task knows its error, so it decides and restarts. What it decided is in the status
topic, where the next owner finds it after a rebalance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from connect.core.auto_restart import AutoRestart
from connect.core.configlog import ConfigLog
from connect.core.errors import ConfigError
from connect.core.model import Restarts, TaskId, connector_of
from connect.core.statuslog import StatusLog

log = logging.getLogger(__name__)


class AutoRestarts:
    """Of one worker.

    Args:
        configs: Returns the config topic as it was read.
        now_ms: The wall clock, in milliseconds since 1970.
    """

    def __init__(self, configs: Callable[[], ConfigLog], statuses: StatusLog, now_ms: Callable[[], int]) -> None:
        self._configs = configs
        self._statuses = statuses
        self._now_ms = now_ms
        self._last: dict[str | TaskId, Restarts] = {}
        #: How many restarts this worker has decided on.
        self.totals: dict[str | TaskId, int] = {}

    def last(self, work: str | TaskId) -> Restarts | None:
        """Return the restarts in a row as this worker or the owner before it has decided last; None: there were none,
        or the connector's config allows none."""
        return None if self._rule(connector_of(work)) is None else self._last_of(work)

    def _last_of(self, work: str | TaskId) -> Restarts | None:
        status = self._statuses.status(work)
        known = (self._last.get(work), None if status is None else status.restarts)
        return max((each for each in known if each is not None), key=lambda each: each.at_ms, default=None)

    def failed(self, work: str | TaskId, *, may_recover: bool) -> int | None:
        """Decide what follows a failure. Returns how long to wait for the restart, in ms; None: there is none."""
        rule = self._rule(connector_of(work))
        if rule is None:
            return None
        now_ms = self._now_ms()
        after = rule.after_failure(self._last_of(work) or Restarts(), now_ms, may_recover=may_recover)
        self._forget_deleted()
        self._last[work] = after
        kind = "connector" if isinstance(work, str) else "task"
        if after.given_up is not None:
            log.error("%s %s is not restarted automatically: %s", kind, work, after.given_up)
            return None
        self.totals[work] = self.totals.get(work, 0) + 1
        wait_ms = max(0, after.at_ms - now_ms)
        log.warning("%s %s: automatic restart %d in a row in %d s", kind, work, after.count, wait_ms / 1000)
        return wait_ms

    def _rule(self, connector: str) -> AutoRestart | None:
        try:
            return AutoRestart.of(self._configs().connector_config(connector) or {})
        except ConfigError as error:
            log.error("connector %s is not restarted automatically: %s", connector, error)
            return None

    def _forget_deleted(self) -> None:
        configs = self._configs()
        for work in [each for each in self._last if connector_of(each) not in configs]:
            del self._last[work]
            self.totals.pop(work, None)
