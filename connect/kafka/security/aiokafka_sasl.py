"""What aiokafka, which opens all connections, needs for SASL: tokens for OAUTHBEARER, a stricter SCRAM, and in its
long-lived clients the password that a file has now."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Any, Final

import aiokafka.abc
import aiokafka.conn

from connect.kafka.security.oauth import OAuthSettings, tokens_of
from connect.kafka.security.renewal import NewestPassword
from connect.kafka.threads import PluginThread


class TokensOfAiokafka(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]  # no marker for its types
    """Tokens for aiokafka, which also opens this project's connections; ``settings`` returns the newest ones."""

    def __init__(self, settings: Callable[[], OAuthSettings]) -> None:
        self._settings = settings

    async def token(self) -> str:
        # Not in asyncio's own threads, because the process waits for those at its end and a token server may hang.
        async with PluginThread("oauth token") as thread:
            token: str = await thread.call(tokens_of(self._settings()).token)
            return token


def _newest(user: str, password: str) -> dict[str, str]:
    if isinstance(password, NewestPassword):
        user, password = password.newest()
    return {"sasl_plain_username": user, "sasl_plain_password": password}


class RenewedPlain(aiokafka.conn.SaslPlainAuthenticator):  # type: ignore[misc]
    """The client side of PLAIN, with the newest password."""

    def __init__(self, *, sasl_plain_username: str, sasl_plain_password: str, **others: Any) -> None:
        super().__init__(**_newest(sasl_plain_username, sasl_plain_password), **others)


FEWEST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 1_000_000


class CheckedScram(aiokafka.conn.ScramAuthenticator):  # type: ignore[misc]
    """The client side of a SCRAM exchange with the newest password, and with checks of what the broker sends, which may
    not be the real one. aiokafka accepts any number of iterations: one makes the password easy to guess from the proof,
    two billion occupy a thread for minutes. The lower limit is Java's (``ScramMechanism``), which has none above.
    Raises ValueError, without the broker's text, if the broker's part is wrong."""

    def __init__(self, *, sasl_plain_username: str, sasl_plain_password: str, **others: Any) -> None:
        super().__init__(**_newest(sasl_plain_username, sasl_plain_password), **others)

    def process_server_first_message(self, server_first: str) -> None:
        found = _attributes(server_first)
        nonce, iterations = found["r"], found["i"]
        # RFC 5802, 5.1: the server appends its own characters, so that an old exchange cannot be replayed.
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ValueError("the broker did not extend the nonce of this client")
        if not iterations.isdecimal() or not FEWEST_ITERATIONS <= int(iterations[:20]) <= MOST_ITERATIONS:
            raise ValueError(f"the broker's iterations are not between {FEWEST_ITERATIONS} and {MOST_ITERATIONS}")
        super().process_server_first_message(server_first)

    def process_server_final_message(self, server_final: str) -> None:
        try:
            signature = base64.b64decode(_attributes(server_final)["v"], validate=True)
        except binascii.Error:
            signature = b""
        if not hmac.compare_digest(self._server_signature, signature):
            raise ValueError("the broker did not prove that it knows the password")


def _attributes(message: str) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in message.split(","))
    if "m" in found:  # RFC 5802: a mandatory extension ends the exchange
        raise ValueError("the broker wants an extension that this client does not know")
    if "e" in found:
        raise ValueError("the broker ended the exchange with an error")
    for name in ("v",) if "v" in found else ("r", "s", "i"):
        if name not in found:
            raise ValueError("the broker's answer is incomplete")
    return found


# aiokafka has no parameter for them, and its own producers and consumers open connections too.
aiokafka.conn.ScramAuthenticator = CheckedScram
aiokafka.conn.SaslPlainAuthenticator = RenewedPlain
