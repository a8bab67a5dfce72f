"""What clients need beside topics and offsets, and only the source has: a mirror does not copy it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from kafka.protocol.admin import (
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    ListTransactionsRequest,
)

from connect.core.errors import HeliographError
from connect.kafka.acls import SecurityDisabled, describe_acls
from connect.kafka.cluster import Cluster, error_name, refusal_of
from connectors.failover.snapshot import named

_TOPIC: Final = "TOPIC"
_IDS: Final = "transactional ids"
#: How transactional ids of our commands begin, and those of the leader of a group of workers; those of tasks begin with
#: the name of the group (KIP-618).
_OURS: Final = "heliograph-"
_LEADER: Final = "connect-cluster-"
#: RESOURCE_NOT_FOUND, UNSUPPORTED_VERSION: there is none of it.
_NONE: Final = frozenset({91, 35})


async def only_at_source(source: Cluster, target: Cluster, workers: Collection[str] = ()) -> list[str]:
    """Notes about quotas, SCRAM users, ACLs and transactional ids. What a cluster does not show is named.

    Args:
        workers: Groups of workers of the mirror, whose transactional ids are left out.
    """
    ours = (_OURS, *(name for group in workers for name in (f"{group}-", f"{_LEADER}{group}")))
    notes, hidden = [], []
    for what, look in _LOOKS.items():
        try:
            here, there = await asyncio.gather(look(source), look(target))
        except HeliographError:
            hidden.append(what)
            continue
        only = sorted(one for one in here - there if what != _IDS or not one.startswith(ours))
        if only:
            notes.append(f"only cluster {source.name} has these {what}: {named(only)}")
    if hidden:
        notes.append(f"not compared, because a cluster does not show them: {', '.join(hidden)}")
    return notes


async def scram_users(cluster: Cluster) -> set[str]:
    answer = await (await cluster.any_connection()).call(DescribeUserScramCredentialsRequest(users=None))
    _check(cluster, answer.error_code, "SCRAM users")
    return {one.user for one in answer.results}


async def quotas(cluster: Cluster) -> set[str]:
    request = DescribeClientQuotasRequest(components=[], strict=False)
    answer = await (await cluster.any_connection()).call(request)
    _check(cluster, answer.error_code, "quotas")
    return {
        " ".join(f"{one.entity_type} {one.entity_name or '(default)'}" for one in entry.entity)
        for entry in answer.entries or ()
    }


async def transactional_ids(cluster: Cluster) -> set[str]:
    """Those that were in use lately."""
    found: set[str] = set()
    for node in (await cluster.metadata(frozenset())).brokers:
        connection = await cluster.connection(node)
        answer = await connection.call(ListTransactionsRequest(state_filters=[], producer_id_filters=[]))
        _check(cluster, answer.error_code, _IDS)
        found |= {one.transactional_id for one in answer.transaction_states}
    return found


async def acls(cluster: Cluster) -> set[str]:
    """But those of topics, which ``sync.topic.acls.enabled`` copies."""
    try:
        return {str(one) for one in await describe_acls(cluster) if one.resource_type != _TOPIC}
    except SecurityDisabled:
        return set()


_LOOKS: Final[dict[str, Callable[[Cluster], Awaitable[set[str]]]]] = {
    "SCRAM users": scram_users,
    "quotas": quotas,
    _IDS: transactional_ids,
    "ACLs": acls,
}


def _check(cluster: Cluster, code: int, what: str) -> None:
    if code and code not in _NONE:
        line = f"cluster {cluster.name} does not show its {what}: {error_name(code)}"
        raise refusal_of(code, line, changes=False)
