"""The last hour of a flow: rates from counts that begin again with each task, and a bound."""

from connectors.flow_facts import FlowHistory, Trend
from connectors.flow_progress import FlowLag, Lag, lag_of

LAG = Lag(3, 12, 1200, 500, 0)


def test_rates_are_those_since_the_last_sample_and_a_task_that_began_again_counts_from_0() -> None:
    history = FlowHistory()
    history.observe(0, {1: (1000, 9000)}, LAG)
    history.observe(10_000, {1: (1500, 14_000)}, None)
    history.observe(20_000, {2: (100, 1000)}, LAG)
    assert history.to_json() == {
        "at_ms": [0, 10_000, 20_000],
        "records_per_s": [None, 50.0, 10.0],
        "bytes_per_s": [None, 500.0, 100.0],
        "lag_records": [12, None, 12],
        "lag_ms": [500, None, 500],
    }
    assert history.rates(21_000, {2: (900, 9000)}) == (10.0, 100.0)
    assert history.rates(24_000, {2: (900, 9000)}) == (200.0, 2000.0)


def test_the_oldest_sample_leaves_after_an_hour() -> None:
    history = FlowHistory()
    for index in range(400):
        history.observe(index * 10_000, {}, LAG)
    times = history.to_json()["at_ms"]
    assert len(times) == 360 and times[0] == 400_000 and times[-1] == 3_990_000


def test_a_clock_that_is_set_back_begins_the_history_again() -> None:
    history = FlowHistory()
    history.observe(3_600_000, {1: (1000, 9000)}, LAG)
    history.observe(0, {1: (2000, 9000)}, LAG)
    history.observe(10_000, {1: (3000, 9000)}, LAG)
    shown = history.to_json()
    assert (shown["at_ms"], shown["records_per_s"]) == ([0, 10_000], [None, 100.0])


def test_the_trend_of_a_lag_begins_again_when_the_clock_is_set_back() -> None:
    trend = Trend()
    for at_ms, position in ((3_600_000, 0), (0, 10), (30_000, 40)):
        trend.observe(at_ms, FlowLag((lag_of("t", 0, "us.t", position, 0, 100, -1),)))
    assert (trend.copied_per_s, trend.growth_per_s) == (1.0, -1.0)
