"""CPU of a process tree is counted once, whoever exits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.processes import _Ledger, _Seen


def test_time_of_a_reaped_child_moves_to_its_parent() -> None:
    ledger = _Ledger()
    assert ledger.update({(1, 0.0): _Seen(0, 1.0), (2, 0.0): _Seen(1, 5.0)}) == 6.0
    assert ledger.update({(1, 0.0): _Seen(0, 6.5)}) == 6.5


def test_time_of_an_orphan_that_ends_stays_counted() -> None:
    ledger = _Ledger()
    ledger.update({(1, 0.0): _Seen(0, 1.0), (3, 0.0): _Seen(999, 4.0)})
    assert ledger.update({(1, 0.0): _Seen(0, 1.5)}) == 5.5
    assert ledger.update({(1, 0.0): _Seen(0, 2.0)}) == 6.0


def test_a_process_id_used_again_is_another_process() -> None:
    ledger = _Ledger()
    ledger.update({(1, 0.0): _Seen(0, 1.0), (7, 10.0): _Seen(999, 3.0)})
    assert ledger.update({(1, 0.0): _Seen(0, 1.0), (7, 20.0): _Seen(999, 0.5)}) == 4.5


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_the_sum_never_falls_while_children_come_and_go(works: list[float]) -> None:
    """A twin of the kernel: each child works, ends and is waited for by the root."""
    ledger, root, before = _Ledger(), 0.0, 0.0
    for pid, work in enumerate(works, start=2):
        total = ledger.update({(1, 0.0): _Seen(0, root), (pid, 0.0): _Seen(1, work)})
        assert total >= before
        root += work
        before = ledger.update({(1, 0.0): _Seen(0, root)})
        assert before >= total
    assert before == root
