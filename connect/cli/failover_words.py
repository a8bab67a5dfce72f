"""Options of ``heliograph failover`` that had no value, given their value: for one more release."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: What an option means without a value: any cluster, every group.
_WITHOUT: Final = {"--source-gone": "", "--rewind": "*"}


def with_values(args: Sequence[str]) -> list[str]:
    """The same arguments, with values behind options that lack one, and a warning of each."""
    found: list[str] = []
    for at, word in enumerate(args):
        found.append(word)
        behind = args[at + 1] if at + 1 < len(args) else "--"
        if word in _WITHOUT and (behind.startswith("-") or Path(behind).is_file()):
            found.append(_WITHOUT[word])
            print(f"warning: {word} takes a value by now; the next release demands it", file=sys.stderr, flush=True)
    return found
