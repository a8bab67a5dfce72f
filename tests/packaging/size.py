"""``python -m tests.packaging.size`` writes the lines by package to ``docs/size.md``; ``--check`` refuses growth."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "size.md"
PRODUCT: Final = ("connect", "connectors", "rest")
#: Lines of a package are rounded up to these, so that a small change needs no other page.
_STEP: Final = 100
_MOST_LINES: Final = 500
#: Shapes of Java's JSON have Java's names, and users import Java's ``TopicPartition`` from the client.
_MAY_REPEAT: Final = ("rest/bodies.py", "connectors/client.py")

_HEAD: Final = """# Size

Files and lines of each package, without its subpackages; lines are rounded up to the next hundred. `make check` fails
when a package is larger than its row, when a file has more than 500 lines, and when two classes have one name. Write
the page again with `.venv/bin/python -m tests.packaging.size`.

| package | files | lines |
| --- | ---: | ---: |
"""


class Size(NamedTuple):
    files: int
    lines: int


def sizes(root: Path = ROOT) -> dict[str, Size]:
    found: dict[str, list[int]] = defaultdict(list)
    for path in modules(root):
        if path.name != "__init__.py":
            found[str(path.parent.relative_to(root))].append(len(path.read_text().splitlines()))
    return {name: Size(len(lines), sum(lines)) for name, lines in sorted(found.items())}


def modules(root: Path) -> list[Path]:
    return sorted(path for top in PRODUCT for path in (root / top).rglob("*.py"))


def page(found: Mapping[str, Size]) -> str:
    rows = [f"| `{name}` | {size.files} | {rounded(size.lines)} |\n" for name, size in found.items()]
    total = Size(sum(size.files for size in found.values()), sum(size.lines for size in found.values()))
    return f"{_HEAD}{''.join(rows)}| all | {total.files} | {rounded(total.lines)} |\n"


def rounded(lines: int) -> int:
    return -(-lines // _STEP) * _STEP


def allowed(text: str) -> dict[str, Size]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name.strip("`"): Size(int(files), int(lines)) for name, files, lines in rows}


def faults(found: Mapping[str, Size], rows: Mapping[str, Size], root: Path = ROOT) -> list[str]:
    """What ``make check`` says, a sentence each."""
    said = []
    for name in sorted({*found, *rows}):
        if name not in rows:
            said.append(f"package {name} has no row in docs/size.md")
        elif name not in found:
            said.append(f"docs/size.md has a row for {name}, which is no package")
        elif found[name].files > rows[name].files or found[name].lines > rows[name].lines:
            has, may = found[name], rows[name]
            said.append(f"{name} has {has.files} files, {has.lines} lines; docs/size.md says {may.files}, {may.lines}")
    classes: dict[str, list[str]] = defaultdict(list)
    for path in modules(root):
        text, where = path.read_text(), str(path.relative_to(root))
        lines = len(text.splitlines())
        if lines > _MOST_LINES:
            said.append(f"{where} has {lines} lines, more than {_MOST_LINES}; divide it by idea")
        if where not in _MAY_REPEAT:
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(where)
    said += [f"class {name} is in {' and in '.join(paths)}" for name, paths in classes.items() if len(paths) > 1]
    return said


def main(arguments: list[str]) -> int:
    found = sizes()
    if arguments != ["--check"]:
        PAGE.write_text(page(found))
        return 0
    said = faults(found, allowed(PAGE.read_text()))
    print(*said, sep="\n", end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
