"""The code and output that pages of the documentation show, block by block."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
#: Fenced, or indented behind an empty line.
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$|(?<=\n\n)((?: {4}[^\n]*\n|\n+(?= {4}))+)", re.MULTILINE | re.DOTALL)
_CURL: Final = re.compile(r"^curl (?:[^'\n\\]|\\\n|'[^']*')*", re.MULTILINE)
#: Stands for anything: any value, more keys, or how a text or line goes on.
_ANY: Final = "..."


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [
        Block(language, fenced or textwrap.dedent(indented).lstrip("\n"))
        for language, fenced, indented in _BLOCK.findall((DOCS / page).read_text("utf-8"))
    ]


def is_like(given: Any, shown: Any) -> bool:
    if isinstance(shown, dict) and isinstance(given, dict):
        keys = [key for key in shown if key != _ANY]
        order = [key for key in given if key in shown] if _ANY in shown else list(given)
        return order == keys and all(is_like(given[key], shown[key]) for key in keys)
    if isinstance(shown, list) and isinstance(given, list):
        return len(given) == len(shown) and all(map(is_like, given, shown))
    if isinstance(shown, str) and shown.endswith(_ANY) and isinstance(given, str):
        return given.startswith(shown.removesuffix(_ANY))
    return bool(shown == _ANY or given == shown)


def misshapen(given: Any, shown: Any, path: str = "") -> list[str]:
    """Where JSON has other keys or types than a page shows; null matches all, a list's first entry all others."""
    if isinstance(shown, dict) and isinstance(given, dict):
        keys = shown.keys() - {_ANY}
        more = set() if _ANY in shown else given.keys() - keys
        both = keys & given.keys()
        wrong = [f"{path}.{key}" for key in sorted(more | (keys - both))]
        return wrong + [each for key in both for each in misshapen(given[key], shown[key], f"{path}.{key}")]
    if isinstance(shown, list) and isinstance(given, list):
        if not given and shown and isinstance(shown[0], dict):
            return [f"{path}[]"]
        return [each for one in given for each in misshapen(one, shown[0], f"{path}[]")] if shown else []
    kinds = (int, float) if isinstance(shown, int | float) and not isinstance(shown, bool) else type(shown)
    return [] if given is None or isinstance(given, kinds) else [path]


def curl(command: str, here: Mapping[str, str]) -> tuple[int, str]:
    """Run a command of a page with its texts replaced by those ``here``; return status and body of the answer."""
    for text, other in here.items():
        command = command.replace(text, other)
    shell = command.replace("curl ", "curl -s --noproxy '*' --max-time 100 -w '\\n%{http_code}' ", 1)
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120, check=True)
    body, _, status = ended.stdout.rpartition("\n")
    return int(status), body


def curl_commands(text: str) -> list[str]:
    commands = _CURL.findall(text)
    assert len(commands) == text.count("curl "), text
    return commands
