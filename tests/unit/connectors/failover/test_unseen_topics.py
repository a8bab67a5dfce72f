"""What the flow back stores on the source, where one-way mirrors have no rights: brokers refuse topics that are not
there in the same way."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, NotAuthorized, TopicMetadata
from connectors.failover import collect_snapshot, journal, reverse_flow
from connectors.failover.drain import CopiedEnd, FirstRules
from connectors.failover.offset_lookup import Maps, TargetOffsets
from connectors.failover.plan import FailoverOptions
from connectors.failover.snapshot import Groups
from connectors.failover.words import verified_line
from connectors.flow_progress import FlowLag
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, put

BACK_MAP, BACK_OFFSETS = "mm2-offset-map.eu.internal", "mm2-offsets.eu.internal"
_UNKNOWN, _NOT_AUTHORIZED = 3, 29


class Us:
    """Has nothing, and shows nothing of the flow back."""

    name = "us"

    async def metadata(self, topics: Collection[str]) -> Any:
        codes = {name: _NOT_AUTHORIZED if name in (BACK_MAP, BACK_OFFSETS) else _UNKNOWN for name in topics}
        return SimpleNamespace(topics={name: TopicMetadata(name, None, code, {}) for name, code in codes.items()})

    async def topics(self, names: Collection[str]) -> Any:
        cluster: Any = self
        return await Cluster.topics(cluster, names)


class Eu(Us):
    """Has nothing."""

    name = "eu"


def flow(source: str, target: str, *, enabled: bool) -> Any:
    offsets = f"mm2-offsets.{source}.internal"
    return SimpleNamespace(
        flow=f"{source}->{target}", name="MirrorSourceConnector", source_alias=source, target_alias=target,
        policy=DefaultReplicationPolicy(), map_topic=f"mm2-offset-map.{source}.internal", offsets_topic=offsets,
        offsets_topics=(offsets,), enabled=enabled, should_mirror=lambda _: True, remote_topic=lambda topic: topic,
    )  # fmt: skip


def site(*, enabled: bool) -> Any:
    """Topics keep their names."""
    flows = {"flow": flow("us", "eu", enabled=True), "back": flow("eu", "us", enabled=enabled)}
    return SimpleNamespace(**flows, source=Us(), target=Eu(), maps=Maps())


def places(of: Any) -> TargetOffsets:
    of.checkpoints = SimpleNamespace(
        syncs_on_source=True, offset_syncs_topic="syncs", flow="us->eu", source_alias="us", target_alias="eu",
        policy=DefaultReplicationPolicy(),
    )  # fmt: skip
    return TargetOffsets(of, of.source)


async def test_the_map_of_a_flow_back_that_is_not_enabled_need_not_be_seen() -> None:
    found = places(site(enabled=False))
    await found.begin()
    (note,) = found.notes()
    assert note.startswith("eu->us is not enabled, so its offset map counts as empty: ")
    assert note.endswith(f"grant DESCRIBE on topic {BACK_MAP}")


async def test_who_looks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    of = site(enabled=False)
    of.checkpoints, of.others, of.flow_workers, of.back_workers = None, (), "us-mm2", "eu-mm2"
    of.turned = lambda: of
    put(monkeypatch, collect_snapshot, why_silent={}, not_copied={}, _refused={}, _operators={}, read_positions={})
    put(monkeypatch, collect_snapshot, read_heartbeats={}, only_at_source={}, find_diverged={}, topic_values={})
    put(monkeypatch, collect_snapshot, reverse_flow_check=SimpleNamespace(objections=[]), read_last_run=None)
    put(monkeypatch, collect_snapshot, first_rules=FirstRules(doubt="the rules are not shown"))
    put(monkeypatch, journal, moved={})
    monkeypatch.setattr(collect_snapshot, "LagReader", lambda *_: SimpleNamespace(all=answers(FlowLag(()))))
    look_at = SimpleNamespace(groups=answers(Groups()), seen_at_ms={})
    monkeypatch.setattr(collect_snapshot, "GroupsLook", lambda *_: look_at)
    monkeypatch.setattr(collect_snapshot, "TargetOffsets", lambda *_: places(of))
    found = await collect_snapshot.collect(of, FailoverOptions(lambda _: True, denies_writes=True))
    assert any(note.startswith("eu->us is not enabled") for note in found.notes)
    assert "the rules are not shown" in found.notes
    found = await collect_snapshot.collect(of, FailoverOptions(lambda _: True))
    assert "the rules are not shown" not in found.notes
    refuses = AsyncMock(side_effect=NotAuthorized("grant READ"))
    monkeypatch.setattr(collect_snapshot, "read_last_run", refuses)
    found = await collect_snapshot.collect(of, FailoverOptions(lambda _: True))
    assert refuses.called and (found.obstacles, found.verified) == ((), None)
    assert verified_line(found, 0).text == (
        "what the last verification found could not be read: grant READ; --verify compares every record once the flow "
        "is drained"
    )


async def test_that_of_one_that_is_enabled_has_to_be() -> None:
    with pytest.raises(NotAuthorized, match=f"grant DESCRIBE on topic {BACK_MAP}"):
        await places(site(enabled=True)).begin()


@pytest.mark.parametrize("target_topic", ["us.orders", "orders"])
async def test_where_the_flow_back_begins_is_asked_for(monkeypatch: pytest.MonkeyPatch, target_topic: str) -> None:
    """Nobody could store it either, and that would be known once the flow is drained and stopped."""
    source = TopicPartition("orders", 0)
    copied = Position("orders", 0, UUID(int=1), 9, 2, target_topic, 0, UUID(int=2), 9, "", -1, -1, 0)

    put(monkeypatch, reverse_flow, read_positions={source: copied})
    ends, of = {source: CopiedEnd(9)}, site(enabled=False)
    if target_topic == "us.orders":
        assert await reverse_flow.starts_due(of, ends) == ([], [], {})
        return
    with pytest.raises(NotAuthorized, match=rf"grant DESCRIBE on topic {BACK_OFFSETS}, CREATE, READ and WRITE"):
        await reverse_flow.starts_due(of, ends)
