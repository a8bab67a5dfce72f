"""A REST server with a dict for a herder, on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from connect.core.config.rest_settings import RestListener
from rest.request_handling import Limits
from rest.rest_config import RestSettings
from rest.server import RestServer
from tests.kit.rest_herder import DictHerder

ANYWHERE = RestListener("http", "127.0.0.1", 0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[RestServer]:
    """Shared by the tests of a module: to stop one takes a while."""
    server = RestServer(
        RestSettings((ANYWHERE,)),
        metrics=AsyncMock(return_value=b"connect_workers 1\n"),
        limits=Limits(request_s=0.2, health_s=0.2),
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def herder(server: RestServer) -> DictHerder:
    herder = DictHerder()
    server.serve(herder)
    return herder


@pytest.fixture
def port(server: RestServer, herder: DictHerder) -> int:
    return server.ports[0]
