"""What stands still when a failover looks, who is shut out of what, and what counts as copied."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka import authorization
from connect.kafka.authorization import AclBinding
from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log import topic_admin
from connectors.dataplane.batches import error_codes
from connectors.dataplane.log_divergence import known_topics
from connectors.failover import collect_snapshot, drain, execute, failback_and_undo
from connectors.failover.drain import Behind, CopiedEnd, still_open, without_heartbeats
from connectors.failover.journal import FailoverRun, StartBefore
from connectors.failover.plan import FailoverOptions, Plan
from connectors.failover.reverse_flow import Due
from connectors.failover.snapshot import Snapshot
from connectors.flow_progress import FlowLag, lag_of
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.policy import DefaultReplicationPolicy
from tests.kit.answers import answers, fails, put

ORDERS = TopicPartition("orders", 0)
POSITION = Position("orders", 0, None, 30, 4, "us.orders", 0, None, 37, "writer", 7, 0, 30)


def topic(name: str, *, error_code: int = 0) -> TopicMetadata:
    partitions = {} if error_code else {0: PartitionMetadata(1, 0, (1,), 0)}
    return TopicMetadata(name, None, error_code, partitions)


def site(**more: Any) -> Any:
    names = {"flow": "us->eu", "source_alias": "us", "target_alias": "eu"}
    flow = SimpleNamespace(**names, should_mirror=lambda name: name != "excluded")
    return SimpleNamespace(flow=flow, target=SimpleNamespace(name="eu"), **more)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one topic that is there, of one that may not be seen, of one that is gone, and of one that is excluded."""
    names = ("orders", "secret", "deleted", "excluded")

    async def read_states(*_: Any) -> dict[TopicPartition, PartitionState]:
        found = {TopicPartition(name, 0): PartitionState("waiting", f"of {name}", "t", 0) for name in names}
        return {**found, TopicPartition("orders", 7): PartitionState("waiting", "of before it was recreated", "t", 0)}

    async def known_topics(_: Any, wanted: Any, for_s: float) -> dict[str, TopicMetadata]:
        assert set(wanted) == {"orders", "secret", "deleted"}
        return {"orders": topic("orders"), "secret": topic("secret", error_code=error_codes.TOPIC_AUTHORIZATION_FAILED)}

    monkeypatch.setattr(collect_snapshot, "read_states", read_states)
    monkeypatch.setattr(collect_snapshot, "record_settings", lambda _: None)
    monkeypatch.setattr(collect_snapshot, "known_topics", known_topics)


@pytest.mark.usefixtures("noted")
async def test_a_topic_that_the_flow_has_no_more_is_not_in_the_way() -> None:
    source = cast(Any, object())
    assert await collect_snapshot.not_copied(site(), source) == {
        "orders-0": "it is waiting: of orders",
        "secret-0": "it is waiting: of secret",
    }


@pytest.mark.usefixtures("noted")
async def test_a_source_that_is_gone_is_not_asked_and_what_was_not_copied_is_noted() -> None:
    stopped = await collect_snapshot.not_copied(site(), None)
    assert list(stopped) == ["deleted-0", "orders-0", "orders-7", "secret-0"]
    (note,) = collect_snapshot.as_notes({**stopped, **{f"t-{at}": "it is waiting" for at in range(9)}})
    assert note.startswith("not copied to their ends: deleted-0: it is waiting: of deleted; orders-0: ")
    assert note.endswith("; t-0: it is waiting and 8 more")
    assert collect_snapshot.as_notes({}) == []


