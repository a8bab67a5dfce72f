"""``make mutants``: change places of pure modules, chosen by a seed; do the unit tests notice nine of ten?"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import os
import random
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings

ROOT: Final = Path(__file__).parents[2]
_QUEUE_TESTS: Final = (
    "test_copier.py",
    "test_merging.py",
    "test_rejected_batches.py",
    "test_transactional_copier.py",
    "test_transforming_copier.py",
    "test_another_writer.py",
    "test_parsing.py",
    "test_copier_model.py",
)
#: Modules, and the files in their folder of ``tests/unit`` that must notice a change in them, the likeliest first.
TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "connectors/dataplane/batches/copier.py": _QUEUE_TESTS,
    "connectors/dataplane/batches/send_queue.py": _QUEUE_TESTS,
    "connectors/dataplane/batches/sequencer.py": ("test_rejected_batches.py", "test_merging.py"),
    "connectors/dataplane/batches/fetched_batches.py": (
        "test_decisions.py",
        "test_parsing.py",
        "test_copier.py",
        "test_merging.py",
    ),
    "connectors/dataplane/resume.py": ("test_resume.py", "test_resumer.py", "batches/test_copier_model.py"),
    "connectors/offset_map/runs_and_chunks.py": ("test_runs_and_chunks.py",),
    "connectors/offset_map/log_alignment.py": ("test_log_alignment.py",),
    "connectors/source/positions/ledger.py": (
        "test_ledger.py",
        "test_ledger_sets.py",
        "test_map_trimming.py",
        "test_position_store.py",
        "test_gap_policy.py",
    ),
    "connectors/source/positions/gap_policy.py": ("test_gap_policy.py", "test_recreated_topics.py"),
    "connectors/checkpoint/offset_translation.py": ("test_offset_sync_store.py", "test_offset_translation.py"),
    "connectors/failover/plan.py": ("test_plan.py", "test_guards.py", "test_group_offsets.py", "test_drain.py"),
    "connect/core/herder/membership.py": ("test_membership.py",),
    "connect/core/herder/assignor.py": ("test_assignor.py",),
    "connect/wire/merge.py": ("test_merge.py",),
}
#: A change that survives in one of these could lose or duplicate records.
_NONE_SURVIVES: Final = (
    "connectors/dataplane/batches/copier.py",
    "connectors/dataplane/batches/send_queue.py",
    "connectors/dataplane/resume.py",
    "connectors/offset_map/runs_and_chunks.py",
)
#: Lines that changes make of others without an effect on any result, by module; docs/reliability.md says why.
WITHOUT_EFFECT: Final[Mapping[str, frozenset[str]]] = {
    "connectors/offset_map/log_alignment.py": frozenset(
        {
            "for column, value in zip(self._columns, run, strict=(False)):",
            "self._waiting = {side: [Item(offset, _TOP)] for side, offset in zip(LogSide, top, strict=(False))}",
            "return len(self._columns[(1)])",
            "lowest_behind = [_FAR] * (len(pairs) + (2))",
            "kept, highest = [], -(2)",
            "return hash((key, value, tuple(headers), time_ms)) << (2)",
        }
    )
}
_FOUND_SHARE: Final = 0.9
#: A change that loops without end takes more of the processor than these seconds and twice what the tests take without
#: a change, or more memory.
_MORE_S: Final = 5
_FOREVER_S: Final = 600
_MOST_BYTES: Final = 4 * 1024**3
_OPTIONS: Final = (
    *("-x", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly", "--noconftest"),
    *("--timeout", str(_FOREVER_S), "-W", "ignore::pytest.PytestAssertRewriteWarning"),
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
    """One changed place: the module, the number of its line, this line before and after, and the whole text after."""

    module: str
    number: int
    before: str
    after: str
    text: str

    @property
    def has_effect(self) -> bool:
        return self.after not in WITHOUT_EFFECT.get(self.module, ())


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Each change of a module's conditions, arithmetic, numbers and statements; messages and declarations stay."""
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
            new = ast.unparse(changed)
            new = f"({new})" if isinstance(node, ast.expr) else new
            text = (raw[:begin] + new.encode() + raw[end:]).decode()
            before, after = (one.splitlines()[node.lineno - 1].strip() for one in (source, text))
            yield Mutant(module, node.lineno, before, after, text)


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
        case ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("super"))))):
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


