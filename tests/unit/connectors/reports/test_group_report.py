"""What a report says of groups: their lag on both sides, how they are translated, and why they are not synced."""

from __future__ import annotations

from typing import Any

import pytest

from connect.kafka.log.committed_offsets import CLASSIC, SHARE, GroupListing
from connectors.config.connector_configs import CheckpointSettings, checkpoint_settings
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, Groups, How
from connectors.reports.group_report import GroupsSeen, groups_as_json, sync_state

IDLE, ACTIVE = GroupListing(CLASSIC, "consumer", "Empty"), GroupListing(CLASSIC, "consumer", "Stable")


def settings(**changed: str) -> CheckpointSettings:
    return checkpoint_settings(
        {
            "name": "MirrorCheckpointConnector",
            "connector.class": "org.apache.kafka.connect.mirror.MirrorCheckpointConnector",
            "source.cluster.bootstrap.servers": "us:9092",
            "target.cluster.bootstrap.servers": "eu:9092",
            "source.cluster.alias": "us",
            "target.cluster.alias": "eu",
            "sync.group.offsets.enabled": "true",
            **{key.replace("_", "."): value for key, value in changed.items()},
        }
    )


def moved(group: str, partition: int, at: int, before: int | None, after: int, how: How = How.EXACT) -> GroupMove:
    return GroupMove(group, ("orders", partition), at, ("us.orders", partition), before, "", after, "", how)


@pytest.mark.parametrize(
    ("changed", "group", "here", "there", "move", "why", "needs_attention"),
    [
        ({}, "mail", IDLE, IDLE, moved("mail", 0, 7, 5, 5), "", False),
        ({"sync_group_offsets_enabled": "false"}, "mail", IDLE, None, None, "off: sync.group.offsets.enabled", False),
        ({"emit_checkpoints_enabled": "false"}, "mail", IDLE, None, None, "off: emit.checkpoints.enabled", False),
        ({"groups_exclude": "mail"}, "mail", IDLE, None, None, "filtered: groups and groups.exclude", False),
        ({}, "mail", IDLE, ACTIVE, moved("mail", 0, 7, 5, 5), "on the target it has members", True),
        ({}, "mail", GroupListing(SHARE, "share", "Empty"), None, None, "a share group has no offset", True),
        ({}, "a,b", IDLE, None, moved("a,b", 0, 7, None, 5), "list separated by commas", True),
        ({}, "mail", IDLE, IDLE, moved("mail", 0, 7, 9, 5), "1 partition: it is ahead", True),
        ({}, "mail", IDLE, None, moved("mail", 0, 7, None, 5), "1 partition to be moved by a sync, every 60 s", False),
        ({}, "mail", IDLE, None, None, "no partition of it is mirrored", False),
    ],
)
def test_why_a_group_is_not_synced(
    changed: dict[str, str], group: str, here: Any, there: Any, move: Any, why: str, needs_attention: bool
) -> None:
    found = sync_state(settings(**changed), group, here, there, [] if move is None else [move])
    assert (found.why == "", found.needs_attention) == (why == "", needs_attention)
    assert why in found.why


def seen() -> GroupsSeen:
    moves = (
        moved("mail", 0, 60, 40, 40),
        moved("mail", 1, 10, None, 8, How.SYNCS),
        moved("billing", 0, 100, 80, 80),
        moved("audit", 0, 99, 70, 70),
    )
    findings = (
        GroupFinding("audit", GroupRule.USED_AT_TARGET, "on the target it has members"),
        GroupFinding("audit", GroupRule.NOT_MIRRORED, "reads logs, which no flow copies"),
    )
    names = ("audit", "billing", "mail")
    return GroupsSeen(
        read=names,
        groups=Groups(names, moves, findings),
        at_source=dict.fromkeys(names, IDLE),
        at_target={"audit": ACTIVE, "billing": IDLE, "mail": IDLE},
        source_ends={("orders", 0): 100, ("orders", 1): 30},
        target_ends={("us.orders", 0): 80, ("us.orders", 1): 28},
        checkpoint_ms={"mail": 5},
    )


def test_groups_that_need_attention_come_first_and_then_those_with_the_highest_lag() -> None:
    found = groups_as_json(settings(), seen(), 7, 2, with_partitions=False)
    assert [row["group"] for row in found["groups"]] == ["audit", "mail"], "a group without lag is left out"
    assert (found["matching"], found["read"], found["sync"]) == (7, 3, "every 60 s")
    audit, mail = found["groups"]
    assert audit["findings"] == ["reads logs, which no flow copies"], "its members are in its state"
    assert audit["why_not_synced"] == "on the target it has members (it is Stable)"
    assert (mail["source_lag"], mail["target_lag"], mail["not_on_target"]) == (60, 40, 1)
    assert (mail["exact"], mail["by_syncs"], mail["checkpoint_ms"], "partitions" in mail) == (1, 1, 5, False)


def test_a_group_has_its_partitions_with_both_positions() -> None:
    found = groups_as_json(settings(), seen(), 1, 1, with_partitions=True, search="ORD")
    (row,) = found["groups"][0]["partitions"]
    assert (row["topic"], row["offset"], row["source_lag"]) == ("orders", 99, 1)
    assert (row["to_topic"], row["old"], row["new"], row["target_lag"], row["by"]) == ("us.orders", 70, 70, 10, "exact")
    found = groups_as_json(settings(), seen(), 1, 1, with_partitions=True, search="payments")
    assert found["groups"][0]["partitions"] == []
