"""Refusing writers shuts out nobody else, and nothing counts as copied that is not seen any more."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import PermanentError
from connect.kafka.authorization import AclBinding
from connect.kafka.cluster import TopicMetadata
from connect.kafka.log import topic_admin
from connectors.dataplane.log_divergence import known_topics
from connectors.failover import drain
from connectors.failover.drain import Behind
from connectors.flow_progress import FlowLag, lag_of
from tests.kit.answers import put

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
    monkeypatch.setattr(drain, "describe_acls", describe_acls)
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

    async def metadata(_: Any) -> Any:
        return SimpleNamespace(brokers=dict.fromkeys(range(len(rows))))

    async def connection(node: int) -> Any:
        async def call(request: Any) -> Any:
            (resource,) = request.resources
            assert (resource.resource_type, resource.resource_name) == (4, str(node))
            return SimpleNamespace(results=[rows[node]])

        return SimpleNamespace(call=call)

    cluster: Any = SimpleNamespace(metadata=metadata, connection=connection)
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

    async def behind(*_: Any) -> Behind:
        return Behind(FlowLag((lag_of("orders", 0, "us.orders", 30, 0, 30, -1),)))

    async def metadata(names: set[str]) -> Any:
        assert names == {"mail"}, "what is seen is not asked for"
        return SimpleNamespace(topics={"mail": TopicMetadata("mail", None, mail, {})})

    monkeypatch.setattr(drain, "behind", behind)
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