def _preload(tests: Iterable[str]) -> list[FunctionType]:
    """Import the tests and what they need, so that a fork has it, with hypothesis tamed; return all functions."""
    phases, slow = (Phase.explicit, Phase.generate), [HealthCheck.too_slow]
    settings.register_profile(
        "mutants", deadline=None, derandomize=True, max_examples=50, phases=phases, suppress_health_check=slow
    )
    settings.load_profile("mutants")
    with redirect_stdout(StringIO()):
        pytest.main(["--collect-only", *_OPTIONS, *tests])
    functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
    gc.freeze()  # because pytest collects garbage several times
    return functions


def _change(functions: Iterable[FunctionType], module: str, text: str) -> None:
    """Give the functions of a module the code that they have in this text of it."""
    path = str(ROOT / module)
    codes = dict(_codes(compile(text, path, "exec", dont_inherit=True)))
    for one in functions:
        if one.__code__.co_filename == path:
            one.__code__ = codes[one.__code__.co_qualname]


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname, inner
            yield from _codes(inner)


def _start(functions: Iterable[FunctionType], module: str, text: str, most_s: int) -> int:
    """Run a module's tests with this text in a fork; return its pid. It ends with 0 if no test notices."""
    pid = os.fork()
    if pid:
        return pid
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silence, stream)
    _change(functions, module, text)
    os._exit(pytest.main([*_OPTIONS, *_tests_of(module)]))


def _tests_of(module: str) -> list[str]:
    folder = ROOT / "tests/unit" / Path(module).parent
    return [str(folder / name) for name in TARGETS[module]]


def _ends(
    functions: Iterable[FunctionType], texts: Iterable[tuple[str, str, int]], processes: int
) -> Iterator[tuple[int, bool, float]]:
    """Run the tests for each (module, text, CPU seconds); yield index, whether a test notices, and the seconds."""
    running: dict[int, int] = {}
    for index, one in enumerate(texts):
        running[_start(functions, *one)] = index
        if len(running) == processes:
            yield _ended(running)
    while running:
        yield _ended(running)


def _ended(running: dict[int, int]) -> tuple[int, bool, float]:
    pid, status, used = os.wait4(-1, 0)
    return running.pop(pid), status != 0, used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the places")
    parser.add_argument("--each", type=int, default=10, help="changes of each module (default 10)")
    parser.add_argument("--modules", nargs="*", default=list(TARGETS), choices=list(TARGETS), metavar="MODULE")
    parser.add_argument("--processes", type=int, default=2, help="tests at a time (default 2)")
    options = parser.parse_args()
    os.chdir(ROOT)
    print(f"mutants, seed {options.seed}", flush=True)
    functions = _preload({test for module in options.modules for test in _tests_of(module)})
    texts = [(module, (ROOT / module).read_text()) for module in options.modules]
    most_s: dict[str, int] = {}
    for index, fails, seconds in _ends(functions, [(*one, _FOREVER_S) for one in texts], options.processes):
        if fails:
            print(f"the tests of {texts[index][0]} fail without a change; repair them first")
            return 1
        most_s[texts[index][0]] = round(2 * seconds) + _MORE_S
    chosen: list[Mutant] = []
    for module, text in texts:
        places = list(mutants(module, text))
        random.Random(f"{options.seed} {module}").shuffle(places)
        chosen += places[: options.each]
    survived = []
    changed = [(one.module, one.text, most_s[one.module]) for one in chosen]
    for index, noticed, _ in _ends(functions, changed, options.processes):
        one = chosen[index]
        found = "found    " if noticed else "SURVIVED " if one.has_effect else "no effect"
        print(f"{found} {one.module}:{one.number}: {one.before} -> {one.after}", flush=True)
        if not noticed:
            survived.append(one)
    passes, said = verdict(chosen, survived)
    print(said)
    return 0 if passes else 1


def verdict(chosen: Sequence[Mutant], survived: Sequence[Mutant]) -> tuple[bool, str]:
    """Return whether the tests notice enough of the changes that can alter a result, and what is said of it."""
    wrong = [one for one in chosen if not one.has_effect and one not in survived]
    counted = [one for one in chosen if one.has_effect]
    missed = [one for one in survived if one.has_effect]
    share = 1 - len(missed) / max(1, len(counted))
    said = f"{len(chosen)} changes, {len(chosen) - len(counted)} without effect, {len(missed)} survived"
    said += f", {share:.0%} found (goal {_FOUND_SHARE:.0%})"
    for one in wrong:
        said += f"\n{one.module}:{one.number} has an effect: take it out of WITHOUT_EFFECT"
    return share >= _FOUND_SHARE and not wrong and not any(one.module in _NONE_SURVIVES for one in missed), said


if __name__ == "__main__":
    sys.exit(main())
