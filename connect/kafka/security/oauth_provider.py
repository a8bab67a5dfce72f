"""Tokens as aiokafka asks for them."""

from __future__ import annotations

import aiokafka.abc

from connect.kafka.security.sasl import OAuthSettings, tokens_of
from connect.kafka.threads import PluginThread


class TokensOfAiokafka(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]  # no marker for its types
    """For aiokafka, and so for our own connections."""

    def __init__(self, settings: OAuthSettings) -> None:
        self._tokens = tokens_of(settings)

    async def token(self) -> str:
        # Not in asyncio's own threads: the end of the process waits for those, and a token server may hang.
        async with PluginThread("oauth token") as thread:
            token: str = await thread.call(self._tokens.token)
            return token
