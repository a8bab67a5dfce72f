"""``make mutants``: change one place of a pure module at a time, and see whether its unit tests notice.

A seed chooses the places. A change that no test notices survives; the run fails if more than a tenth survive, or one in
the modules of ``_NONE_SURVIVES``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).parents[2]
#: Modules, and the tests below ``tests/unit`` that must notice a change in them.
TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "connectors/dataplane/batches/copier.py": ("connectors/dataplane/batches",),
    "connectors/dataplane/batches/send_queue.py": ("connectors/dataplane/batches",),
    "connectors/dataplane/batches/sequencer.py": ("connectors/dataplane/batches",),
    "connectors/dataplane/batches/fetched_batches.py": ("connectors/dataplane",),
    "connectors/dataplane/resume.py": ("connectors/dataplane/test_resume.py", "connectors/dataplane/test_resumer.py"),
    "connectors/offset_map/runs_and_chunks.py": ("connectors/offset_map", "connectors/checkpoint"),
    "connectors/offset_map/log_alignment.py": ("connectors/offset_map",),
    "connectors/source/positions/ledger.py": ("connectors/source/positions",),
    "connectors/source/positions/gap_policy.py": ("connectors/source/positions",),
    "connectors/checkpoint/offset_translation.py": ("connectors/checkpoint",),
    "connectors/failover/plan.py": ("connectors/failover", "connect/cli/commands"),
    "connect/core/herder/membership.py": ("connect/core/herder",),
    "connect/core/herder/assignor.py": ("connect/core/herder",),
    "connect/wire/merge.py": ("connect/wire",),
}
#: A change that survives in one of these could lose or duplicate records.
_NONE_SURVIVES: Final = (
    "connectors/dataplane/batches/copier.py",
    "connectors/dataplane/batches/send_queue.py",
    "connectors/dataplane/resume.py",
    "connectors/offset_map/runs_and_chunks.py",
)
_FOUND_SHARE: Final = 0.9
_SLOWEST_S: Final = 300.0
_COPIED: Final = (
    "connect",
    "connectors",
    "rest",
    "tests",
    "bench",
    "docs",
    "deploy",
    "pyproject.toml",
    "README.md",
    "Makefile",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
_COMPARED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place: the module, its line, the text there and the text that takes its place."""

    module: str
    line: int
    before: str
    after: str
    text: str


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Each change of a module: comparisons and their bounds, ``and`` and ``or``, ``not``, ``+`` and ``-``, ``min`` and
    ``max``, whole numbers, and statements left out. Annotations, logging, messages and declarations are left alone."""
    tree = ast.parse(source)
    skipped = {id(inner) for node in ast.walk(tree) for outer in _left_alone(node) for inner in ast.walk(outer)}
    raw, starts = source.encode(), [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    # By identity, because a function within a function would be walked twice.
    for node in {id(node): node for function in functions for node in ast.walk(function)}.values():
        if id(node) in skipped:
            continue
        for changed in _changes(node):
            assert isinstance(node, ast.expr | ast.stmt)
            begin, end = starts[node.lineno - 1] + node.col_offset, _end(node, starts)
            after = ast.unparse(changed)
            new = f"({after})" if isinstance(node, ast.expr) else after
            text = (raw[:begin] + new.encode() + raw[end:]).decode()
            yield Mutant(module, node.lineno, ast.unparse(node), after, text)


def _end(node: ast.expr | ast.stmt, starts: list[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset


def _left_alone(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from node.decorator_list
            yield node.args
            if node.returns is not None:
                yield node.returns
        case ast.AnnAssign():
            yield node.annotation
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            yield node
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("_log" | "_LOG" | "log")))) | ast.Expr(ast.Constant()):
            yield node
        case ast.Call(ast.Name("range" | "len" | "cast" | "isinstance")):
            yield node.func


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    changed = copy.copy(node)
    match changed:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            changed.ops = [_COMPARED[type(op)]()]
            yield changed
        case ast.BoolOp():
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield changed.operand
        case ast.BinOp(op=ast.Add()):
            changed.op = ast.Sub()
            yield changed
        case ast.BinOp(op=ast.Sub()):
            changed.op = ast.Add()
            yield changed
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            changed.func = ast.Name("max" if name == "min" else "min", ast.Load())
            yield changed
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue():
            yield ast.Pass()


class _Trees:
    """Copies of the project, one for each run at a time, in which a module is changed and put back."""

    def __init__(self, folder: Path, number: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for index in range(number):
            tree = folder / str(index)
            tree.mkdir()
            for name in _COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
                else:
                    shutil.copy(source, tree / name)
            self._free.put(tree)

    def notices(self, module: str, text: str, tests: tuple[str, ...]) -> bool:
        """Return whether a test fails with this text of the module, or goes on without end."""
        tree = self._free.get()
        path = tree / module
        before = path.read_text()
        try:
            path.write_text(text)
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider"]
            command += [f"tests/unit/{test}" for test in tests]
            environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
            environment.pop("PYTHONPYCACHEPREFIX", None)
            try:
                ended = subprocess.run(
                    command, cwd=tree, env=environment, capture_output=True, timeout=_SLOWEST_S, check=False
                )
            except subprocess.TimeoutExpired:
                return True
            return ended.returncode != 0
        finally:
            path.write_text(before)
            self._free.put(tree)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the places")
    parser.add_argument("--each", type=int, default=10, help="changes of each module (default 10)")
    parser.add_argument("--modules", nargs="*", default=list(TARGETS), choices=list(TARGETS), metavar="MODULE")
    parser.add_argument("--processes", type=int, default=2, help="tests at a time (default 2)")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    print(f"mutants, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="heliograph-mutants-") as folder:
        trees = _Trees(Path(folder), options.processes)
        with ThreadPoolExecutor(options.processes) as pool:
            texts = {module: (ROOT / module).read_text() for module in options.modules}
            plain = pool.map(lambda module: trees.notices(module, texts[module], TARGETS[module]), options.modules)
            if broken := [module for module, fails in zip(options.modules, plain, strict=True) if fails]:
                print(f"the tests of {', '.join(broken)} fail without a change; repair them first")
                return 1
            chosen: list[Mutant] = []
            for module, text in texts.items():
                places = list(mutants(module, text))
                chosen += chance.sample(places, min(options.each, len(places)))
            found = pool.map(lambda one: trees.notices(one.module, one.text, TARGETS[one.module]), chosen)
            survived = []
            for one, noticed in zip(chosen, found, strict=True):
                print(
                    f"{'found   ' if noticed else 'SURVIVED'} {one.module}:{one.line}: {one.before} -> {one.after}",
                    flush=True,
                )
                if not noticed:
                    survived.append(one)
    share = 1 - len(survived) / max(1, len(chosen))
    print(f"{len(chosen)} changes, {len(survived)} survived, {share:.0%} found (goal {_FOUND_SHARE:.0%})")
    return 1 if share < _FOUND_SHARE or any(one.module in _NONE_SURVIVES for one in survived) else 0


if __name__ == "__main__":
    sys.exit(main())
