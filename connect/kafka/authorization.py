"""Describes, creates and deletes the ACLs of a cluster, and finds which operations the cluster allows this client.

Any broker takes ACL requests and forwards them to another broker or the controller if necessary; each ACL has its own
outcome. ACLs use Kafka's words with the codes of the protocol (Kafka ``AclBinding``). Brokers report the allowed
operations (KIP-430); their release follows from the APIs that they offer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest, DescribeGroupsRequest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import MetadataRequest

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, NotAuthorized, error_name, refusal_of
from connect.kafka.connection import UnsupportedVersion

RESOURCE_TYPES: Final = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}
PATTERN_TYPES: Final = {3: "LITERAL", 4: "PREFIXED"}


class Operation(IntEnum):
    """Kafka's ``AclOperation``: the number is the protocol's, and the bit in brokers' responses."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


OPERATIONS: Final = {int(one): one.name for one in Operation}
PERMISSIONS: Final = {2: "DENY", 3: "ALLOW"}
#: For filters only.
ANY: Final = 1
#: The literal name that matches every name.
WILDCARD: Final = "*"
#: The principal that matches every user.
ALL_USERS: Final = "User:*"
_UNNAMED: Final = "CODE_"


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """An ACL of an authorizer. ``resource_type`` is TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN or USER,
    ``pattern_type`` LITERAL or PREFIXED, ``permission`` ALLOW or DENY. Unknown codes of newer brokers are shown as
    ``CODE_`` and the number."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str

    @property
    def is_deny(self) -> bool:
        return self.permission != "ALLOW"

    def is_of_topic(self, topic: str) -> bool:
        """Return whether an authorizer applies it to a topic."""
        if self.resource_type != "TOPIC":
            return False
        if self.pattern_type == "PREFIXED":
            return topic.startswith(self.resource_name)
        return self.resource_name in (topic, WILDCARD)

    def __str__(self) -> str:
        return (
            f"{self.permission} {self.operation} to {self.principal} from {self.host} "
            f"on {self.pattern_type} {self.resource_type} {self.resource_name}"
        )


def refusal_of_writers(topic: str) -> AclBinding:
    """Return the ACL by which a failover denies writes to ``topic`` on the old primary; super users can still
    write."""
    return AclBinding("TOPIC", topic, "LITERAL", ALL_USERS, WILDCARD, "WRITE", "DENY")


def refuses_writers(rule: AclBinding) -> bool:
    """Return whether an ACL has the form of :func:`refusal_of_writers`; no topic is named ``*``."""
    return rule.resource_name != WILDCARD and rule == refusal_of_writers(rule.resource_name)


def word(words: Mapping[int, str], code: int) -> str:
    return words.get(code, f"{_UNNAMED}{code}")


def code(words: Mapping[int, str], name: str) -> int | None:
    """Return the code for a word; None if this version knows none."""
    return next((number for number, known in words.items() if known == name), None)


#: A controller accepts ten thousand changes at a time; a request of this size is answered well within its timeout.
_AT_ONCE: Final = 500
_SECURITY_DISABLED: Final = 54
_REFUSED: Final = 31  # cluster: authorisation failed
#: The operation that is enough for requests that change nothing.
_LOOKING: Final = "DESCRIBE"
#: From this version a request may name resources of the type USER (KIP-373, Kafka 3.3).
_USERS_FROM: Final = 3

_Codes = tuple[int, int, int, int]
Outcomes = dict[AclBinding, HeliographError | None]


class SecurityDisabled(PermanentError):
    """The cluster has no authorizer, so it has no ACLs and accepts none."""


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A filter for ACLs; None matches anything."""

    resource_type: str | None = None
    principal: str | None = None
    permission: str | None = None


