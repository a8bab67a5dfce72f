"""``heliograph unreplicated``: the records that only the old primary holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from connect.cli.connectors_view import printable, show_json
from connect.cli.console import EXIT_OK, counted
from connect.cli.failover import EXIT_FAILED, EXIT_NO_GO, find_source, tell_on_stderr

if TYPE_CHECKING:
    from connectors.failover.append import Done
    from connectors.failover.unreplicated import Unreplicated
    from connectors.flows import MirrorMakerConfig

__all__ = ["EXIT_FAILED", "run_unreplicated"]


def run_unreplicated(
    file: Path, source: str | None, target: str, *, export_to: Path | None, appends: bool, as_json: bool
) -> int:
    """Print them, with ``export_to`` write them, with ``appends`` append them; the exit code: 0 none are left.

    Raises ConfigError for a file or arguments that are wrong, and what the clusters raise.
    """
    from connectors.flows import load

    config = load(file)
    source = source or find_source(config, target)
    done, files = asyncio.run(_unreplicated(config, source, target, export_to, appends))
    found, left, appended, reasons = done
    if as_json:
        show_json(
            {
                "format": 1,
                "from": source,
                "to": target,
                "records": sum(one.own.records for one in found),
                "partitions": [asdict(one.own) for one in found],
                "files": [str(one) for one in files],
                "appended": appended,
                "left": [{**asdict(one.own), "why": reasons.get(one.source, "")} for one in left],
            }
        )
    else:
        _show(found, files, source, target, appended)
    return EXIT_NO_GO if left else EXIT_OK


async def _unreplicated(
    config: MirrorMakerConfig, source: str, target: str, export_to: Path | None, appends: bool
) -> tuple[Done, list[Path]]:
    from connectors.failover import append, unreplicated
    from connectors.failover.lease import hold
    from connectors.failover.site import site

    async with site(config, source, target) as place:
        found = await unreplicated.find(place)
        files = await unreplicated.export(place, found, export_to) if export_to is not None else []
        done = append.Done(found, found, 0, {})
        if appends and found:
            async with hold(place, "heliograph unreplicated --append") as lease:
                done = await append.append_all(place, lease, None, tell_on_stderr)
        return done, files


def _show(found: Sequence[Unreplicated], files: Sequence[Path], source: str, target: str, appended: int) -> None:
    from connectors.failover.append import HEADER

    if not found:
        print(f"cluster {source} holds nothing that cluster {target} lacks, of what was mirrored")
        return
    count = counted(len(found), "partition")
    print(f"only cluster {source} holds {sum(one.own.records for one in found)} records, in {count}:")
    for one in found:
        print(f"  {printable(str(one.own))}")
        if one.doubt:
            print(f"    some may be on cluster {target} already: {one.doubt}")
    for file in files:
        print(f"exported to {file}")
    if appended:
        print(
            f"{appended} records appended to cluster {target}; {target}->{source} brings them to cluster {source} too, "
            f"behind those that are there: readers there meet them twice, the second time with the header {HEADER}"
        )
