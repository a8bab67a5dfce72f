"""What the job does where rules are refused: what gives rights is left, and what was not made is not claimed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.api.policy import ReplicationPolicy
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.authorization import AclBinding, AclFilter, Outcomes, SecurityDisabled
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.log.topic_admin import Admin
from connectors.config.connector_configs import AccessSettings
from connectors.internal_topics import Records
from connectors.policy import DefaultReplicationPolicy
from connectors.topic_sync import acl_sync
from connectors.topic_sync.acl_plan import Names
from connectors.topic_sync.acl_sync import AccessFlow, AccessNotSynced, AccessSync
from connectors.transforms.target_names import RemoteNames
from tests.kit.answers import put


def group(permission: str, principal: str) -> AclBinding:
    return AclBinding("GROUP", "app", "LITERAL", principal, "*", "READ", permission)


DENY, ALLOW = group("DENY", "User:eve"), group("ALLOW", "User:ann")
OLD_DENY, OLD_ALLOW = group("DENY", "User:old"), group("ALLOW", "User:old")

USUAL = DefaultReplicationPolicy()


class OwnPolicy(DefaultReplicationPolicy):
    """One that does not say what its remote topics begin with."""


class Clusters:
    """A source without topics, a target that refuses some rules, and the flow's records; ``steps`` in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source: set[AclBinding] | Exception = {DENY, ALLOW}
        self.target: set[AclBinding] | Exception = {OLD_ALLOW, OLD_DENY}
        self.recorded = {OLD_ALLOW, OLD_DENY}
        self.refused: set[AclBinding] = set()
        self.steps: list[str] = []
        self.asked = 0

        async def describe(cluster: object, wanted: AclFilter | None = None) -> list[AclBinding]:
            if cluster is not self:
                if isinstance(self.target, Exception):
                    raise self.target
                return sorted(self.target)
            self.asked += 1
            if isinstance(self.source, Exception):
                raise self.source
            return sorted(self.source)

        monkeypatch.setattr(acl_sync, "describe_acls", describe)
        put(monkeypatch, acl_sync, read_all_records={})
        self.job = self.made()

    def made(self, *, full: bool = True, policy: ReplicationPolicy = USUAL) -> AccessSync:
        async def create(rules: Sequence[AclBinding]) -> Outcomes:
            assert set(rules) <= self.recorded, "recorded before it is made"
            return self._change("create", rules)

        async def delete(rules: Sequence[AclBinding]) -> Outcomes:
            return self._change("delete", rules)

        admin = cast(Admin, SimpleNamespace(create_acls=create, delete_acls=delete))
        settings = AccessSettings(600, full, frozenset({"group", "topic"}), False, False, lambda name: True)
        flow = AccessFlow("us->eu", Names(RemoteNames("us", policy), lambda topic: True, lambda name: True), "m")
        records = cast("Records[AclBinding, bool]", self)
        return AccessSync(settings, flow, cast(Cluster, self), cast(Cluster, None), admin, records)

    def _change(self, verb: str, rules: Sequence[AclBinding]) -> Outcomes:
        self.steps += [f"{verb} {rule.permission}" for rule in rules]
        outcomes: Outcomes = {rule: PermanentError("no") if rule in self.refused else None for rule in rules}
        done = {rule for rule, error in outcomes.items() if error is None}
        assert isinstance(self.target, set)
        self.target = self.target | done if verb == "create" else self.target - done
        return outcomes

    async def metadata(self, topics: None) -> Any:
        return type("Metadata", (), {"topics": {}})

    async def make_topic(self) -> None:
        pass

    async def read(self) -> dict[AclBinding, bool]:
        return dict.fromkeys(self.recorded, True)

    async def store(self, values: Mapping[AclBinding, bool | None]) -> None:
        stays = {rule for rule, value in values.items() if value}
        self.recorded = (self.recorded - set(values)) | stays


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


async def test_all_goes_well(clusters: Clusters) -> None:
    await clusters.job.run()
    assert clusters.steps == ["create DENY", "delete ALLOW", "create ALLOW", "delete DENY"]
    assert clusters.target == clusters.recorded == {DENY, ALLOW}