async def describe_acls(cluster: Cluster, wanted: AclFilter | None = None) -> list[AclBinding]:
    """Return the ACLs that match a filter, all by default, in order. Raises SecurityDisabled if the cluster has no
    authorizer, NotAuthorized if DESCRIBE on the cluster is missing, and RetriableError if no broker can answer now."""
    asked = wanted or AclFilter()
    request = DescribeAclsRequest(
        resource_type_filter=_filter_code(RESOURCE_TYPES, asked.resource_type),
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=asked.principal,
        host_filter=None,
        operation=ANY,
        permission_type=_filter_code(PERMISSIONS, asked.permission),
    )
    answer = await (await cluster.any_connection()).call(request)
    if error := _error(cluster, "describe ACLs", _LOOKING, answer.error_code, answer.error_message):
        raise error
    return sorted(
        AclBinding(
            word(RESOURCE_TYPES, resource.resource_type),
            resource.resource_name,
            word(PATTERN_TYPES, resource.pattern_type),
            rule.principal,
            rule.host,
            word(OPERATIONS, rule.operation),
            word(PERMISSIONS, rule.permission_type),
        )
        for resource in answer.resources
        for rule in resource.acls
    )


async def create_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> Outcomes:
    """Create ACLs, in order and in requests of limited size; an ACL that exists counts as created. Returns by ACL None
    or its error: SecurityDisabled, NotAuthorized (ALTER on the cluster is missing), or another one from the broker.
    Raises RetriableError if a broker does not answer, and some ACLs may have been created; call again with the same
    ACLs."""

    def request(rules: Sequence[tuple[AclBinding, _Codes]]) -> Any:
        return CreateAclsRequest(
            creations=[
                CreateAclsRequest.AclCreation(
                    resource_type=resource,
                    resource_name=rule.resource_name,
                    resource_pattern_type=pattern,
                    principal=rule.principal,
                    host=rule.host,
                    operation=operation,
                    permission_type=permission,
                )
                for rule, (resource, pattern, operation, permission) in rules
            ]
        )

    return await _change(cluster, "create ACL", bindings, request, lambda answer: answer.results)


async def delete_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> Outcomes:
    """Delete exactly these ACLs; a missing ACL counts as deleted. Outcomes as in :func:`create_acls`."""

    def request(rules: Sequence[tuple[AclBinding, _Codes]]) -> Any:
        return DeleteAclsRequest(
            filters=[
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=resource,
                    resource_name_filter=rule.resource_name,
                    pattern_type_filter=pattern,
                    principal_filter=rule.principal,
                    host_filter=rule.host,
                    operation=operation,
                    permission_type=permission,
                )
                for rule, (resource, pattern, operation, permission) in rules
            ]
        )

    return await _change(cluster, "delete ACL", bindings, request, lambda answer: _deleted(answer.filter_results))


async def _change(
    cluster: Cluster,
    what: str,
    bindings: Collection[AclBinding],
    request: Callable[[Sequence[tuple[AclBinding, _Codes]]], Any],
    rows: Callable[[Any], Sequence[Any]],
) -> Outcomes:
    outcomes: Outcomes = {}
    sendable: list[tuple[AclBinding, _Codes]] = []
    connection = await cluster.any_connection()
    takes_users = connection.version_of(request([])) >= _USERS_FROM
    for rule in bindings:
        codes = _codes(rule)
        if codes is None or (rule.resource_type == "USER" and not takes_users):
            # A broker closes the connection on a request with such an ACL, whatever else the request holds.
            by_whom = f"cluster {cluster.name}" if codes else "this Heliograph"
            outcomes[rule] = PermanentError(f"cluster {cluster.name}: cannot {what} {rule}: {by_whom} does not know it")
        else:
            sendable.append((rule, codes))
    for begin in range(0, len(sendable), _AT_ONCE):
        part = sendable[begin : begin + _AT_ONCE]
        answer = await (await cluster.any_connection()).call(request(part))
        for (rule, _), row in zip(part, rows(answer), strict=True):
            outcomes[rule] = _error(cluster, f"{what} {rule}", "ALTER", row.error_code, row.error_message)
    return outcomes


def _deleted(results: Sequence[Any]) -> list[Any]:
    """Return for each filter the row with an error, its own or that of a matching ACL; without errors, its own."""
    return [
        next((row for row in (result, *(result.matching_acls or ())) if row.error_code), result) for result in results
    ]