async def test_nobody_is_shut_out_of_a_topic_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster would answer that it does not know it, which a fence takes for not yet."""
    fenced: list[Any] = []

    async def known_topics(_: Any, names: Any) -> dict[str, TopicMetadata]:
        assert names == {"us.orders", "us.deleted", "us.leaderless"}
        led = topic("us.leaderless")
        leaderless = replace(led, partitions={0: PartitionMetadata(-1, 0, (1,), 5)})
        return {"us.orders": topic("us.orders"), "us.leaderless": leaderless}

    async def fence(_: Any, name: str, partitions: Any) -> None:
        fenced.append((name, partitions))

    monkeypatch.setattr(drain, "known_topics", known_topics)
    monkeypatch.setattr(drain, "fence", fence)
    gone = replace(POSITION, target_topic="us.deleted", target_partition=1)
    alone = replace(gone, transactional_id="another")
    leaderless = replace(POSITION, target_topic="us.leaderless")
    unclean = {TopicPartition("orders", at): one for at, one in enumerate((POSITION, gone, alone, leaderless))}
    monkeypatch.setattr(drain, "read_positions", answers(unclean))
    await drain.fence_writers(site(), print)
    assert fenced == [("writer", [("us.orders", 0)])]


async def test_what_a_writer_left_is_looked_for_where_the_log_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    position = replace(POSITION, target_topic_id=UUID(int=1))
    put(monkeypatch, drain, list_offsets={TopicPartition("us.orders", 0): 50})
    target: Any = None  # nobody has to be asked for records
    for topic_id, end in ((1, 37), (2, 0)):
        known: Any = SimpleNamespace(topic_id=UUID(int=topic_id), partitions={0: None})
        assert await drain._end_of(target, position, known) == CopiedEnd(end)
    assert await drain._end_of(target, position, None) == CopiedEnd(0)


def test_heartbeats_are_not_waited_for_and_open_transactions_are() -> None:
    lags = [lag_of("orders", 0, "us.orders", 30, 0, 30, -1), lag_of("heartbeats", 0, "us.heartbeats", 5, 0, 9, -1)]
    kept = without_heartbeats(lags, DefaultReplicationPolicy())
    assert [one.topic for one in kept] == ["orders"]
    assert still_open(kept, {("orders", 0): 30}) == ()
    held = Behind(FlowLag(tuple(kept)), still_open(kept, {("orders", 0): 33}))
    assert not held.is_copied and "transaction is open in orders-0" in str(held)
    assert Behind(FlowLag(tuple(kept))).is_copied


async def test_writers_do_not_wait_for_each_other_to_be_shut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fence takes ten round trips."""
    together = asyncio.Barrier(3)

    async def fence(*_: Any) -> None:
        await together.wait()

    monkeypatch.setattr(drain, "known_topics", answers({"us.orders": topic("us.orders")}))
    monkeypatch.setattr(drain, "fence", fence)
    writers = {TopicPartition("orders", at): replace(POSITION, transactional_id=f"writer-{at}") for at in range(3)}
    monkeypatch.setattr(drain, "read_positions", answers(writers))
    said: list[str] = []
    async with asyncio.timeout(60):
        await drain.fence_writers(site(), said.append)
    assert len(said) == 3


class Control:
    start_command = "heliograph connectors resume Source --rest http://one:1/us/eu"

    def __init__(self, state: str = "RUNNING") -> None:
        self._state, self.reported = state, list[str]()

    async def state(self) -> str:
        return self._state

    async def stop(self) -> None:
        self.reported.append("stop")

    async def resume(self) -> None:
        self.reported.append("resume")


def behind_by(records: int) -> Behind:
    return Behind(FlowLag((lag_of("orders", 0, "us.orders", 30, 0, 30 + records, -1),)))


TWO_WAYS = {"turned": lambda: SimpleNamespace(flow=SimpleNamespace(flow="eu->us"))}


def arrange(monkeypatch: pytest.MonkeyPatch, records: int, due: list[StartBefore]) -> Any:
    put(monkeypatch, execute, behind=behind_by(records), copied_ends={}, starts_due=Due(due, [], {}))
    return site(source="us", **TWO_WAYS)


@pytest.mark.parametrize(
    ("state", "records", "reported"),
    [("STOPPED", 5, ["resume"]), ("STOPPING", 5, ["resume"]), ("STOPPED", 0, []), ("RUNNING", 5, [])],
)
async def test_a_flow_that_an_earlier_run_has_stopped_is_started_where_it_is_behind(
    monkeypatch: pytest.MonkeyPatch, state: str, records: int, reported: list[str]
) -> None:
    place, control, said = arrange(monkeypatch, records, []), Control(state), list[str]()
    await execute.start_again(place, control, said.append)
    assert control.reported == reported
    assert [line.startswith("us->eu was stopped, 5 records behind") for line in said] == [True] * len(reported)


