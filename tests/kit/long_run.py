"""How a long run begins and ends: its seed, its folder, what it says, and what is left of one that found something."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Report(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def markdown(self) -> str: ...


def say(line: str) -> None:
    print(line, flush=True)


def parser_of(name: str, about: str | None, seed_of: str = "of the plan") -> argparse.ArgumentParser:
    """A parser with ``--seed``, which chance draws where nobody names one."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    seed = random.SystemRandom().randrange(2**32)
    parser.add_argument("--seed", type=int, default=seed, help=f"{seed_of} (default: by chance, printed)")
    return parser


def begin(name: str, seed: int | None = None) -> Path:
    """Say which run it is; the folder for its files."""
    say(f"{name} run" if seed is None else f"{name} run, seed {seed}")
    return Path(tempfile.mkdtemp(prefix=f"heliograph-{name.replace(' ', '-')}-"))


def leave(report: Report, folder: Path, name: str, faults: Sequence[str], scene: Path) -> int:
    """Write the report as JSON and for people, and print it; then as :func:`end`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(asdict(report), indent=2))
    (folder / f"{name}.md").write_text(report.markdown())
    print(report.markdown())
    return _end(bool(faults), scene)


def end(faults: Sequence[str], scene: Path) -> int:
    """Say the faults; the exit code. ``scene`` has the mirror's files, which go where there are no faults."""
    say("\n".join(["faults:", *faults]) if faults else "no fault")
    return _end(bool(faults), scene)


def _end(found_something: bool, scene: Path) -> int:
    if found_something:
        print(f"the files and logs are in {scene}", file=sys.stderr)
    else:
        shutil.rmtree(scene, ignore_errors=True)
    return int(found_something)
