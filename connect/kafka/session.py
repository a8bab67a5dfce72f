"""The life of a SASL session on a connection: how long the broker trusts it, and proving it anew in time (KIP-368).

A broker with ``connections.max.reauth.ms`` closes a connection on the first request that it reads after a session
has ended. So the exchange is made again before, on the connection itself: requests already sent are answered first,
those that come meanwhile wait, and their order stays what it was.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiokafka.errors
from kafka.errors import for_code
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from connect.core.errors import RetriableError, SecurityError
from connect.kafka.opening import OpeningConnection, one_line

_HANDSHAKE_VERSION: Final = 1
#: From this version of SaslAuthenticate on a broker tells for how long it trusts what was proven.
_LIFETIME_FROM: Final = 1
#: Java's share of a session's life, spread so that many connections do not come at once (``SaslClientAuthenticator``).
_SHARE: Final = (0.85, 0.95)
#: What was sent before the end must also be read before it, behind a long poll or many batches.
_MARGIN_MS: Final = 10_000
#: A broker takes no second exchange within a second (``KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``).
_LEAST_MS: Final = 1_100

#: Sends one request past those that wait; returns its decoded answer.
Exchange = Callable[[Any, int], Awaitable[Any]]


class ReauthenticationFailed(RetriableError):
    """The broker did not take what it had taken before; a new connection tells why."""


class Session:
    """When a connection's session has to be proven anew, and how. ``now_s`` is the loop's clock."""

    def __init__(self, opened: OpeningConnection, mechanism: str | None, authenticate_at_most: int) -> None:
        self._opened = opened
        self._mechanism = mechanism
        self._version = min(authenticate_at_most, SaslAuthenticateRequest.max_version)
        self._due_s: float | None = None

    def begin(self, now_s: float, lifetime_ms: int) -> None:
        """The broker trusts us from now on, for so long; 0 for ever."""
        self._due_s = now_s + due_after_ms(lifetime_ms, random.uniform(*_SHARE)) / 1000 if lifetime_ms > 0 else None

    def is_due(self, now_s: float) -> bool:
        return self._due_s is not None and now_s >= self._due_s

    async def prove(self, exchange: Exchange) -> int:
        """Authenticate again; returns the new session's lifetime.

        Raises:
            ReauthenticationFailed: the broker refused, or did not prove itself.
        """
        try:
            return await self._prove(exchange)
        except (SecurityError, aiokafka.errors.KafkaError, ValueError, KeyError, AssertionError) as error:
            raise ReauthenticationFailed(
                f"re-authentication with {self._mechanism} failed: {one_line(error)}"
            ) from error

    async def _prove(self, exchange: Exchange) -> int:
        handshake = await exchange(SaslHandshakeRequest(mechanism=self._mechanism), _HANDSHAKE_VERSION)
        _check(handshake.error_code, "SaslHandshake")
        authenticator = self._opened.authenticator()
        lifetime_ms, proof = 0, None
        while (step := await authenticator.step(proof)) is not None:
            answer = await exchange(SaslAuthenticateRequest(auth_bytes=step[0]), self._version)
            _check(answer.error_code, answer.error_message or "SaslAuthenticate")
            proof = answer.auth_bytes
            lifetime_ms = answer.session_lifetime_ms if self._version >= _LIFETIME_FROM else 0
        return lifetime_ms


def due_after_ms(lifetime_ms: int, share: float) -> float:
    """How long after its beginning a session is proven anew: at ``share`` of its life, or earlier where that is late
    for what is under way then, but not before half of it."""
    return max(min(lifetime_ms * share, max(lifetime_ms - _MARGIN_MS, lifetime_ms / 2)), _LEAST_MS)


def _check(code: int, what: str) -> None:
    if code:
        raise SecurityError(f"{what}: {for_code(code).__name__}")
