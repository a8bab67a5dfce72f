"""Defines the interface between REST and a herder, its errors, and signed requests between workers.

REST knows this protocol and nothing behind it; the command line passes it the real herder. Signed requests (KIP-507)
have a session key, signatures and a check. Algorithms have the names of Java's ``Mac`` and ``KeyGenerator``, which
ignore case in Java, too.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from connect.core.errors import HeliographError
from connect.core.model import ConnectorInfo, ConnectorStateInfo, RestartRequest, Status, TargetState, TaskId, TaskInfo

#: A connector's config as a request brings it: a null value is an error of validation, or removes a key (PATCH).
Config = Mapping[str, str | None]


class RequestRefused(HeliographError):
    """A request that is answered with an error; its text is the message of the answer."""


class BadRequest(RequestRefused):
    """The request itself is wrong."""


class NotFound(RequestRefused):
    """There is no such connector, task, plugin, logger or flow."""


class AlreadyExists(RequestRefused):
    """A connector of that name is there already."""


class Forbidden(RequestRefused):
    """A wrong signature, or a feature that the worker's file turns off."""


class NotReady(RequestRefused):
    """The worker cannot check the request yet: it has read no session key."""


class Unhealthy(RequestRefused):
    """The worker does not do its part in its group now, and cannot say when it will."""


class RebalanceExpected(RequestRefused):
    """A rebalance that a changed config caused has not ended yet."""

    def __init__(self) -> None:
        super().__init__(
            "Cannot complete request momentarily due to stale configuration (typically caused by a concurrent config "
            "change)"
        )


class RequestConflict(RequestRefused):
    """The request meets something that is under way."""


class ElsewhereError(RequestRefused):
    """Another worker must be asked: ``url`` is where, or None where nobody knows."""

    def __init__(self, message: str, url: str | None) -> None:
        super().__init__(message)
        self.url = url


class NotLeader(ElsewhereError):
    """Only the leader can do it."""


class NotAssigned(ElsewhereError):
    """Only the worker that runs the connector or the task can do it."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What ``GET /`` shows."""

    version: str
    commit: str
    kafka_cluster_id: str | None


@dataclass(frozen=True, slots=True)
class Put:
    """A connector's config was stored; ``created``: there was no such connector."""

    created: bool
    info: ConnectorInfo


@dataclass(frozen=True, slots=True)
class Signature:
    """The two headers of an internal request (KIP-507) as they came, None where missing, and the body's bytes."""

    signature: str | None
    algorithm: str | None
    body: bytes


