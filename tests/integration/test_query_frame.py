"""``transform.sql`` between two Python workers of a real Spark, without a broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connect.cli.daemons.spark import with_archive
from connect.embedded import cluster_config
from connect.embedded.java import find_java
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.sql_stage import outcome_by, rows_of
from connectors.formats.types import TopicPartition
from connectors.spark.config import SparkSettings
from connectors.spark.driver_process import STAGE_DDL, problem_of, transformed
from connectors.transforms.smt_chain import Untransformable
from connectors.transforms.sql_query import RecordsQuery

pytestmark = [pytest.mark.integration]

PLAN = PartitionPlan(TopicPartition("orders", 0), None, TopicPartition("us.orders", 0), None, 0, -1, 0, 0, False)
LATIN = "\udce9t\udce9"
RECORDS = [Record(0, 1_700_000_000_000, b"k", b"v", [(LATIN, b"1"), ("n", None)]), Record(1, -1, None, b"v", [])]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # As the worker starts it: on a machine that has no Java of its own, or whose name leads nowhere.
        patch.setenv("JAVA_HOME", str(find_java().home))
        patch.setenv("SPARK_LOCAL_IP", cluster_config.HOST)
        conf: dict[str, Any] = with_archive(SparkSettings(find_java().home)).merged()
        session = SparkSession.builder.config(map=conf).getOrCreate()
        yield session
        session.stop()
        _end(SparkContext._gateway)
        SparkContext._gateway = SparkContext._jvm = None


def _end(gateway: Any) -> None:
    """The process too, which Spark leaves for the next session: other tests look whether one is left."""
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=60)


def outcomes(spark: Any, query: str) -> list[Record | Untransformable | None]:
    """What becomes of the records."""
    assert problem_of(spark, query) == ""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield rows_of(PLAN.source, RECORDS, 0)

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = [name for name in batch.schema.names if not name.startswith("__")]
            rows = batch.select([*names, "__row"]).to_pylist()
            found = [outcome_by(PLAN, RECORDS[row.pop("__row")], row) for row in rows]
            yield pa.RecordBatch.from_pydict({"outcome": [repr(one) for one in found]})

    frame = transformed(spark, spark.range(1, numPartitions=1).mapInArrow(give, STAGE_DDL), query)
    rows = frame.mapInArrow(take, "outcome STRING").collect()
    return [eval(row.outcome, {"Record": Record, "Untransformable": Untransformable}) for row in rows]


def test_an_alias_in_backticks_is_the_table(spark: Any) -> None:
    for alias in ("r", "my r", "a``b", "a.b"):
        found = outcomes(spark, f"SELECT upper(`{alias}`.value) AS value, `{alias}`.key FROM records AS `{alias}`")
        assert found == [one._replace(value=b"V") for one in RECORDS]


def test_keys_of_headers_that_are_no_text_stay_as_they_are(spark: Any) -> None:
    assert outcomes(spark, "SELECT upper(value) AS value FROM records") == [one._replace(value=b"V") for one in RECORDS]
    turned = outcomes(spark, "SELECT reverse(headers) AS headers FROM records WHERE size(headers) >= 0")
    assert turned == [one._replace(headers=one.headers[::-1]) for one in RECORDS]
    by_key = outcomes(spark, "SELECT filter(headers, h -> is_valid_utf8(h.key)) AS headers FROM records")
    assert by_key == [RECORDS[0]._replace(headers=[("n", None)]), RECORDS[1]]
    new = "array(named_struct('key', CAST(X'E8' AS STRING), 'value', value)) AS headers"
    made = outcomes(spark, f"SELECT {new} FROM records")
    assert all(isinstance(one, Untransformable) for one in made)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret")
    return path


@pytest.mark.parametrize(
    "item",
    [
        "(SELECT max(value) FROM text.`{secret}`)",
        "(SELECT concat(max(value), '\n== Optimized Logical Plan ==\n') FROM kept)",
        "concat('== Analyzed Logical Plan ==\nvalue: string\nProject\n== Optimized', (SELECT max(value) FROM kept))",
        "(SELECT max(id) FROM range(2))",
        "(SELECT 'a')",
        "IF(EXISTS(SELECT 1 FROM kept), 'a', 'b')",
        "java_method('java.lang.System', 'getProperty', 'user.name')",
        "explode(array('a'))",
        "max(value)",
    ],
)
def test_the_plan_of_the_frame_that_runs_is_checked_and_not_only_the_text(
    spark: Any, secret: Path, item: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.read.text(str(secret)).createOrReplaceTempView("kept")
    asked = item.format(secret=secret)
    assert problem_of(spark, f"SELECT {asked} AS value FROM records") != ""
    for query in (
        RecordsQuery("", (f"{asked} AS value",), "records", ""),
        RecordsQuery("", (), "records", f"{asked} = 'a'"),
    ):
        monkeypatch.setattr("connectors.spark.driver_process.parse_query", lambda _, one=query: one)
        assert "method" in item or problem_of(spark, "") != ""


def test_a_query_gets_no_variable_of_the_process(spark: Any) -> None:
    found = outcomes(spark, "SELECT concat('${env:HOME}', '${system:user.name}') AS value FROM records")
    assert {one.value for one in found if isinstance(one, Record)} == {b"${env:HOME}${system:user.name}"}


def test_texts_that_look_like_a_plan_are_texts(spark: Any) -> None:
    found = outcomes(spark, r"SELECT concat('\n== Physical Plan ==\nRelation\n', r'\d+ Sort') AS value FROM records")
    assert found[1] == RECORDS[1]._replace(value=b"\n== Physical Plan ==\nRelation\n\\d+ Sort")


def test_no_record_gets_a_negative_time(spark: Any) -> None:
    early = outcomes(spark, "SELECT timestamp - INTERVAL 100 YEARS AS timestamp FROM records")
    assert isinstance(early[0], Untransformable) and early[1] == RECORDS[1]
