"""Play the model of resuming for ``--seeds N``, or look for the first seed that shows what a rule is for."""

from __future__ import annotations

import argparse
import logging
import time

import pytest

from tests.simulation.resume_world import Violation, play
from tests.simulation.test_resume import MUTANTS


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="resume_model", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if options.mutants:
        return max([_look_for(name, options.first, options.mutants) for name in range(len(MUTANTS))])
    began_s = time.monotonic()
    violations, stopped, announced = list[str](), 0, 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            world = play(seed)
        except Violation as violation:
            violations.append(str(violation))
            continue
        stopped += bool(world.stopped)
        announced += bool(world.announced)
    print(f"seeds: {options.seeds} from {options.first} in {time.monotonic() - began_s:.0f} s")
    print(f"stopped with a reason: {stopped}; announced duplicates: {announced}")
    print(f"violations: {len(violations)} (goal 0)")
    print(*violations[:3], sep="\n")
    return int(bool(violations))


def _look_for(number: int, first: int, most: int) -> int:
    mutant, _ = MUTANTS[number]
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(first, first + most):
            try:
                play(seed)
            except AssertionError as error:
                print(f"{mutant.__name__}: seed {seed}, {str(error).splitlines()[0]}")
                return 0
    print(f"{mutant.__name__}: no counterexample in {most} seeds from {first}")
    return 1
