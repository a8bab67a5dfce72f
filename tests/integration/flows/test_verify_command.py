"""``heliograph verify`` on the flow of every shape, while it runs: what was planted is found, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from connectors.verification.report import DifferenceKind, RangeReason
from connectors.verification.report_forms import digest, read_report
from tests.kit.copies import read_all, until_records, write
from tests.kit.direct import Broker
from tests.kit.shared_mirror import SHAPES as ALIAS
from tests.kit.shared_mirror import TARGET, SharedMirror
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC = "shape-verified"
REMOTE = f"{ALIAS}.{TOPIC}"
FIRST, CUT, SECOND = 100, 10, 50


async def test_planted_records_are_named_among_every_shape(shared: SharedMirror, tmp_path: Path) -> None:
    await make_topics(shared.us.bootstrap, {TOPIC: 1})
    await write(shared.us, TOPIC, FIRST, partitions=1)
    await until_records(shared.mirror, shared.eu.bootstrap, REMOTE, FIRST)
    async with AIOKafkaProducer(bootstrap_servers=shared.eu.bootstrap) as producer:
        again = (await read_all(shared.eu.bootstrap, REMOTE))[-1]
        for key, value in ((again.key, again.value), (b"not of", b"this flow")):
            await producer.send_and_wait(
                REMOTE, value, key=key, timestamp_ms=again.timestamp, headers=list(again.headers)
            )
    await write(shared.us, TOPIC, SECOND, partitions=1)
    await until_records(shared.mirror, shared.eu.bootstrap, REMOTE, FIRST + 2 + SECOND)
    await asyncio.to_thread(Broker(shared.us, 0).delete_records, TOPIC, CUT)

    report = tmp_path / "verified.html"
    command = ["verify", str(shared.mirror.properties_file), "--flow", f"{ALIAS}->{TARGET}", "--json"]
    code, printed = await heliograph(*command, "--report", str(report))
    result = read_report(printed)
    found = [one for part in result.partitions for one in part.differences]
    assert [(one.kind, one.topic, one.target_offset) for one in found] == [(DifferenceKind.DOUBLED, TOPIC, FIRST)]
    assert (code, result.unread) == (2, ())
    reasons = {(one.topic, one.reason) for part in result.partitions for one in part.explained}
    assert {(TOPIC, RangeReason.RETENTION_SOURCE), (TOPIC, RangeReason.NOT_OF_FLOW)} <= reasons
    (verified,) = [part for part in result.partitions if part.topic == TOPIC]
    assert verified.records + CUT == FIRST + SECOND

    _, checked = await heliograph("verify", "--check", str(report))
    assert digest(result) in checked
    # Only what is new is read.
    _, printed = await heliograph(*command)
    assert json.loads(printed)["read_bytes"] < result.read_bytes // 2


async def heliograph(*arguments: str) -> tuple[int, str]:
    """Return a command's exit code and what it printed. AssertionError if it failed."""
    program = Path(sys.executable).parent / "heliograph"
    run = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        printed, said = await run.communicate()
    except BaseException:
        run.kill()
        await run.wait()
        raise
    assert run.returncode in (0, 2), said.decode()
    return run.returncode, printed.decode()
