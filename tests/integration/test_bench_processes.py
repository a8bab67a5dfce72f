"""The sampler against real processes: a grandchild that worked and ended is in the sum, and memory is seen."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

from bench.processes import TreeSampler
from tests.kit.processes import wait_until

_DEADLINE_S = 120.0
_BURN_S = 0.4
#: The kernel counts a process's time in ticks of 10 ms.
_TICKS_S = 0.05
_GRANDCHILD = f"""
import sys, time
while time.process_time() < {_BURN_S}: pass
print("burnt", flush=True)
sys.stdin.readline()
"""
_CHILD = f"""
import resource, subprocess, sys
print("started", flush=True)
sys.stdin.readline()
grandchild = subprocess.Popen([sys.executable, "-c", {_GRANDCHILD!r}], stdin=subprocess.PIPE)
sys.stdin.readline()
grandchild.communicate()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, flush=True)
sys.stdin.readline()
"""


def test_work_of_an_ended_grandchild_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "started\n"
        sampler = TreeSampler(child.pid, cpu_interval_s=0.01)
        before = sampler.sample()
        sampler.start()
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "burnt\n"
        # The thread of the sampler looks by itself, whenever the machine lets it.
        wait_until(
            lambda: any(sample.processes == 2 for sample in sampler._samples),
            _DEADLINE_S,
            "the sampler has seen the grandchild",
        )
        child.stdin.write("end the grandchild\n")
        child.stdin.flush()
        burnt_s = float(child.stdout.readline())
        after = sampler.sample()
        child.stdin.write("end\n")
        child.stdin.close()
        samples = sampler.stop()
    assert burnt_s >= _BURN_S - _TICKS_S
    assert burnt_s - _TICKS_S <= after.cpu_s - before.cpu_s < 2 * burnt_s, "counted, and not twice"
    assert before.pss_bytes > 1_000_000
    assert max(sample.processes for sample in samples) == 2
    # A process that ends between two looks at it may move a tick from its own count to its parent's only at the second.
    steps = [after.cpu_s - before.cpu_s for before, after in pairwise(samples)]
    assert min(steps) >= -_TICKS_S
