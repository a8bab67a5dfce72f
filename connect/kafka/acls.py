"""Rules of a cluster's authorizer: told, made and deleted, each with an outcome of its own.

Any broker takes these requests; where another one, or the controller, has to do the work, it hands them on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from connect.core.acls import (
    ANY,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    AclBinding,
    code,
    word,
)
from connect.core.errors import HeliographError, PermanentError
from connect.kafka.cluster import Cluster, NotAuthorized, error_name, refusal_of

#: A controller takes ten thousand changes at a time; a request of this size is answered well within its time.
_AT_ONCE: Final = 500
_SECURITY_DISABLED: Final = 54
_REFUSED: Final = 31  # cluster: authorisation failed
#: The right that is enough for requests that change nothing.
_LOOKING: Final = "DESCRIBE"
#: From here on a request may name resources of the type USER (KIP-373, Kafka 3.3).
_USERS_FROM: Final = 3

_Codes = tuple[int, int, int, int]
Outcomes = dict[AclBinding, HeliographError | None]


class SecurityDisabled(PermanentError):
    """The cluster has no authorizer: it has no rules, and takes none."""


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which rules are asked for; None takes any. ``resource_name`` is the name in the rule itself, not one that it
    covers."""

    resource_type: str | None = None
    resource_name: str | None = None
    pattern_type: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


async def describe_acls(cluster: Cluster, wanted: AclFilter | None = None) -> list[AclBinding]:
    """The rules that fit a filter, all unless given, in order.

    Raises:
        SecurityDisabled: the cluster has no authorizer.
        NotAuthorized: DESCRIBE on the cluster is missing.
        RetriableError: no broker tells now.
    """
    asked = wanted or AclFilter()
    request = DescribeAclsRequest(
        resource_type_filter=_filter_code(RESOURCE_TYPES, asked.resource_type),
        resource_name_filter=asked.resource_name,
        pattern_type_filter=_filter_code(PATTERN_TYPES, asked.pattern_type),
        principal_filter=asked.principal,
        host_filter=asked.host,
        operation=_filter_code(OPERATIONS, asked.operation),
        permission_type=_filter_code(PERMISSIONS, asked.permission),
    )
    answer = await (await cluster.any_connection()).call(request)
    if error := _error(cluster, "tell its access rules", _LOOKING, answer.error_code, answer.error_message):
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
    """Make rules, in order and in bounded requests; one that is there already is made all the same.

    By rule: None where it is made, else why not: SecurityDisabled, NotAuthorized (ALTER on the cluster is missing), or
    what the broker says.

    Raises:
        RetriableError: a broker does not answer; perhaps some are made. Make the same again.
    """

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

    return await _change(cluster, "make the rule", bindings, request, lambda answer: answer.results)


async def delete_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> Outcomes:
    """Delete exactly these rules; one that is not there is deleted all the same. Outcomes as :func:`create_acls`."""

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

    return await _change(cluster, "delete the rule", bindings, request, lambda answer: _deleted(answer.filter_results))


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
            # A broker answers a request with such a rule by closing the connection, whatever else it holds.
            by_whom = f"cluster {cluster.name}" if codes else "this Heliograph"
            outcomes[rule] = PermanentError(f"cluster {cluster.name}: cannot {what} {rule}: {by_whom} does not know it")
        else:
            sendable.append((rule, codes))
    for part in _parts(sendable):
        answer = await (await cluster.any_connection()).call(request(part))
        for (rule, _), row in zip(part, rows(answer), strict=True):
            outcomes[rule] = _error(cluster, f"{what} {rule}", "ALTER", row.error_code, row.error_message)
    return outcomes


def _parts(rules: Sequence[tuple[AclBinding, _Codes]]) -> Iterator[Sequence[tuple[AclBinding, _Codes]]]:
    for begin in range(0, len(rules), _AT_ONCE):
        yield rules[begin : begin + _AT_ONCE]


def _deleted(results: Sequence[Any]) -> list[Any]:
    """Of each filter the row that says what went wrong, its own or that of a rule it fitted; any row else."""
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
        return SecurityDisabled(f"cluster {cluster.name} has no authorizer, and so no access rules")
    if error_code == _REFUSED:
        return NotAuthorized(f"{line}; grant {right} on the cluster")
    return refusal_of(error_code, line, changes=right != _LOOKING)