async def test_a_stopped_flow_that_would_copy_back_is_left_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failover readers write at the target, and the flow back brings that to the source."""
    place, control = arrange(monkeypatch, 5, [StartBefore("orders", 0, 29, 34)]), Control("STOPPED")
    with pytest.raises(PermanentError, match="heliograph failback --to eu"):
        await execute.start_again(place, control, print)
    assert control.reported == []


@pytest.mark.parametrize(("records", "is_reported"), [(0, True), (5, False)])
async def test_a_failed_run_tells_of_its_stop(monkeypatch: pytest.MonkeyPatch, records: int, is_reported: bool) -> None:
    """One that finds something written meanwhile has started it again."""

    put(monkeypatch, execute, start_again=None, drain=None, stop_flow=None, behind=behind_by(records))
    monkeypatch.setattr(execute, "copied_ends", fails(RetriableError("a broker does not answer")))
    lease: Any = SimpleNamespace(check_not_lost=lambda: None, store=answers(None), record=SimpleNamespace(since_ms=0))
    journal = SimpleNamespace(run=FailoverRun("1", "us", "eu"), denied={"mail"})
    monkeypatch.setattr("connectors.failover.journal.Journal.begin", answers(journal))
    said, control = list[str](), Control()
    failover = execute.Failover(site(source="us"), FailoverOptions(lambda _: True), said.append, (control, None))
    with pytest.raises(RetriableError):
        await failover.run_under(lease, Plan(Snapshot("us", "eu")))
    assert any("us->eu was stopped and stays stopped" in line for line in said) == is_reported
    assert "still refuses writers of mail" in said[-1]
    assert control.reported == ([] if is_reported else ["resume"])


@pytest.mark.parametrize(
    ("enabled", "positions", "control", "words"),
    [
        (False, {}, None, ""),
        (True, {}, None, "group us-mm2 .* has 1 member"),
        (False, {ORDERS: POSITION}, None, "group us-mm2 .* has 1 member"),
        (False, {}, Control("RUNNING"), "its connector is RUNNING"),
    ],
)
async def test_workers_that_emit_heartbeats_alone_are_not_the_flow_back(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, positions: Any, control: Control | None, words: str
) -> None:
    put(monkeypatch, drain, read_positions=positions, group_state=SimpleNamespace(members=["worker"]))
    back = SimpleNamespace(map_topic="map", name="Source", enabled=enabled)
    turned = SimpleNamespace(flow=back, target=SimpleNamespace(name="us"), flow_workers="us-mm2")
    place = site(turned=lambda: turned)
    assert re.fullmatch(words + "(, such as worker)?", await drain.why_back_runs(place, control))


@pytest.mark.parametrize("keeps_names", [True, False])
async def test_a_failback_says_that_its_flow_is_stopped_and_what_starts_it(
    monkeypatch: pytest.MonkeyPatch, keeps_names: bool
) -> None:
    @contextlib.asynccontextmanager
    async def hold(*_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(store=answers(None))

    back, control, said = Control(), Control(), list[str]()
    places = site(**TWO_WAYS)
    failback = failback_and_undo.Failback(places, FailoverOptions(lambda _: True), said.append, (control, back))
    monkeypatch.setattr(failback_and_undo, "hold", hold)
    put(monkeypatch, failback_and_undo, read_runs=[])
    monkeypatch.setattr("connectors.failover.journal.Journal.begin", answers(None))
    put(monkeypatch, failback, _prepare=keeps_names)
    put(monkeypatch, failback._steps, run_under="done")
    looked: Any = None
    await failback.run("failback", looked)
    assert (control.reported, back.reported) == (["resume"], ["resume"])
    words = "stays stopped, because topics keep their names" if keeps_names else f"to start it: {control.start_command}"
    assert said[-1].startswith("us->eu ") and words in said[-1]


@pytest.mark.parametrize(("enabled", "control"), [(False, None), (True, None), (False, Control())])
async def test_a_failback_whose_flow_the_file_does_not_mirror_says_so(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, control: Control | None
) -> None:
    """Records that were written there would be waited for in vain."""
    flow = SimpleNamespace(flow="eu->us", enabled=enabled, source_alias="eu", remote_topic=str)
    said, turned = list[str](), SimpleNamespace()
    place = cast(Any, SimpleNamespace(flow=flow, turned=lambda: turned))
    failback = failback_and_undo.Failback(place, FailoverOptions(lambda _: True), said.append, (control, None))
    put(monkeypatch, failback_and_undo, collect=Snapshot("eu", "us"), read_runs=[])
    put(monkeypatch, failback, _keeps_names=False)
    looked = await failback.look()
    await failback._start(cast(Any, SimpleNamespace(store=answers(None))))
    reported = [*looked.snapshot.notes, *(one for one in said if "has to run now" in one)]
    is_said = ["Set eu->us.enabled = true" in one for one in reported]
    assert is_said == ([True, True] if not enabled and control is None else [False] * len(reported))


TOPICS = {"orders", "mail"}


def allow(pattern: str, name: str, resource: str = "TOPIC") -> AclBinding:
    return AclBinding(resource, name, pattern, "User:ann", "*", "READ", "ALLOW")


def deny(name: str) -> AclBinding:
    return AclBinding("TOPIC", name, "LITERAL", "User:bob", "*", "READ", "DENY")


@pytest.mark.parametrize(
    ("opens", "rules", "words"),
    [
        (False, [], ""),
        (True, [deny("orders")], "writes to mail would be the first"),
        (True, [*drain.rules(["mail"]), deny("orders")], ""),
        (None, [], "If a broker's file says true, the ACL that denies writes to mail, orders is the first"),
        (None, [*drain.rules(["mail"])], "denies writes to orders is the first"),
        (None, drain.rules(TOPICS), ""),
        (True, [], "writes to mail, orders would be the first"),
        (True, [allow("LITERAL", "orders")], "writes to mail would be the first"),
        (True, [allow("LITERAL", "orders"), allow("PREFIXED", "ma")], ""),
        (True, [allow("LITERAL", "*")], ""),
        (True, [allow("LITERAL", "*", "GROUP"), allow("PREFIXED", "orders-")], "writes to mail, orders would be"),
    ],
)
async def test_a_topic_that_is_open_for_want_of_rules_is_not_closed_by_the_first(
    monkeypatch: pytest.MonkeyPatch, opens: bool | None, rules: list[AclBinding], words: str
) -> None:
    """Any rule of it has closed it before, such as the one of a run that was interrupted."""

    async def describe_acls(_: Any, wanted: Any) -> list[AclBinding]:
        return [one for one in rules if wanted.permission in (None, one.permission)]

    put(monkeypatch, drain, is_perhaps_true=opens)
    monkeypatch.setattr(authorization, "describe_acls", describe_acls)
    source: Any = SimpleNamespace(name="us")
    found = await drain.first_rules(source, TOPICS)
    said, other = (found.doubt, found.why_not) if opens is None else (found.why_not, found.doubt)
    assert words in said and bool(said) == bool(words) and not other


def row(*values: str | None, error_code: int = 0) -> Any:
    return SimpleNamespace(error_code=error_code, configs=[SimpleNamespace(value=value) for value in values])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(), row()], False),
        ([row("false"), row("FALSE")], False),
        ([row(), row("true")], True),
        ([row(), row(None)], True),
        ([row(error_code=31), row()], None),
        ([row(), row(error_code=31)], None),
        ([row(error_code=31), row(None)], True),
    ],
)
async def test_a_setting_that_one_broker_may_have_counts(rows: list[Any], expected: bool | None) -> None:
    """A broker does not say what a setting of a plug-in is, only that it is set."""

    async def connection(node: int) -> Any:
        async def call(request: Any) -> Any:
            (resource,) = request.resources
            assert (resource.resource_type, resource.resource_name) == (4, str(node))
            return SimpleNamespace(results=[rows[node]])

        return SimpleNamespace(call=call)

    cluster: Any = SimpleNamespace(
        metadata=answers(SimpleNamespace(brokers=dict.fromkeys(range(len(rows))))), connection=connection
    )
    assert await topic_admin.is_perhaps_true(cluster, "allow.everyone.if.no.acl.found") is expected


@pytest.mark.parametrize(
    ("mail", "is_taken", "is_hidden"),
    [
        (29, True, True),  # we may not see it, whether it is there or not
        (0, True, True),  # there, and left out of the listing
        (3, True, False),
        (29, False, False),
    ],
)
async def test_a_denied_topic_that_is_hidden_is_not_taken_for_copied(
    monkeypatch: pytest.MonkeyPatch, mail: int, is_taken: bool, is_hidden: bool
) -> None:
    """One that was deleted since, or is mirrored no more, is in nobody's way."""

    async def metadata(names: set[str]) -> Any:
        assert names == {"mail"}, "what is seen is not asked for"
        return SimpleNamespace(topics={"mail": TopicMetadata("mail", None, mail, {})})

    put(monkeypatch, drain, behind=Behind(FlowLag((lag_of("orders", 0, "us.orders", 30, 0, 30, -1),))))
    monkeypatch.setattr(drain, "LagReader", lambda *_: None)
    monkeypatch.setattr(drain, "known_topics", partial(known_topics, for_s=0.0))
    flow = SimpleNamespace(flow="us->eu", source_alias="us", should_mirror=lambda name: is_taken or name != "mail")
    site: Any = SimpleNamespace(flow=flow, source=SimpleNamespace(metadata=metadata), target=None)
    reported: list[str] = []
    await drain.drain(site, reported.append, lambda: None, 1.0, denied={"orders"})
    refused = pytest.raises(PermanentError, match="hides mail, whose writers it refuses")
    with refused if is_hidden else nullcontext():
        await drain.drain(site, reported.append, lambda: None, 1.0, denied=TOPICS)
    assert len(reported) == (1 if is_hidden else 2)
