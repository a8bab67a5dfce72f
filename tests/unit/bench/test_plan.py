"""What is run, with whom, and for about how long."""

from __future__ import annotations

import pytest

from bench.bed import BenchError, Contents
from bench.contenders import CONTENDERS
from bench.loads import LOADS, Load, Paced
from bench.measure import check_batches
from bench.plan import Asked

ALL = tuple(load.name for load in LOADS)


def load(name: str) -> Load:
    (found,) = (one for one in LOADS if one.name == name)
    assert isinstance(found, Load)
    return found


def test_a_default_run_takes_half_an_hour_and_all_four_hours() -> None:
    assert 600 < Asked().duration_s() <= 30 * 60
    assert 3600 < Asked(loads=ALL).duration_s() <= 4 * 3600


def test_loads_are_as_large_as_their_window_needs() -> None:
    (usual,) = Asked(loads=["rf1-small"]).chosen()
    (short,) = Asked(loads=["rf1-small"], seconds=12, ramp_s=6).chosen()
    assert usual == load("rf1-small")
    assert isinstance(short, Load)
    assert short.records == load("rf1-small").records // 2


def test_loads_name_their_contenders_unless_others_are_asked_for() -> None:
    tiny = load("tiny-8-100ms")
    assert Asked().contenders_of(tiny) == ["mm2-default", "mm2-tuned", "heliograph"]
    assert Asked(only=["heliograph"], older=["before"]).contenders_of(tiny) == ["heliograph", "before"]
    assert Asked(only=[]).contenders_of(tiny) == []
    known = {contender.name for contender in CONTENDERS}
    assert all(known.issuperset(one.contenders) for one in LOADS)


def test_javas_defaults_copy_a_load_once() -> None:
    asked = Asked(loads=["tiny-8-100ms"])
    (tiny,) = asked.chosen()
    assert asked.contenders_in(tiny, 1) == ["mm2-default", "mm2-tuned", "heliograph"]
    assert asked.contenders_in(tiny, 2) == ["mm2-tuned", "heliograph"]


def test_brokers_that_have_not_copied_are_warmed_twice_for_latencies() -> None:
    cold = Asked(loads=["latency-rf1-200"]).duration_s()
    assert cold == (16 + 20 + 63) * 2 + (16 + 28) * 2 * 2


def test_latency_has_one_long_window() -> None:
    (paced,) = (one for one in LOADS if one.name == "latency-rf3-2000")
    assert isinstance(paced, Paced)
    assert Asked().rounds_of(paced) == 1
    assert Asked().seconds_of(paced) > 60, "a change of epochs is in it"
    assert Asked(seconds=600).seconds_of(paced) == 600


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        (Asked(), "python -m bench"),
        (Asked(loads=ALL), "python -m bench --all"),
        (
            Asked(loads=["start"], only=["heliograph"], rounds=1, seconds=10.0, ramp_s=4.0, has_ceiling=False),
            "python -m bench --loads start --only heliograph --seconds 10 --rounds 1 --ramp 4 --no-ceiling",
        ),
        (Asked(older=["before"], scale=0.5), "python -m bench --older before --scale 0.5"),
    ],
)
def test_the_command_repeats_a_run(asked: Asked, command: str) -> None:
    assert asked.command() == command


def test_loads_of_the_same_data_follow_one_another() -> None:
    for _, loads in Asked(loads=ALL).beds():
        topics = [one.topic for one in loads if isinstance(one, Load)]
        changes = [topic for before, topic in zip([None, *topics], topics, strict=False) if topic != before]
        assert len(changes) == len(set(topics))


def test_contender_files_name_what_the_bench_relies_on() -> None:
    zstd = load("rf3-8-16k-zstd")
    ways_in = ({"bootstrap.servers": "127.0.0.1:1"}, {"bootstrap.servers": "127.0.0.1:2", "sasl.mechanism": "PLAIN"})
    for contender in CONTENDERS:
        properties = contender.properties(ways_in, zstd)
        assert properties["us->eu.enabled"] == "true"
        assert properties["us->eu.topics"] == zstd.topic
        assert properties["us.bootstrap.servers"] == "127.0.0.1:1"
        assert properties["eu.sasl.mechanism"] == "PLAIN"
        assert properties["replication.factor"] == properties["offset.storage.replication.factor"] == "3"
        recompresses = properties.get("us->eu.producer.override.compression.type") == "zstd"
        assert recompresses == contender.keeps_codec


def test_tuning_without_effect_is_refused() -> None:
    tuned = next(one for one in CONTENDERS if one.name == "mm2-tuned")
    copied = Contents(records=1000, record_bytes=100, batch_bytes=40_000)
    check_batches(tuned, load("rf3-8-16k-zstd"), copied)
    with pytest.raises(BenchError, match="its tuning has no effect"):
        check_batches(tuned, load("rf3-8-16k"), copied)
