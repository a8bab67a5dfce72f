"""Which offsets may be stored, against a model that looks at all records at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connect.runtime.task.at_least_once import Submitted, SubmittedRecords

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 1)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("drop"), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


@given(_STEPS, st.integers(1, 3))
def test_an_offset_is_committable_once_it_and_all_before_it_are_acknowledged(
    steps: list[tuple[str, int]], taken_every: int
) -> None:
    records = SubmittedRecords()
    everything: list[Submitted] = []
    stored: dict[bytes, int] = {}
    taken = 0
    for place, (what, number) in enumerate(steps):
        if what == "submit":
            everything.append(records.submit(b"%d" % number, {"n": len(everything)}))
        elif what == "ack" and everything:
            records.ack(everything[number % len(everything)])
        elif what == "drop" and everything and not everything[-1].acked:
            records.drop(everything.pop())
        if place % taken_every == 0:
            committable = records.committable()
            stored.update({key: int(str(offset["n"])) for key, offset in committable.offsets.items()})
            taken += committable.messages
            assert stored == _wanted(everything)
            assert committable.pending == len(everything) - taken
        assert records.unacked == sum(1 for record in everything if not record.acked)


def _wanted(everything: list[Submitted]) -> dict[bytes, int]:
    wanted: dict[bytes, int] = {}
    blocked: set[bytes] = set()
    for number, record in enumerate(everything):
        if not record.acked:
            blocked.add(record.key)
        if record.key not in blocked:
            wanted[record.key] = number
    return wanted


def test_acknowledging_twice_counts_once() -> None:
    records = SubmittedRecords()
    one = records.submit(b"a", {})
    records.submit(b"a", {})
    records.ack(one)
    records.ack(one)
    assert records.unacked == 1
