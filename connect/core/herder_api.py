"""Defines the interface between REST and a herder, its errors, and signed requests between workers.

REST knows only this protocol; the command line passes it the herder. Requests between workers are signed with a
session key (KIP-507). Algorithms have the names of Java's ``Mac`` and ``KeyGenerator``; as in Java, case is ignored.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from connect.core.audit import AuditEntry
from connect.core.errors import HeliographError
from connect.core.model import ConnectorInfo, ConnectorStateInfo, RestartRequest, Status, TargetState, TaskId, TaskInfo

#: A connector's config in a request: a null value is a validation error, or removes a key (PATCH).
Config = Mapping[str, str | None]


class RequestRefused(HeliographError):
    """A request that gets an error response; the text is the message of the response."""


class BadRequest(RequestRefused):
    """The request is invalid."""


class NotFound(RequestRefused):
    """There is no such connector, task, plugin, logger or flow."""


class AlreadyExists(RequestRefused):
    """A connector of that name exists already."""


class Forbidden(RequestRefused):
    """The signature is invalid, or the worker's file disables the feature."""


class NotReady(RequestRefused):
    """The worker cannot verify the request yet, because it has not read a session key."""


class Unhealthy(RequestRefused):
    """The worker does not take part in its group now, and it is not known when it will."""


class RebalanceExpected(RequestRefused):
    """A rebalance after a config change is not complete yet."""

    def __init__(self) -> None:
        super().__init__(
            "Cannot complete request momentarily due to stale configuration (typically caused by a concurrent config "
            "change)"
        )


class RequestConflict(RequestRefused):
    """The request conflicts with an operation in progress."""


class ElsewhereError(RequestRefused):
    """The request must go to another worker, at ``url``; None if its URL is not known."""

    def __init__(self, message: str, url: str | None) -> None:
        super().__init__(message)
        self.url = url


class NotLeader(ElsewhereError):
    """Only the leader can handle the request."""


class NotAssigned(ElsewhereError):
    """Only the worker that runs the connector or the task can handle the request."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The response to ``GET /``."""

    version: str
    commit: str
    kafka_cluster_id: str | None


@dataclass(frozen=True, slots=True)
class Put:
    """The result of storing a connector's config; ``created``: the connector is new."""

    created: bool
    info: ConnectorInfo


@dataclass(frozen=True, slots=True)
class Signature:
    """The two headers of an internal request (KIP-507), None if missing, and the bytes of the body."""

    signature: str | None
    algorithm: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A user's request on its way between two workers; ``url`` is the advertised one of the worker that gets it, with
    the encoded path and the query, ``user`` the role, the name, the time and a nonce, as :mod:`rest` writes them."""

    method: str
    url: str
    user: str
    body: bytes

    def to_bytes(self) -> bytes:
        """Return what is signed; no part contains a line break, except the last."""
        return b"\n".join((self.method.encode(), self.url.encode(), self.user.encode(), self.body))


#: Parses the task configs in the body of an internal request.
ReadConfigs = Callable[[], Sequence[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A source partition and its offset; ``offset`` None removes it."""

    partition: Mapping[str, Any] | None
    offset: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin; ``type`` is sink, source, transformation, predicate, converter or header_converter."""

    cls: str
    type: str
    version: str | None


@dataclass(frozen=True, slots=True)
class ConfigKeyInfo:
    """The definition of a config, as in REST responses."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigValueInfo:
    """The value of a config and its validation errors."""

    name: str
    value: str | None
    recommended_values: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    visible: bool = True


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """The definition and the value of a config; ``definition`` is None if the key is unknown."""

    definition: ConfigKeyInfo | None
    value: ConfigValueInfo


@dataclass(frozen=True, slots=True)
class ConfigInfos:
    """The validation result for a connector's config; ``name`` is the connector's class."""

    name: str
    error_count: int
    groups: tuple[str, ...]
    configs: tuple[ConfigInfo, ...]


@dataclass(frozen=True, slots=True)
class ConfigInfosWithWarnings(ConfigInfos):
    """One with sentences about keys that have no effect; Java has no such list, so there is none without a sentence."""

    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """A logger's level by Java's name, and the time of its last change over REST in milliseconds; None: never."""

    level: str
    last_modified: int | None


