"""Where a finding belongs whose key a file has not: with the key that brings it up. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from connect.cli.check_report import Finding

_OF_NAMED: Final = re.compile(r"((?:.*\.)?(?:config\.providers|transforms|predicates))\.[^.]+\.(?:class|type)")
_OF_LOGIN: Final = re.compile(r"(.*\.)?sasl\.(?:jaas\.config|kerberos\.service\.name)")
_ADDRESS: Final = ".bootstrap.servers"


def list_with(key: str) -> str | None:
    """The key of the list that names what ``key`` is missing of: ``transforms`` of ``transforms.mask.type``."""
    found = _OF_NAMED.fullmatch(key)
    return found.group(1) if found else None


def placed(finding: Finding, line_of: Callable[[str], int | None]) -> Finding:
    """With the line of what brings its key up, where it has none of its own; ``line_of`` knows the lines of keys."""
    if finding.line is not None or finding.key is None:
        return finding
    lines = map(line_of, (finding.key, *_origins(finding.key)))
    return replace(finding, line=next((line for line in lines if line is not None), None))


def _origins(key: str) -> Iterator[str]:
    """The nearest first."""
    names = list_with(key)
    if names is not None:
        yield names
    elif key.endswith(_ADDRESS):
        yield "clusters"
    elif login := _OF_LOGIN.fullmatch(key):
        prefixes = dict.fromkeys((login.group(1) or "", ""))
        yield from (f"{prefix}{name}" for name in ("sasl.mechanism", "security.protocol") for prefix in prefixes)
