"""``--consumer.rebalance.listener``: a class of the user's that is told which partitions come and go."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Collection
from typing import Any, Final

from connect.core.errors import ConfigError
from connect.kafka.plugin_thread import PluginThread
from connectors.dataplane.plan import TopicPartition

log = logging.getLogger(__name__)

_WITHIN_S: Final = 10.0
_METHODS: Final = {"assigned": "on_partitions_assigned", "revoked": "on_partitions_revoked"}


def load(reference: str, args: str | None, option: str) -> Any:
    """An instance of ``package.module:Class``, made with ``args`` where they are given.

    Raises:
        ConfigError: It cannot be imported or made; names the option.
    """
    module, _, path = reference.replace(":", ".").rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--{option} {reference} cannot be imported ({type(error).__name__}); a Java class cannot run here: write "
            "package.module:Class of a Python package that is installed",
            option,
        ) from None
    try:
        return found() if args is None else found(args)
    except Exception as error:  # of other people; what it says may hold what is secret
        raise ConfigError(f"--{option} {reference} cannot be made: {type(error).__name__}", option) from error


class Listener:
    """Told before partitions are copied here, and after they were. What it raises is logged, and the copy goes on."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._thread = PluginThread("rebalance listener")

    async def tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """``what``: ``assigned`` or ``revoked``."""
        method = getattr(self._made, _METHODS[what], None)
        if method is None:
            return
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._thread.call(method, sorted(partitions))
        except Exception as error:  # of other people
            log.error("the rebalance listener failed at %s: %s", _METHODS[what], type(error).__name__)
