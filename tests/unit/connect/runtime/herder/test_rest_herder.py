"""What a worker answers its group's others."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core import herder_api
from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.herder.state import HerderMode
from connect.runtime.herder.rest_herder import RuntimeHerder
from tests.kit.virtual_time import in_virtual_time


async def done() -> None: ...


def made(**given: object) -> RuntimeHerder:
    """With nothing around it but what is given."""
    parts: dict[str, Any] = dict.fromkeys(each.name for each in fields(RuntimeHerder) if each.init)
    return RuntimeHerder(**{**parts, "started": done, **given})


def refusing(error: Exception) -> RuntimeHerder:
    """A leader whose rounds of fencing end so."""

    async def fence(name: str) -> None:
        raise error

    core, fencing = SimpleNamespace(check_signature=lambda signature: None), SimpleNamespace(fence=fence)
    return made(core=core, fencing=fencing)


async def test_a_stored_config_has_each_key_without_effect_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def validate(*_: object) -> herder_api.ConfigInfos:
        return herder_api.ConfigInfosWithWarnings(
            "c", 0, (), (), ("topicz is not known and has no effect; is topics meant?",)
        )

    monkeypatch.setattr(RuntimeHerder, "validate", validate)
    assert await made()._validated("mirror", {"topicz": "x"}) == {"topicz": "x"}
    assert "connector mirror: topicz is not known and has no effect; is topics meant?" in caplog.text


@pytest.mark.parametrize(("silent_s", "is_healthy"), [(9.9, True), (10.1, False), (float("inf"), False)])
async def test_a_worker_is_healthy_as_long_as_it_reaches_its_group(silent_s: float, is_healthy: bool) -> None:
    config = SimpleNamespace(session_timeout_ms=10_000, group_id="g")
    health = made(driver=SimpleNamespace(turn=done), config=config, silent_s=lambda: silent_s).health()
    if is_healthy:
        await health
    else:
        with pytest.raises(
            herder_api.Unhealthy, match=r"has not reached its group g .* session\.timeout\.ms \(10000\)"
        ):
            await health


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (SecurityError("grant WRITE on transactional id g-c-0"), herder_api.BadRequest),
        (RetriableError("no broker answers"), RetriableError),
        # By a leader that has come since.
        (PermanentError("another process has taken it over"), PermanentError),
    ],
    ids=repr,
)
async def test_rights_that_a_fence_lacks_fail_the_task_at_once(error: Exception, answered: type[Exception]) -> None:
    with pytest.raises(answered, match=str(error)):
        await refusing(error).fence_zombies("c", herder_api.Signature(None, None, b""))


def test_a_worker_that_starts_or_has_left_is_in_no_rebalance() -> None:
    core = SimpleNamespace(mode=HerderMode.LOADING, rejoin=False)
    herder = made(core=core)
    seen = set()
    for core.mode in HerderMode:
        if herder.is_rebalancing():
            seen.add(core.mode)
    assert seen == {HerderMode.AWAY, HerderMode.JOINING, HerderMode.RESOLVING}
    core.mode, core.rejoin = HerderMode.MEMBER, True
    assert herder.is_rebalancing(), "it rejoins after its operation in progress"


class OtherMembers:
    """Java's workers, of which only the last has the class, and the first refuses, or without an error hangs."""

    def __init__(self, first: HeliographError | None) -> None:
        self.first = first
        self.asked: list[str] = []

    async def validate(self, url: str, connector_class: str, config: object) -> herder_api.ConfigInfos | None:
        self.asked.append(url)
        if url == "http://java1/":
            if self.first is None:
                await asyncio.Event().wait()
            else:
                raise self.first
        return herder_api.ConfigInfos(connector_class, 0, (), ()) if url == "http://java3/" else None


def without_class(*, is_leader: bool, java_urls: tuple[str, ...] = (), leader_url: str = "http://leader/") -> Any:
    """A worker that does not have the class JavaSource."""
    snapshot = SimpleNamespace(connector_config=lambda name: {"connector.class": "JavaSource"} if name else None)
    return SimpleNamespace(
        can_run=lambda config: config["connector.class"] != "JavaSource",
        is_leader=is_leader,
        leader_url=leader_url,
        java_urls=java_urls,
        snapshot=snapshot,
    )


@pytest.mark.parametrize("error", [RetriableError("no answer"), PermanentError("no answer without a password")])
async def test_a_class_that_only_java_members_have_is_validated_by_one_of_them(error: HeliographError) -> None:
    config, others = {"connector.class": "JavaSource", "name": "j"}, OtherMembers(error)
    core = without_class(is_leader=True, java_urls=("http://java1/", "http://java2/", "http://java3/"))
    herder = made(core=core, internal=others)
    assert (await herder.validate("JavaSource", config)).name == "JavaSource"
    assert others.asked == list(core.java_urls)
    with pytest.raises(herder_api.NotAssigned) as elsewhere:
        await herder.connector_offsets("j")
    assert elsewhere.value.url == "http://java1/"
    core.java_urls = ("http://java1/", "http://java2/")
    with pytest.raises(type(error), match="no answer"):
        await herder.validate("JavaSource", config)


@in_virtual_time
async def test_a_java_member_that_hangs_leaves_time_for_others_and_the_answer() -> None:
    core = without_class(is_leader=True, java_urls=("http://java1/", "http://java3/"))
    herder = made(core=core, internal=OtherMembers(None))
    assert (await herder.validate("JavaSource", {"connector.class": "JavaSource"})).name == "JavaSource"
    for urls in (("http://java1/", "http://java2/"), ("http://java1/",)):
        core.java_urls = urls
        with pytest.raises(RetriableError, match="java1/ did not validate"):
            await herder.validate("JavaSource", {"connector.class": "JavaSource"})


@in_virtual_time
async def test_java_members_share_the_time_that_those_before_them_left() -> None:
    """The first answers at once, so the second has all of the 20 s."""
    core = without_class(is_leader=True, java_urls=("http://java2/", "http://java1/"))
    with pytest.raises(RetriableError, match=r"java1/ did not validate the config within 20\.0 s"):
        await made(core=core, internal=OtherMembers(None)).validate("JavaSource", {"connector.class": "JavaSource"})


async def test_who_follows_refers_to_the_leader_for_a_class_that_it_does_not_have() -> None:
    herder = made(core=without_class(is_leader=False, java_urls=("http://left/",)))  # known since it was leader
    for asked in (herder.validate("JavaSource", {"connector.class": "JavaSource"}), herder.connector_offsets("j")):
        with pytest.raises(herder_api.NotLeader) as elsewhere:
            await asked
        assert elsewhere.value.url == "http://leader/"
