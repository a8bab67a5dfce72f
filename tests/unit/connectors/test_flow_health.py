"""Which flows are alive, and who reaches whom, from what heartbeats tell; and what that looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from connect.cli.commands.topology import age_words, show_topology, topology_as_json
from connectors.heartbeat import (
    Age,
    ClusterHeartbeats,
    ConfiguredFlow,
    FlowHealth,
    FlowState,
    TopicHeartbeats,
    Way,
    flow_health,
    has_stopped,
    way_health,
)
from connectors.policy import DefaultReplicationPolicy

NOW_MS = 1_700_000_000_000
POLICIES = (DefaultReplicationPolicy(),)
DOCS = Path(__file__).parents[3] / "docs" / "operations.md"


def reported(topic: str, read_from_s: float | None = None, **seconds_ago: float) -> TopicHeartbeats:
    """``us_eu=5``: the newest of us->eu is five seconds old."""
    newest = {tuple(flow.split("_")): NOW_MS - int(ago * 1000) for flow, ago in seconds_ago.items()}
    since = None if read_from_s is None else NOW_MS - int(read_from_s * 1000)
    return TopicHeartbeats(topic, newest, since)  # type: ignore[arg-type]


def seen(alias: str, *topics: TopicHeartbeats) -> ClusterHeartbeats:
    return ClusterHeartbeats(alias, topics, POLICIES)


CLUSTERS = {
    "us": seen("us", reported("heartbeats", eu_us=720.0, ap_us=0.4), reported("ap.heartbeats", us_ap=0.9, xx_ap=0.2)),
    "eu": seen(
        "eu",
        reported("heartbeats", us_eu=0.6, old_eu=90_000.0),
        reported("us.heartbeats", eu_us=720.8, ap_us=1.2),
        reported("us.ap.heartbeats", xx_ap=1.9),
    ),
    "ap": ClusterHeartbeats("ap", policies=POLICIES, error="cluster ap: 10.0.0.9:9092 does not answer"),
}
WANTED = [
    ConfiguredFlow("us", "eu", True, 1),
    ConfiguredFlow("eu", "us", True, 1),
    ConfiguredFlow("ap", "us", True, 1),
    ConfiguredFlow("ap", "eu", False, 1),
    ConfiguredFlow("eu", "ap", False, None),
    ConfiguredFlow("us", "ap", True, 1),
]


def test_flows_are_told_by_the_heartbeats_at_their_target() -> None:
    found = {one.name: (one.state, one.age, one.in_file) for one in flow_health(WANTED, CLUSTERS, NOW_MS, 30)}
    assert found == {
        "us->eu": (FlowState.ALIVE, Age(0.6), True),
        "eu->us": (FlowState.STOPPED, Age(720.0), True),
        "ap->us": (FlowState.ALIVE, Age(0.4), True),
        "ap->eu": (FlowState.NONE, None, True),
        "eu->ap": (FlowState.UNKNOWN, None, True),
        "us->ap": (FlowState.UNKNOWN, None, True),
        "old->eu": (FlowState.STOPPED, Age(90_000.0), False),
    }


@pytest.mark.parametrize(
    ("topics", "every_s", "state", "age"),
    [
        ((reported("heartbeats", us_eu=31),), 1, FlowState.STOPPED, Age(31.0)),
        ((reported("heartbeats", us_eu=31),), 11, FlowState.ALIVE, Age(31.0)),  # three of its own intervals
        ((reported("heartbeats", us_eu=-5),), 1, FlowState.ALIVE, Age(0.0)),  # a clock that is ahead
        ((reported("heartbeats", us_eu=5),), None, FlowState.OFF, Age(5.0)),
        ((reported("heartbeats", 7200, ap_eu=1),), 1, FlowState.STOPPED, Age(7200.0, at_least=True)),
        ((reported("heartbeats", 7, ap_eu=1),), 1, FlowState.STOPPED, Age(7.0, at_least=True)),
        ((), 1, FlowState.NONE, None),
        ((reported("us.heartbeats", us_eu=5),), 1, FlowState.NONE, None),  # of another cluster that is called so
    ],
)
def test_states_of_a_flow(
    topics: tuple[TopicHeartbeats, ...], every_s: int | None, state: FlowState, age: Age | None
) -> None:
    (found,) = flow_health(
        [ConfiguredFlow("us", "eu", True, every_s)], {"eu": ClusterHeartbeats("eu", topics, POLICIES)}, NOW_MS, 30
    )[:1]
    assert (found.state, found.age) == (state, age)


def test_ways_are_told_by_names_of_mirrored_topics() -> None:
    assert [(way.cluster, way.through, way.state) for way in way_health(WANTED, CLUSTERS.values(), NOW_MS, 30)] == [
        ("eu", ("us",), FlowState.ALIVE),
        ("eu", ("us", "ap"), FlowState.ALIVE),
        ("us", ("ap",), FlowState.ALIVE),
    ]
    empty = way_health(WANTED, [seen("eu", reported("us.heartbeats"))], NOW_MS, 30)
    assert [(way.state, way.age) for way in empty] == [(FlowState.NONE, None)]


@pytest.mark.parametrize(
    ("topic", "state"),
    [
        (reported("us.heartbeats", eu_us=45), FlowState.ALIVE),  # of a flow that sends one a minute
        (reported("us.heartbeats", eu_us=181), FlowState.STOPPED),
        (reported("us.heartbeats", xx_us=45), FlowState.STOPPED),  # nobody knows how often
        (reported("us.heartbeats", eu_us=45, ap_us=40), FlowState.ALIVE),  # the worker of ap->us may have stopped
        (reported("us.heartbeats", eu_us=200, ap_us=3), FlowState.ALIVE),
        (reported("us.heartbeats", eu_us=200, ap_us=40), FlowState.STOPPED),
    ],
)
def test_a_way_lives_as_long_as_a_flow_whose_heartbeats_come_over_it(topic: TopicHeartbeats, state: FlowState) -> None:
    wanted = [
        ConfiguredFlow("us", "eu", True, 60),
        ConfiguredFlow("eu", "us", False, 60),
        ConfiguredFlow("ap", "us", True, 1),
    ]
    (way,) = way_health(wanted, [seen("eu", topic)], NOW_MS, 30)
    assert (way.state, way.in_file) == (state, True)


FLOWS = [ConfiguredFlow("us", "eu", True, 1), ConfiguredFlow("eu", "us", False, 1)]


@pytest.mark.parametrize(
    ("wanted", "on_us", "on_eu", "arrived", "stopped"),
    [
        (FLOWS, 1.0, 1.0, reported("us.heartbeats", eu_us=2), False),
        (FLOWS, 1.0, 1.0, reported("us.heartbeats", eu_us=700), True),  # the worker lives and does not mirror
        (FLOWS, 1.0, 1.0, reported("us.heartbeats"), True),
        (FLOWS, 1.0, 700.0, reported("us.heartbeats", eu_us=2), True),
        (FLOWS, 700.0, 1.0, reported("us.heartbeats", eu_us=700), True),
        # What somebody else mirrors, or no longer does, is not of this file.
        (FLOWS, 1.0, 1.0, reported("xx.heartbeats", eu_xx=700), False),
        ([ConfiguredFlow("us", "eu", False, 1), FLOWS[1]], 1.0, 1.0, reported("us.heartbeats", eu_us=700), False),
        (FLOWS, 1.0, 1.0, reported("us.xx.heartbeats", yy_xx=700), False),
        # Nobody sends heartbeats over it any more.
        ([FLOWS[0], ConfiguredFlow("eu", "us", False, None)], 700.0, 1.0, reported("us.heartbeats", eu_us=700), False),
    ],
)
def test_a_way_that_has_stopped_counts_like_a_flow(
    wanted: list[ConfiguredFlow], on_us: float, on_eu: float, arrived: TopicHeartbeats, stopped: bool
) -> None:
    clusters = {
        "us": seen("us", reported("heartbeats", eu_us=on_us)),
        "eu": seen("eu", reported("heartbeats", us_eu=on_eu), arrived),
    }
    flows = flow_health(wanted, clusters, NOW_MS, 30)
    assert has_stopped(flows, way_health(wanted, clusters.values(), NOW_MS, 30)) == stopped


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (None, "none"),
        (Age(0.44), "0.4 s ago"),
        (Age(720), "12 min ago"),
        (Age(7200, at_least=True), "more than 2 h ago"),
        (Age(200_000), "2 d ago"),
    ],
)
def test_words_for_ages(age: Age | None, words: str) -> None:
    assert age_words(age) == words


def test_what_is_shown_stands_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    health = flow_health(WANTED, CLUSTERS, NOW_MS, 30)
    show_topology(list(CLUSTERS.values()), health, way_health(WANTED, CLUSTERS.values(), NOW_MS, 30))
    shown = capsys.readouterr().out
    kept = "".join(f"    {line.rstrip()}".rstrip() + "\n" for line in shown.strip("\n").splitlines())
    assert kept in DOCS.read_text(), f"docs/operations.md does not show what heliograph topology prints:\n{kept}"


def test_json() -> None:
    health = [FlowHealth("us", "eu", FlowState.STOPPED, Age(7.5, at_least=True), in_file=True)]
    ways = [Way("eu", "us.ap.heartbeats", ("us", "ap"), FlowState.NONE, None, in_file=True)]
    assert topology_as_json([CLUSTERS["us"], CLUSTERS["ap"]], health, ways) == {
        "format": 1,
        "complete": False,
        "clusters": [
            {"alias": "us", "error": None},
            {"alias": "ap", "error": "cluster ap: 10.0.0.9:9092 does not answer"},
        ],
        "flows": [{"flow": "us->eu", "state": "stopped", "in_file": True, "age_seconds": 7.5, "at_least": True}],
        "ways": [
            {
                "cluster": "eu",
                "from": "ap",
                "through": ["us", "ap"],
                "hops": 2,
                "topic": "us.ap.heartbeats",
                "state": "no heartbeats",
                "in_file": True,
                "age_seconds": None,
            }
        ],
    }
