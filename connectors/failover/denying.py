"""Writers of the source refused while readers move: access rules that are told apart by their form, and taken away
again."""

from __future__ import annotations

from collections.abc import Collection

from connect.core.acls import EVERYBODY, AclBinding, refusal_of_writers
from connect.kafka.acls import AclFilter, create_acls, delete_acls, describe_acls
from connect.kafka.cluster import Cluster


def rules(topics: Collection[str]) -> list[AclBinding]:
    """Those that refuse everybody; users that the cluster calls super users write all the same (pure)."""
    return [refusal_of_writers(topic) for topic in sorted(topics)]


async def denied_already(source: Cluster, topics: Collection[str]) -> set[str]:
    """Topics for which the very rule is there. Raises as :func:`connect.kafka.acls.describe_acls`."""
    there = await describe_acls(source, AclFilter(resource_type="TOPIC", principal=EVERYBODY, permission="DENY"))
    return {one.resource_name for one in rules(topics) if one in there}


async def deny_writes(source: Cluster, topics: Collection[str]) -> None:
    """Raises SecurityDisabled where the cluster has no authorizer, and as :func:`connect.kafka.acls.create_acls`."""
    _raise_first((await create_acls(source, rules(topics))).values())


async def allow_writes(source: Cluster, topics: Collection[str]) -> None:
    """Take these rules away. Raises as :func:`deny_writes`."""
    _raise_first((await delete_acls(source, rules(topics))).values())


def _raise_first(outcomes: Collection[Exception | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error
