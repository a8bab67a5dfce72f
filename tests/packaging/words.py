"""``python -m tests.packaging.words``: words that are not plain English in strings, comments and documentation."""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_CODE: Final = ("connect", "connectors", "rest")
_PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "deploy")

#: Each word or phrase, with what to write for it.
WORDS: Final = {
    r"anew": "again",
    r"heed(?:s|ed|ing)?": "obey, use",
    r"mend(?:s|ed|ing)?": "repair, fix",
    r"whence": "from which",
    r"kin": "the name of the thing",
    r"beside": "next to, together with",
    r"for ever": "permanently, without end",
    r"so (?:many|long)": "a number, or 'for that time'",
    r"who(?:so)?ever": "the user, the caller, each consumer that",
    r"(?:no|some)body": "no one, a consumer, an operator",
    r"(?<!there )(?:is|are|was|were) no(?! longer)(?= )": "is not a, or: there is no",
    r"laid": "put, placed",
    r"in the way": "the resource that prevents it",
    r"told": "notified, logged, reported",
    r"stands(?! for)": "is",
    r"heals?|healed": "recovers",
    r"Pure\.": "nothing: the package says it",
    r"Raises as": "the names of the exceptions",
}
_FOUND: Final = re.compile(r"(?<![\w.`-])(?:" + "|".join(f"({word})" for word in WORDS) + r")(?![\w`-])", re.IGNORECASE)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a file that people read, by number: strings and comments of Python, and pages outside code."""
    text = path.read_text()
    if path.suffix != ".py":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not line.startswith("    "):
                yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield number, re.sub(r"``[^`]*``|\{[^{}]*\}", "", line)


def faults(path: Path) -> Iterator[str]:
    """Each listed word in a file, as ``make check`` prints it."""
    instead = list(WORDS.values())
    for number, line in texts(path):
        for found in _FOUND.finditer(line):
            yield f"{path}:{number}: {found[0]!r}; write {instead[(found.lastindex or 0) - 1]}"


def files(root: Path = ROOT) -> Iterator[Path]:
    for place in (*_CODE, *_PAGES):
        found = root / place
        for path in [found] if found.is_file() else sorted(found.rglob("*")):
            if path.suffix in {".py", ".md"}:
                yield path


def main() -> int:
    said = [fault for path in files() for fault in faults(path)]
    print(*said, sep="\n", end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
