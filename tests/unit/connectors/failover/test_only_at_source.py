"""What only the source has is named before readers leave it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import PermanentError
from connectors.failover import collect_snapshot


async def test_what_only_the_source_has_is_named_and_what_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = (SimpleNamespace(name=name) for name in ("us", "eu"))

    def has(here: set[str], there: set[str]) -> Any:
        async def look(cluster: Any) -> set[str]:
            return here if cluster is us else there

        return look

    async def refused(_: Any) -> set[str]:
        raise PermanentError("not allowed")

    looks = {
        "SCRAM users": has({f"user{number}" for number in range(7)} | {"both"}, {"both"}),
        "quotas": has({"user ann"}, {"user ann", "user bob"}),
        "ACLs": refused,
    }
    monkeypatch.setattr(collect_snapshot, "_LOOKS", looks)
    clusters: Any = (us, eu)
    assert await collect_snapshot.only_at_source(*clusters) == [
        "only cluster us has these SCRAM users: user0, user1, user2, user3, user4 and 2 more",
        "not compared, because a cluster does not show them: ACLs",
    ]


async def test_transactional_ids_of_the_mirror_are_none_that_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    us, eu = (SimpleNamespace(name=name) for name in ("us", "eu"))

    async def ids(cluster: Any) -> set[str]:
        ours = {"eu-mm2-MirrorSourceConnector-0", "eu-mm2-MirrorSourceConnector-0-commit", "connect-cluster-eu-mm2"}
        return {*ours, "heliograph-failover-eu->us", "payments", "eu-mm2000"} if cluster is us else set()

    monkeypatch.setattr(collect_snapshot, "_LOOKS", {"transactional ids": ids, "SCRAM users": ids})
    here: Any = us
    there: Any = eu
    said = await collect_snapshot.only_at_source(here, there, ("us-mm2", "eu-mm2"))
    assert said[0] == "only cluster us has these transactional ids: eu-mm2000, payments"
    assert "SCRAM users: connect-cluster-eu-mm2, eu-mm2-" in said[1], "a user is no id"
