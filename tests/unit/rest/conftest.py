"""A REST server with a dict for a herder, on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from connect.core.config.rest_settings import RestListener
from rest.request_handling import Limits
from rest.rest_config import RestSettings
from rest.server import RestServer
from tests.kit.rest_herder import DictHerder

ANYWHERE = RestListener("http", "127.0.0.1", 0)
HERE = RestSettings((ANYWHERE,))


@asynccontextmanager
async def running_server(
    settings: RestSettings = HERE, herder: DictHerder | None = None, **parts: Any
) -> AsyncIterator[RestServer]:
    server = RestServer(settings, **parts)
    await server.start()
    try:
        if herder is not None:
            server.serve(herder)
        yield server
    finally:
        await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[RestServer]:
    """Shared by the tests of a module: to stop one takes a while."""
    metrics, limits = AsyncMock(return_value=b"connect_workers 1\n"), Limits(request_s=0.2, health_s=0.2)
    async with running_server(metrics=metrics, limits=limits) as server:
        yield server


@pytest.fixture
def herder(server: RestServer) -> DictHerder:
    herder = DictHerder()
    server.serve(herder)
    return herder


@pytest.fixture
def port(server: RestServer, herder: DictHerder) -> int:
    return server.ports[0]
