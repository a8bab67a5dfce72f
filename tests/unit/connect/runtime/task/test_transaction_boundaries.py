"""Where transactions end."""

from __future__ import annotations

import pytest

from connect.core.errors import PermanentError
from connect.runtime.task.source_config import Boundaries, ConnectorBoundaries, Ending, IntervalBoundaries
from tests.kit.work import record


def test_poll_commits_each_batch_and_no_record() -> None:
    poll = Boundaries()
    assert poll.after_record(record(1)) is Ending.NONE
    assert poll.after_batch(0) is Ending.COMMIT
    assert poll.at_end() is Ending.COMMIT


def test_interval_commits_the_first_batch_after_each_interval() -> None:
    interval = IntervalBoundaries(100)
    interval.begin(1000)
    assert [interval.after_batch(now) for now in (1000, 1099, 1100, 1150, 1199, 1200)] == [
        Ending.NONE,
        Ending.NONE,
        Ending.COMMIT,
        Ending.NONE,
        Ending.NONE,
        Ending.COMMIT,
    ]
    assert interval.at_end() is Ending.COMMIT
    interval.begin(5000)
    assert interval.after_batch(5099) is Ending.NONE


def test_the_connector_says_it_for_a_batch_once() -> None:
    said = ConnectorBoundaries()
    assert said.after_batch(0) is Ending.NONE
    said.commit_transaction()
    assert said.after_batch(0) is Ending.COMMIT
    assert said.after_batch(0) is Ending.NONE
    said.abort_transaction()
    assert said.at_end() is Ending.ABORT
    assert said.at_end() is Ending.NONE


def test_the_connector_says_it_for_a_record_and_not_for_one_that_is_equal() -> None:
    said = ConnectorBoundaries()
    first, second = record(1), record(1)
    assert first == second
    said.abort_transaction(second)
    assert said.after_record(first) is Ending.NONE
    assert said.after_record(second) is Ending.ABORT
    assert said.after_record(second) is Ending.NONE


@pytest.mark.parametrize("of_record", [True, False])
def test_both_at_once_is_an_error_of_the_task(of_record: bool) -> None:
    said = ConnectorBoundaries()
    one = record(1)
    said.commit_transaction(one if of_record else None)
    said.abort_transaction(one if of_record else None)
    with pytest.raises(PermanentError, match="commit and to abort"):
        said.after_record(one) if of_record else said.after_batch(0)
