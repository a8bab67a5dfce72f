"""Writers of the source refused while readers move: access rules that are told apart by their form, and taken away
again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from connect.core.acls import EVERYBODY, AclBinding, refusal_of_writers
from connect.kafka.acls import AclFilter, create_acls, delete_acls, describe_acls
from connect.kafka.cluster import Cluster
from connect.kafka.topic_configs import is_perhaps_true
from connectors.failover.snapshot import named

#: Of Kafka's authorizer: what has no rule is open to everybody, and its first rule closes it.
_OPEN: Final = "allow.everyone.if.no.acl.found"
_KEEP_OPEN: Final = (
    "Give each a rule that keeps it open (kafka-acls --add --allow-principal User:* --operation All --topic NAME)"
)


def rules(topics: Collection[str]) -> list[AclBinding]:
    """Those that refuse everybody; users that the cluster calls super users write all the same (pure)."""
    return [refusal_of_writers(topic) for topic in sorted(topics)]


class FirstRules(NamedTuple):
    """Of topics that have no rule yet. ``why_not``: none may be made, ``doubt``: nobody can tell; empty: nothing is."""

    why_not: str = ""
    doubt: str = ""


async def first_rules(source: Cluster, topics: Collection[str]) -> FirstRules:
    """The first rule of a topic that is open for want of rules would shut out readers too, and the mirror, and who asks
    for lags. Raises as :func:`connect.kafka.acls.describe_acls`."""
    is_open = await is_perhaps_true(source, _OPEN) if topics else False
    if is_open is False:
        return FirstRules()
    # Any rule has closed its topic to whom it does not name, one that denies too (Kafka StandardAuthorizerData).
    there = await describe_acls(source, AclFilter(resource_type="TOPIC"))
    closing = named(sorted(topic for topic in topics if not any(rule.is_of_topic(topic) for rule in there)))
    if not closing:
        return FirstRules()
    if is_open:
        return FirstRules(
            f"cluster {source.name} opens topics without access rules to everybody ({_OPEN}), or does not tell: the "
            f"rule that refuses writers of {closing} would be the first, and close them to readers and the mirror too. "
            f"{_KEEP_OPEN}, or stop the writers without --deny-writes"
        )
    return FirstRules(
        doubt=f"cluster {source.name} does not let this command see whether {_OPEN} is set, for want of "
        f"DESCRIBE_CONFIGS on the cluster: if a broker's file says true, the rule that refuses writers of {closing} is "
        f"the first, and closes them to readers and the mirror too. Look there before. {_KEEP_OPEN} where it is"
    )


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
