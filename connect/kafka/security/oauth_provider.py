"""Provides OAuth tokens through aiokafka's interface."""

from __future__ import annotations

import aiokafka.abc

from connect.kafka.security.sasl import OAuthSettings, tokens_of
from connect.kafka.threads import PluginThread


class TokensOfAiokafka(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]  # no marker for its types
    """Tokens for aiokafka, which also opens this project's connections."""

    def __init__(self, settings: OAuthSettings) -> None:
        self._tokens = tokens_of(settings)

    async def token(self) -> str:
        # Not in asyncio's own threads, because the process waits for those at its end and a token server may hang.
        async with PluginThread("oauth token") as thread:
            token: str = await thread.call(self._tokens.token)
            return token
