"""``python -m tests.simulation --seed N``: play one seed and print its story; ``--seeds N M``: play many."""

from __future__ import annotations

import argparse
import time

from tests.simulation.judge import Violation
from tests.simulation.play import Play


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and print its story")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "COUNT"), default=(0, 1_000))
    arguments = parser.parse_args()
    if arguments.seed is not None:
        one = Play(arguments.seed)
        try:
            one.run()
        finally:
            print("\n".join(one.world.story))
        return
    first, count = arguments.seeds
    begun_s, broken = time.monotonic(), 0
    for seed in range(first, first + count):
        try:
            Play(seed).run()
        except Violation as violation:
            broken += 1
            print(str(violation).splitlines()[0])
    print(f"{count} seeds in {time.monotonic() - begun_s:.1f} s, {broken} broken")


if __name__ == "__main__":
    main()
