"""What a long run leaves: its report as JSON and for people, and the files of a run that found something."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Report(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def markdown(self) -> str: ...


def leave(report: Report, folder: Path, name: str, faults: object, scene: Path) -> int:
    """Write and print it; the exit code. ``scene`` has the mirror's files, which go where there were no ``faults``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(asdict(report), indent=2))
    (folder / f"{name}.md").write_text(report.markdown())
    print(report.markdown())
    if faults:
        print(f"the mirror's file and log are in {scene}", file=sys.stderr)
        return 1
    shutil.rmtree(scene, ignore_errors=True)
    return 0
