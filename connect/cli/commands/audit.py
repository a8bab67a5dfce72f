"""Records in the audit topic what a command has changed on clusters."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from connect.cli.daemons.flow_worker import worker_config
from connect.core.audit import AuditEntry
from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.topic_admin import Admin
from connect.runtime.audit import write_entries
from connectors.config.mm2_properties import Flow

log = logging.getLogger(__name__)

_WITHIN_S: Final = 15.0


@dataclass(slots=True)
class Outcome:
    """What a command reports of itself: its exit code, and what it changed."""

    code: int = 1
    detail: str = ""


@asynccontextmanager
async def audited(command: str, flow: Flow, target: Cluster, admin: Admin) -> AsyncIterator[Outcome]:
    """Record a command that changes clusters when it ends, also with an error. If the topic cannot be written, warn."""
    outcome, topic = Outcome(), worker_config(flow).audit_topic
    try:
        yield outcome
    except BaseException as error:
        outcome.detail = f"{type(error).__name__}: {error}"
        raise
    finally:
        if topic is not None:
            entry = AuditEntry(
                "command",
                command,
                str(flow),
                user=f"{getpass.getuser()}@{socket.gethostname()}",
                detail=outcome.detail,
                status=outcome.code,
                at_ms=wall_ms(),
            )
            try:
                async with asyncio.timeout(_WITHIN_S):
                    await write_entries(target, admin, topic, [entry])
            except (HeliographError, TimeoutError) as error:
                why = str(error) or f"no answer within {_WITHIN_S:g} s"
                log.warning("audit topic %s was not written: %s", topic.name, why)