def _codes(rule: AclBinding) -> _Codes | None:
    resource, pattern = code(RESOURCE_TYPES, rule.resource_type), code(PATTERN_TYPES, rule.pattern_type)
    operation, permission = code(OPERATIONS, rule.operation), code(PERMISSIONS, rule.permission)
    if resource is None or pattern is None or operation is None or permission is None:
        return None
    return resource, pattern, operation, permission


def _filter_code(words: dict[int, str], name: str | None) -> int:
    if name is None:
        return ANY
    found = code(words, name)
    if found is None:
        raise ValueError(f"{name} is none of {', '.join(words.values())}")
    return found


def _error(cluster: Cluster, what: str, right: str, error_code: int, message: str | None) -> HeliographError | None:
    if not error_code:
        return None
    said = f": {message}" if message else ""
    line = f"cluster {cluster.name}: cannot {what}: {error_name(error_code)}{said}"
    if error_code == _SECURITY_DISABLED:
        return SecurityDisabled(f"cluster {cluster.name} has no authorizer, and so no ACLs")
    if error_code == _REFUSED:
        return NotAuthorized(f"{line}; grant {right} on the cluster")
    return refusal_of(error_code, line, changes=right != _LOOKING)


#: Up to version 10, which all current brokers accept, Metadata includes the operations allowed on the cluster.
_METADATA_AT_MOST: Final = 10
_METADATA_AT_LEAST: Final = 8
_NOT_THERE: Final = 3
#: Up to this version DescribeGroups reports missing groups as dead; later versions return an error.
_GROUPS_AT_MOST: Final = 5
_GROUP_REFUSED: Final = 30


Operations = frozenset[Operation]
NO_RIGHT: Final[Operations] = frozenset()


@dataclass(frozen=True, slots=True)
class Allowed:
    """Allowed operations. ``topics``: None for a topic that does not exist, as far as this client may know, and no
    operation for a hidden one. ``release``, such as ``4.3``, is the first with all APIs of the broker, or empty."""

    cluster_id: str
    brokers: int
    release: str
    cluster: Operations
    topics: Mapping[str, Operations | None]


async def allowed(cluster: Cluster, topics: Collection[str]) -> Allowed:
    """Return what one broker allows. A cluster without an authorizer allows everything. Raises ClusterUnreachable if no
    broker answers, SecurityError if the broker rejects this client, and UnsupportedVersion if the broker is older than
    Kafka 2.3."""
    connection = await cluster.any_connection()
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    version = connection.version_of(request, _METADATA_AT_MOST)
    if version < _METADATA_AT_LEAST:
        raise UnsupportedVersion(f"cluster {cluster.name}: brokers before Kafka 2.3 do not report allowed operations")
    answer = await connection.call(request, version)
    return Allowed(
        answer.cluster_id or "",
        len(answer.brokers),
        release_of(connection.versions),
        _operations(answer.authorized_operations),
        {
            row.name: None if row.error_code == _NOT_THERE else _operations(row.authorized_operations)
            for row in answer.topics
        },
    )


async def group_rights(cluster: Cluster, group: str) -> Operations:
    """Return the operations allowed on a group, existing or not; none if it is hidden. Raises RetriableError and
    SecurityError."""
    try:
        connection = await cluster.coordinator(group, "group")
    except NotAuthorized:
        return NO_RIGHT
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    answer = await connection.call(request, at_most=_GROUPS_AT_MOST)
    (row,) = answer.groups
    if row.error_code == _GROUP_REFUSED:
        return NO_RIGHT
    if row.error_code:
        cluster.forget_coordinator(group, "group", row.error_code)
        raise RetriableError(f"cluster {cluster.name} does not report the rights on group {group} at the moment")
    return _operations(row.authorized_operations)


def release_of(versions: Mapping[int, tuple[int, int]]) -> str:
    """Return a broker's release by the APIs that it offers, because brokers do not send it; empty if unknown."""
    try:
        found: tuple[int, ...] = BrokerVersionData(api_versions=dict(versions)).broker_version
    except (KeyError, ValueError, TypeError):
        return ""
    return ".".join(map(str, found))


def _operations(numbers: Collection[int] | None) -> Operations:
    """Return the operations in a response; none if the broker does not report them."""
    return frozenset(one for one in Operation if one in (numbers or ()))
