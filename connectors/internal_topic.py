"""A compacted topic that a connector writes into: made on the target, tried again until it is there."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.kafka.admin import Admin, NewTopic, TopicExists

log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0


async def keep_making(admin: Admin, topic: NewTopic, factor_key: str, tried: asyncio.Event | None = None) -> None:
    """Make ``topic`` where it is missing; ``tried`` is set after the first attempt.

    What may pass is tried again until it has: Java tries once, and a target that is down at that moment then has the
    topic made by a broker's ``auto.create.topics.enable``, not compacted.
    """
    wait_s, said = _FIRST_RETRY_S, ""
    while True:
        try:
            outcome = (await admin.create_topics([topic]))[topic.name]
        except HeliographError as error:
            outcome = error
        if tried is not None:
            tried.set()
        if outcome is None or isinstance(outcome, TopicExists):
            log.info("topic %s %s", topic.name, "was there already" if outcome else "was made")
            return
        if isinstance(outcome, SecurityError):
            log.warning("%s; going on as if it were there", outcome)
            return
        # Brokers that are just starting count as missing.
        may_pass = isinstance(outcome, RetriableError) or "INVALID_REPLICATION_FACTOR" in str(outcome)
        if str(outcome) != said:
            said = str(outcome)
            log.log(
                logging.WARNING if may_pass else logging.ERROR,
                "%s%s (%s=%d)",
                outcome,
                "; trying again" if may_pass else "",
                factor_key,
                topic.replication_factor,
            )
        if not may_pass:
            return
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_RETRY_S)
