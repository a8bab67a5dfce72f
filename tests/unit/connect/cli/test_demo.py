"""The demo's parts that need no broker: its records, its file, its words and its table."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from connect.cli.demo import properties, records_left, summary_lines
from connect.cli.demo_shop import TOPICS, LastWarning, LiveView, PlainView, picture, sample_records
from connect.cli.rates import FlowRates, TopicRates
from connectors.config.mm2_properties import load, mirrored
from connectors.flow_progress import FlowProgress, PartitionView
from connectors.formats.types import FlowName
from connectors.inspection.topic_verification import VerificationReport

ORDERS = TopicRates(
    FlowName("us", "eu"), "orders", "us.orders", 6, 12_000, 900_000, 1200.0, 90_000.0, 35, 12, {"shallow": 80}
)
FLOW = FlowRates(FlowName("us", "eu"), "running", 4, (ORDERS,))


def test_sample_records_are_the_same_for_the_same_seed_and_fit_their_topics() -> None:
    records = list(islice(sample_records(7), 2000))
    assert records == list(islice(sample_records(7), 2000))
    assert records != list(islice(sample_records(8), 2000))
    partitions = {topic.name: topic.partitions for topic in TOPICS}
    assert {record.topic for record in records} == set(partitions)
    assert all(0 <= record.partition < partitions[record.topic] for record in records)
    assert all(isinstance(orjson.loads(record.value), dict) for record in records)


def test_a_customer_stays_in_one_partition_of_a_topic() -> None:
    where = {(record.topic, record.key, record.partition) for record in islice(sample_records(1), 5000)}
    assert len(where) == len({(topic, key) for topic, key, _ in where})


def test_the_demo_shows_every_codec() -> None:
    assert {topic.codec for topic in TOPICS} == {None, "gzip", "snappy", "lz4", "zstd"}


def test_the_file_of_the_demo_enables_its_flow_and_nothing_that_is_not_supported(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(properties({"us": "127.0.0.1:19092", "eu": "127.0.0.1:29092"}), encoding="utf-8")
    config = load(file)
    (flow,) = mirrored(config.flows_to_run())
    assert str(flow) == "us->eu"
    assert config.notices() == []


def view(topic: str, partition: int, next_source_offset: int) -> PartitionView:
    return PartitionView(topic, partition, f"us.{topic}", partition, "running", 0, 0, {}, next_source_offset, 0, 0, 0)


def test_what_is_left_counts_partitions_nobody_copies_yet() -> None:
    written = {("orders", 0): 10, ("orders", 1): 20, ("clicks", 0): 5}
    flow = FlowProgress(FlowName("us", "eu"), "running", 1, (view("orders", 0, 10), view("orders", 1, 13)))
    assert records_left(written, [flow]) == 7 + 5
    assert records_left(written, []) == 35


def test_the_last_words_name_the_verdict() -> None:
    equal = VerificationReport(1, 200)
    assert summary_lines(200, 4.0, [FLOW], equal)[-1].split() == ["EQUAL", "200", "records", "in", "1", "partitions"]
    assert "DIFFERENT: 200 records are equal, 201 were written" in summary_lines(201, 4.0, [FLOW], equal)
    different = VerificationReport(1, 7, "orders-0 at offset 7 and us.orders-0 at offset 9 differ in value")
    last = summary_lines(200, 4.0, [FLOW], different)[-1]
    assert last == f"DIFFERENT after 7 equal records: {different.difference}"


def test_the_table_has_every_figure() -> None:
    console = Console(file=io.StringIO(), width=140)
    console.print(picture([FLOW], "writing", "cluster eu does not answer"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for figure in ("us.orders", "12,000", "1,200", "90.0 kB", "35", "12", "80", "Spark epoch 4", "does not answer"):
        assert figure in text


@pytest.mark.parametrize("live", [True, False])
def test_both_views_show_and_say(live: bool) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=live)
    shown = LiveView(console, LastWarning()) if live else PlainView(console)
    with shown:
        shown.say("[us->eu] begins")
        shown.show(1.0, [FLOW], "writing")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[us->eu] begins" in text
    assert "12,000" in text or "1,200 records/s" in text


@pytest.mark.parametrize(("changing", "lines"), [(True, 6), (False, 2)])
def test_plain_lines_come_every_other_second_and_less_often_while_nothing_changes(changing: bool, lines: int) -> None:
    console = Console(file=io.StringIO(), width=300)
    shown = PlainView(console)
    for tenth in range(120):
        shown.show(tenth / 10, [FLOW], f"{tenth if changing else 0} written")
    assert console.file.getvalue().count("\n") == lines  # type: ignore[attr-defined]