#: Makes the task configs of the body of an internal request.
ReadConfigs = Callable[[], Sequence[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """One entry of a connector's offsets; ``offset`` None removes it."""

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
    """A setting's definition as REST shows it; all texts are Java's."""

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
    """A setting's value, and what is wrong with it."""

    name: str
    value: str | None
    recommended_values: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    visible: bool = True


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """Definition and value of a key; no definition where the key is unknown."""

    definition: ConfigKeyInfo | None
    value: ConfigValueInfo


@dataclass(frozen=True, slots=True)
class ConfigInfos:
    """The outcome of validating a connector's config; ``name`` is the connector's class."""

    name: str
    error_count: int
    groups: tuple[str, ...]
    configs: tuple[ConfigInfo, ...]


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """A logger's level by Java's name, and when REST last changed it, in milliseconds; None: never."""

    level: str
    last_modified: int | None


class HerderApi(Protocol):
    """One worker of a group, as REST sees it. Every method may raise :class:`RequestRefused`; what else comes out is
    an internal error (500)."""

    def worker_info(self) -> WorkerInfo: ...

    def is_ready(self) -> bool:
        """Whether the worker has completed its start."""
        ...

    def stage(self) -> str | None:
        """A sentence on what the worker is doing, or did last; None where nothing is known."""
        ...

    async def health(self) -> None:
        """Return once the worker's own loop has handled the question. Raises Unhealthy if its group is not reached."""
        ...

    # connectors

    async def connectors(self) -> Sequence[str]: ...

    async def connector_info(self, name: str) -> ConnectorInfo: ...

    def known_connector(self, name: str) -> ConnectorInfo:
        """The same as this worker knows it now, a rebalance or not."""
        ...

    async def connector_config(self, name: str) -> Mapping[str, str]: ...

    async def task_infos(self, name: str) -> Sequence[TaskInfo]: ...

    def connector_status(self, name: str) -> ConnectorStateInfo: ...

    def task_status(self, task: TaskId) -> Status: ...

    async def put_connector(
        self, name: str, config: Config, target_state: TargetState | None, *, allow_replace: bool
    ) -> Put:
        """Validate and store a config; needs the leader. ``target_state`` None keeps what is, or STARTED."""
        ...

    async def patch_connector(self, name: str, patch: Config) -> Put: ...

    async def delete_connector(self, name: str) -> None: ...

    async def set_target_state(self, name: str, state: TargetState) -> None:
        """STARTED or PAUSED, by any worker; STOPPED by the leader only, without task configs from then on."""
        ...

    async def restart_connector(self, name: str) -> None:
        """Restart the instance alone; needs the worker that runs it."""
        ...

    async def restart_task(self, task: TaskId) -> None: ...

    async def restart(self, request: RestartRequest) -> ConnectorStateInfo:
        """Spread a restart over the group; the answer shows what is going to be restarted."""
        ...

    async def active_topics(self, name: str) -> Sequence[str]: ...

    async def reset_active_topics(self, name: str) -> None: ...

    async def connector_offsets(self, name: str) -> Sequence[SourceOffset]: ...

    async def alter_offsets(self, name: str, offsets: Sequence[SourceOffset] | None) -> str:
        """Alter a stopped connector's offsets, or reset all with None; returns the message of the answer."""
        ...

    async def connector_report(self, name: str, kind: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """What a connector tells of itself beside Kafka Connect's API; NotFound where it tells nothing of ``kind``."""
        ...

    # internal requests between workers

    async def put_task_configs(self, name: str, read: ReadConfigs, signature: Signature) -> None:
        """Store configs; ``read`` makes them of the signed body, once the signature is right, and may refuse it."""
        ...

    async def fence_zombies(self, name: str, signature: Signature) -> None: ...

    # plugins

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]: ...

    def plugin_config(self, plugin: str, version: str | None) -> Sequence[ConfigKeyInfo]: ...

    async def validate(self, plugin: str, config: Config) -> ConfigInfos: ...

    # loggers

    def loggers(self) -> Mapping[str, LoggerLevel]: ...

    def logger(self, name: str) -> LoggerLevel: ...

    def set_logger(self, name: str, level: str) -> Sequence[str]:
        """Set the level of all loggers whose names begin with ``name``, on this worker; returns those that changed."""
        ...

    async def set_cluster_logger(self, name: str, level: str) -> None: ...


#: The headers of a signed request.
SIGNATURE_HEADER: Final = "X-Connect-Authorization"
ALGORITHM_HEADER: Final = "X-Connect-Request-Signature-Algorithm"
#: How a request without one is refused, in Java's words.
UNSIGNED: Final = "Internal request missing required signature"


@dataclass(frozen=True, slots=True)
class _Mac:
    digest: str
    #: How long a key is that Java makes where ``inter.worker.key.size`` is not set.
    key_bytes: int


_MACS: Final = {
    "HmacMD5": _Mac("md5", 64),
    "HmacSHA1": _Mac("sha1", 64),
    "HmacSHA224": _Mac("sha224", 28),
    "HmacSHA256": _Mac("sha256", 32),
    "HmacSHA384": _Mac("sha384", 48),
    "HmacSHA512": _Mac("sha512", 64),
    "HmacSHA3-224": _Mac("sha3_224", 28),
    "HmacSHA3-256": _Mac("sha3_256", 32),
    "HmacSHA3-384": _Mac("sha3_384", 48),
    "HmacSHA3-512": _Mac("sha3_512", 64),
}
_BY_NAME: Final = {name.lower(): mac for name, mac in _MACS.items()}

#: What may be set as ``inter.worker.signature.algorithm`` and its relatives.
ALGORITHMS: Final = tuple(_MACS)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The secret that the workers of a group share; ``algorithm`` is that of its generation."""

    key: bytes = field(repr=False)
    algorithm: str
    created_ms: int


def is_known(algorithm: str) -> bool:
    """Whether we can sign, check and make keys with it."""
    return algorithm.lower() in _BY_NAME


def key_bytes(algorithm: str, size_bits: int | None) -> int:
    """How long a new key is; ``size_bits`` as ``inter.worker.key.size`` says, None for the algorithm's own size."""
    return _BY_NAME[algorithm.lower()].key_bytes if size_bits is None else (size_bits + 7) // 8


def must_be_replaced(key: SessionKey | None, algorithm: str, size_bits: int | None, ttl_ms: int, now_ms: int) -> bool:
    """Whether a leader makes a new key: there is none, its time is over, or the settings want another kind.

    ``ttl_ms`` 0: a key's time is never over (Kafka ``DistributedHerder.checkKeyRotation``).
    """
    if key is None or key.algorithm != algorithm or len(key.key) != key_bytes(algorithm, size_bits):
        return True
    return ttl_ms > 0 and key.created_ms + ttl_ms <= now_ms


def sign(key: SessionKey, algorithm: str, body: bytes) -> str:
    """The signature's header for ``body``; no body is signed as nothing."""
    return base64.b64encode(_mac(key, algorithm, body)).decode()


def check(signature: Signature, key: SessionKey | None, algorithms: Sequence[str]) -> None:
    """Check an internal request as Java's ``requestNotSignedProperly`` does, in its order.

    Args:
        signature: The request's headers and body.
        key: The session key that was read last.
        algorithms: ``inter.worker.verification.algorithms``.

    Raises:
        BadRequest: a header is missing or nonsense, or the algorithm is not allowed here.
        NotReady: no key was read yet.
        Forbidden: the signature is wrong.
    """
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
    return hmac.digest(key.key, body, _BY_NAME[algorithm.lower()].digest)


def _decoded(text: str) -> bytes:
    """The bytes of a header; Java's decoder does without padding."""
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"Signature is not base64: {error}") from error