@pytest.mark.parametrize("refused", [DENY, OLD_ALLOW])
async def test_where_none_are_taken_none_are_given(clusters: Clusters, refused: AclBinding) -> None:
    clusters.refused = {refused}
    with pytest.raises(AccessNotSynced):
        await clusters.job.run()
    assert clusters.steps == ["create DENY", "delete ALLOW"]
    assert isinstance(clusters.target, set)
    assert ALLOW not in clusters.target and OLD_DENY in clusters.target
    assert clusters.recorded == clusters.target, "what was not made is not claimed"
    asked = clusters.asked
    await clusters.job.look()
    assert clusters.asked == asked + 1, "tried again at its interval, not with every look"
    clusters.refused = set()
    await clusters.job.run()
    assert clusters.target == clusters.recorded == {DENY, ALLOW}


async def test_a_look_is_one_request_to_the_source_and_syncs_what_has_changed(clusters: Clusters) -> None:
    await clusters.job.run()
    asked, clusters.steps = clusters.asked, []
    await clusters.job.look()
    assert (clusters.asked, clusters.steps) == (asked + 1, [])
    clusters.source = {DENY}
    await clusters.job.look()
    assert clusters.steps == ["delete ALLOW"]


async def test_a_look_makes_what_another_connector_has_deleted(clusters: Clusters) -> None:
    """Two sources have a rule; the first connector makes it, so the second records nothing, and then the first one's
    source has it no longer."""
    clusters.target, clusters.recorded = {DENY, ALLOW}, set()
    await clusters.job.run()
    assert not clusters.recorded, "it was there"
    clusters.target = {ALLOW}
    await clusters.job.look()
    assert clusters.target == {DENY, ALLOW} and clusters.recorded == {DENY}
    clusters.target, clusters.steps = {ALLOW}, []
    await clusters.job.look()
    assert clusters.steps == ["create DENY"], "and what it has made itself"


async def test_what_was_refused_is_not_missed_by_looks(clusters: Clusters) -> None:
    clusters.refused = {ALLOW}
    with pytest.raises(AccessNotSynced):
        await clusters.job.run()
    clusters.steps = []
    await clusters.job.look()
    assert not clusters.steps


async def test_what_it_has_forbidden_stays_when_the_topic_is_gone(clusters: Clusters) -> None:
    pattern = AclBinding("TOPIC", "or", "PREFIXED", "User:eve", "*", "READ", "DENY")
    copy = replace(pattern, resource_name="us.orders", pattern_type="LITERAL")
    clusters.source, clusters.target, clusters.recorded = {pattern}, {copy}, {copy}
    job = clusters.made(policy=OwnPolicy())
    await job.run()
    assert clusters.target == clusters.recorded == {copy}
    clusters.source = set()
    await job.run()
    assert not clusters.target and not clusters.recorded, "with the source's rule it goes"


async def test_as_java_does_looks_are_at_the_source_alone(clusters: Clusters) -> None:
    job = clusters.made(full=False)
    await job.run()
    clusters.target = NotAuthorized("nobody asks")
    await job.look()


async def test_a_source_that_does_not_answer_is_looked_at_again(clusters: Clusters) -> None:
    rules, clusters.source = clusters.source, RetriableError("not now")
    with pytest.raises(RetriableError):
        await clusters.job.run()
    clusters.source = rules
    await clusters.job.look()
    assert clusters.target == {DENY, ALLOW}


async def test_no_authorizer_is_said_once(clusters: Clusters, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clusters.source = SecurityDisabled("cluster us has no authorizer")
    for _ in range(3):
        await clusters.job.run()
        await clusters.job.look()
    assert caplog.messages == ["us->eu: cluster us has no authorizer; ACLs are not synced"]
    assert not clusters.steps


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_missing_right_is_said_at_each_run_not_each_look(clusters: Clusters, side: str) -> None:
    job = clusters.job
    rules = getattr(clusters, side)
    setattr(clusters, side, NotAuthorized("grant DESCRIBE on the cluster"))
    for _ in range(2):
        with pytest.raises(NotAuthorized):
            await job.run()
        for _ in range(3):
            await job.look()
    assert clusters.asked == 2, "looks leave asking to the next run"
    setattr(clusters, side, rules)
    await job.run()
    assert clusters.target == {DENY, ALLOW}
    clusters.source = {DENY}
    await job.look()
    assert clusters.target == {DENY}, "looks are looks again"


async def test_a_right_that_is_taken_away_is_said_by_one_look(clusters: Clusters) -> None:
    await clusters.job.run()
    clusters.source = NotAuthorized("grant DESCRIBE on the cluster")
    with pytest.raises(NotAuthorized):
        await clusters.job.look()
    await clusters.job.look()
