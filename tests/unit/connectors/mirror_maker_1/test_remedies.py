"""What MirrorMaker 1's users are told to do about a partition that stopped: nothing that only a connector has."""

from __future__ import annotations

from uuid import UUID

import pytest

from connectors.dataplane import log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.error_codes import explained
from connectors.dataplane.log_divergence import Verdict
from connectors.formats.types import QUARANTINED, STOPPED, TopicPartition
from connectors.mirror_maker_1.by_key_task import stop_message, stop_message_at_end

ONE = TopicPartition("orders", 0)
OF_CONNECTORS = (
    "errors.tolerance",
    "the flow",
    "of topics",
    "is altered or reset",
    "on.topic.recreated",
    "on.source.gap",
)
RESET = "nothing more of orders-0 is copied until group g has no members and its offset of orders-0 was set with"


@pytest.mark.parametrize("code", sorted({*error_codes.TOO_LARGE, 17, 29, 31, 32, 44, 76, 87, 100, 9999}))
def test_what_the_target_refuses_is_told_in_options_of_the_command_line(code: int) -> None:
    reason = explained(code, ONE, "the record at offset 3")
    for found in (stop_message(QUARANTINED, ONE, reason, "g"), stop_message_at_end(QUARANTINED, ONE, reason, "g")):
        assert found.startswith("target orders-0 refuses the record at offset 3: ")
        assert found.endswith((", then start kafka-mirror-maker again", "; then start kafka-mirror-maker again"))
        assert not any(words in found for words in OF_CONNECTORS)
        assert ("--abort.on.send.failure false" in found) is ("errors.tolerance" in reason)


def test_a_record_that_a_handler_fails_on_may_be_left_out() -> None:
    found = stop_message_at_end(QUARANTINED, ONE, "the handler fails: ValueError", "g")
    assert found == (
        "the handler fails: ValueError; with --abort.on.send.failure false such records are skipped, logged and counted"
    )


@pytest.mark.parametrize(
    "verdict",
    [
        log_divergence.target_truncated(ONE, 50, 40, ONE, 100, "its end is lower"),
        log_divergence.source_another(ONE, 100, 3),
    ],
)
def test_a_log_that_is_not_what_it_was_is_gone_on_with_by_the_groups_offset(verdict: Verdict) -> None:
    assert verdict.gap is not None
    found = stop_message(verdict.gap.state, ONE, verdict.reason, "g")
    assert f"; {RESET} kafka-consumer-groups --reset-offsets" in found
    assert not any(words in found for words in OF_CONNECTORS)
    assert stop_message(verdict.gap.state, ONE, found, "g") == found, "it is said once"


def test_what_a_topic_made_anew_copies_again_by_itself_needs_nobody() -> None:
    verdict = log_divergence.recreated_topic("target", "orders", UUID(int=2), UUID(int=1), ONE)
    assert verdict.gap is not None
    found = stop_message(verdict.gap.state, ONE, verdict.reason, "g")
    assert found == log_divergence.facts(verdict.reason)
    assert stop_message(STOPPED, ONE, "it was cut", "g") == "it was cut"
