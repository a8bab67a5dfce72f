"""The demo's parts that need no broker: its records, its counters and its words."""

from __future__ import annotations

from itertools import islice

import orjson

from connect.cli.demo import Sample, counters, is_exact, verdict
from connect.cli.demo_shop import TOPICS, sample_records
from connectors.verification.direct import TopicsComparison


def test_sample_records_are_the_same_for_the_same_seed_and_fit_their_topics() -> None:
    records = list(islice(sample_records(7), 2000))
    assert records == list(islice(sample_records(7), 2000))
    assert records != list(islice(sample_records(8), 2000))
    partitions = {topic.name: topic.partitions for topic in TOPICS}
    assert {record.topic for record in records} == set(partitions)
    assert all(0 <= record.partition < partitions[record.topic] for record in records)
    assert all(isinstance(orjson.loads(record.value), dict) for record in records)


def test_the_demo_shows_every_codec() -> None:
    assert {topic.codec for topic in TOPICS} == {None, "gzip", "snappy", "lz4", "zstd"}


def test_counters_are_summed_over_partitions_with_and_without_a_suffix() -> None:
    beginning = "kafka_connect_mirror_MirrorSourceConnector_"
    text = "\n".join(
        [
            f"# TYPE {beginning}record_count counter",
            f'{beginning}record_count{{partition="0"}} 10',
            f'{beginning}record_count_total{{partition="1"}} 5',
            f'{beginning}byte_count{{partition="0"}} 2000',
            f'{beginning}replication_latency_ms_avg{{partition="0"}} 20',
            f'{beginning}replication_latency_ms_avg{{partition="1"}} 40',
            f'{beginning}replication_latency_ms_avg{{partition="2"}} NaN',
            'kafka_connect_other_record_count{partition="0"} 99',
        ]
    )
    assert counters(text) == (15.0, 2000.0, 30.0)
    assert counters("") == (0.0, 0.0, 0.0)


def test_a_line_has_rates_cpu_and_latency_and_fits_a_narrow_terminal() -> None:
    before = Sample(10.0, 100, 1_000_000, 2.0, 0.0)
    line = Sample(12.0, 10_100, 5_000_000, 2.5, 45.0).line(before)
    assert line.split() == ["5,000", "records/s", "2.0", "MB/s", "CPU", "25%", "of", "a", "core", "latency", "45", "ms"]
    assert len(Sample(11.0, 9e9, 9e12, 99.0, 999_999.0).line(before)) <= 80


def test_the_verdict_counts_what_is_lost_and_duplicated() -> None:
    equal = TopicsComparison(21, 200)
    assert is_exact(200, equal)
    assert verdict(200, equal) == "200 records in 21 partitions: 0 lost, 0 duplicated"
    assert not is_exact(201, equal)
    assert verdict(201, equal) == "DIFFERENT: 200 records are equal, 201 were written"
    different = TopicsComparison(1, 7, "orders-0 at offset 7 and us.orders-0 at offset 9 differ in value")
    assert not is_exact(7, different)
    assert verdict(7, different) == f"DIFFERENT after 7 equal records: {different.difference}"