class HerderApi(Protocol):
    """A worker of a group, as REST sees it. Every method may raise :class:`RequestRefused`; any other error is an
    internal error (500)."""

    def worker_info(self) -> WorkerInfo: ...

    def is_ready(self) -> bool:
        """Return whether the worker has completed its start."""

    def stage(self) -> str | None:
        """Return a sentence about the current or last stage of the worker; None if it is not known."""

    def is_rebalancing(self) -> bool:
        """Return whether requests wait for a rebalance; False while the worker starts, and after it has stopped."""

    async def health(self) -> None:
        """Return once the worker's loop has handled the call. Raises Unhealthy if the worker cannot reach its group."""

    # connectors

    async def connectors(self) -> Sequence[str]: ...

    async def connector_info(self, name: str) -> ConnectorInfo: ...

    def known_connector(self, name: str) -> ConnectorInfo:
        """Return what this worker currently knows of a connector, also during a rebalance."""

    async def connector_config(self, name: str) -> Mapping[str, str]: ...

    async def task_infos(self, name: str) -> Sequence[TaskInfo]: ...

    def without_secrets(self, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return a config of a connector, or of one of its tasks, with ``[hidden]`` for secrets."""

    def connector_status(self, name: str) -> ConnectorStateInfo: ...

    def task_status(self, task: TaskId) -> Status: ...

    async def put_connector(
        self, name: str, config: Config, target_state: TargetState | None, *, allow_replace: bool
    ) -> Put:
        """Validate and store a config; needs the leader. A value ``[hidden]`` keeps the stored one. ``target_state``
        None keeps the current one, or STARTED."""

    async def patch_connector(self, name: str, patch: Config) -> Put: ...

    async def delete_connector(self, name: str) -> None: ...

    async def set_target_state(self, name: str, state: TargetState) -> None:
        """Set STARTED or PAUSED on any worker, or STOPPED on the leader, which also removes the task configs."""

    async def restart_connector(self, name: str) -> None:
        """Restart only the connector's instance; needs the worker that runs it."""

    async def restart_task(self, task: TaskId) -> None: ...

    async def restart(self, request: RestartRequest) -> ConnectorStateInfo:
        """Restart across the group; return the statuses with RESTARTING for each part to restart."""

    async def active_topics(self, name: str) -> Sequence[str]: ...

    async def reset_active_topics(self, name: str) -> None: ...

    async def connector_offsets(self, name: str) -> Sequence[SourceOffset]: ...

    async def alter_offsets(self, name: str, offsets: Sequence[SourceOffset] | None) -> str:
        """Alter a stopped connector's offsets, or reset all with None; return the message of the response."""

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Return a connector's report beyond Kafka Connect's API. Raises NotFound if it has no report of ``kind``."""

    def record(self, entry: AuditEntry) -> None:
        """Enter a change in the audit, if there is one; returns at once."""

    # internal requests between workers

    async def put_task_configs(self, name: str, read: ReadConfigs, signature: Signature) -> None:
        """Store task configs. ``read`` parses the signed body after the signature is verified, and may reject it."""

    async def fence_zombies(self, name: str, signature: Signature) -> None: ...

    def sign_forwarded(self, request: ForwardedRequest) -> Mapping[str, str]:
        """Return the headers that sign a request; none while the group has no key."""

    def check_forwarded(self, request: ForwardedRequest, signature: str | None, algorithm: str | None) -> None:
        """Raise RequestRefused unless a worker of the group has signed the request."""

    # plugins

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]: ...

    def plugin_config(self, plugin: str, version: str | None) -> Sequence[ConfigKeyInfo]: ...

    async def validate(self, plugin: str, config: Config) -> ConfigInfos: ...

    # loggers

    def loggers(self) -> Mapping[str, LoggerLevel]: ...

    def logger(self, name: str) -> LoggerLevel: ...

    def set_logger(self, name: str, level: str) -> Sequence[str]:
        """Set the level of all loggers on this worker whose names begin with ``name``; return the changed ones."""

    async def set_cluster_logger(self, name: str, level: str) -> None: ...


#: The headers of a signed request.
SIGNATURE_HEADER: Final = "X-Connect-Authorization"
ALGORITHM_HEADER: Final = "X-Connect-Request-Signature-Algorithm"
#: The header of a user's request that another worker of the group forwards: its user's role and name, the time and a
#: nonce. :data:`SIGNATURE_HEADER` then signs the whole request. Java's workers ignore it and need ``Authorization``.
FORWARDED_HEADER: Final = "X-Heliograph-Forwarded"
#: Java's error message for an unsigned request.
UNSIGNED: Final = "Internal request missing required signature"


#: Java's key lengths if ``inter.worker.key.size`` is not set.
_KEY_BYTES: Final = {
    "HmacMD5": 64,
    "HmacSHA1": 64,
    "HmacSHA224": 28,
    "HmacSHA256": 32,
    "HmacSHA384": 48,
    "HmacSHA512": 64,
    "HmacSHA3-224": 28,
    "HmacSHA3-256": 32,
    "HmacSHA3-384": 48,
    "HmacSHA3-512": 64,
}
_BY_NAME: Final = {name.lower(): length for name, length in _KEY_BYTES.items()}

#: Valid values of ``inter.worker.signature.algorithm`` and related configs.
ALGORITHMS: Final = tuple(_KEY_BYTES)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The secret that the workers of a group share; ``algorithm`` generated the key."""

    key: bytes = field(repr=False)
    algorithm: str
    created_ms: int


def is_known(algorithm: str) -> bool:
    return algorithm.lower() in _BY_NAME


def key_bytes(algorithm: str, size_bits: int | None) -> int:
    """Return the length of a new key; ``size_bits`` is ``inter.worker.key.size``, None for the algorithm's default."""
    return _BY_NAME[algorithm.lower()] if size_bits is None else (size_bits + 7) // 8


def must_be_replaced(key: SessionKey | None, algorithm: str, size_bits: int | None, ttl_ms: int, now_ms: int) -> bool:
    """Return whether the leader needs a new key: there is none, it has expired, or the settings have changed.
    ``ttl_ms`` 0: a key never expires (Kafka ``DistributedHerder.checkKeyRotation``)."""
    if key is None or key.algorithm != algorithm or len(key.key) != key_bytes(algorithm, size_bits):
        return True
    return ttl_ms > 0 and key.created_ms + ttl_ms <= now_ms


def sign(key: SessionKey, algorithm: str, body: bytes) -> str:
    """Return the signature header for ``body``; a missing body is signed as empty."""
    return base64.b64encode(_mac(key, algorithm, body)).decode()


#: Returns the headers that sign a body; a missing body is signed as empty.
Sign = Callable[[bytes], Mapping[str, str]]


def signed(key: SessionKey, algorithm: str, body: bytes) -> Mapping[str, str]:
    return {SIGNATURE_HEADER: sign(key, algorithm, body), ALGORITHM_HEADER: algorithm}


def check(signature: Signature, key: SessionKey | None, algorithms: Sequence[str]) -> None:
    """Check an internal request as Java's ``requestNotSignedProperly`` does, in its order. ``key`` is the session key
    that was read last, ``algorithms`` is ``inter.worker.verification.algorithms``. Raises BadRequest if a header is
    missing or malformed, or the algorithm is not allowed here, NotReady if no key has been read yet, and Forbidden if
    the signature is invalid."""
    if signature.signature is None or signature.algorithm is None:
        raise BadRequest(UNSIGNED)
    if not is_known(signature.algorithm):
        raise BadRequest(f"Algorithm {signature.algorithm} not available")
    presented = _decoded(signature.signature)
    if signature.algorithm not in algorithms:
        raise BadRequest(
            f"This worker does not support the '{signature.algorithm}' key signing algorithm used by other workers. "
            f"This worker is currently configured to use: [{', '.join(algorithms)}]. Check that all workers' "
            "configuration files permit the same set of signature algorithms, and correct any misconfigured worker "
            "and restart it."
        )
    if key is None:
        raise NotReady(
            "This worker is still starting up and has not been able to read a session key from the config topic yet"
        )
    if not hmac.compare_digest(_mac(key, signature.algorithm, signature.body), presented):
        raise Forbidden("Internal request contained invalid signature.")


def _mac(key: SessionKey, algorithm: str, body: bytes) -> bytes:
    return hmac.digest(key.key, body, algorithm.lower().removeprefix("hmac").replace("-", "_"))


def _decoded(text: str) -> bytes:
    """Decode a header. As in Java's decoder, padding is optional."""
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"Signature is not base64: {error}") from error
