"""Partitions whose last writer cannot be fenced, because the target refuses the transactional id or has forgotten it.

The successor keeps the producer id, raises the epoch itself, and begins at sequence 0 with one batch alone: its append
shuts the lower epoch out of the partition. What landed between the scan of the target and that append is copied again
behind it, which :func:`connectors.source.resume_log.tell_late` announces.
"""

from __future__ import annotations

import logging

from connect.kafka.transactions import TransactionalIdRefused

log = logging.getLogger(__name__)


class MissingRights:
    """Announces once per flow that it runs without transactional ids. ``id_prefix`` begins all of its ids."""

    def __init__(self, flow: str = "", id_prefix: str = "") -> None:
        self._flow = flow
        self._id_prefix = id_prefix
        self._is_announced = False

    def announce(self, error: TransactionalIdRefused) -> None:
        """A transactional id was refused, and the copy continues without it."""
        if self._is_announced:
            return
        self._is_announced = True
        log.warning(
            "%s: %s (one grant for all: WRITE and DESCRIBE on transactional ids that begin with %s). Until then "
            "a predecessor cannot be fenced: after a crash records may appear twice, which the log announces, and "
            "positions are stored without transactions. Do not run a second mirror of this flow",
            self._flow,
            error,
            self._id_prefix,
        )
