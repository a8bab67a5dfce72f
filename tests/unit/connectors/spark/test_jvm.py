"""The JVM of a driver: a script stands for Spark's own."""

import os
from pathlib import Path

import pytest

from connectors.spark.sessions import Jvm, JvmEnded, spark_home

#: Port 5000 and the secret "word", as Spark's gateway writes them; then until the end of the standard input.
REACHED = r"""printf '\000\000\023\210\000\000\000\004word' > "$_PYSPARK_DRIVER_CONN_INFO_PATH.new"
mv "$_PYSPARK_DRIVER_CONN_INFO_PATH.new" "$_PYSPARK_DRIVER_CONN_INFO_PATH"
cat
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Spark whose script ends at once, as the environment names it."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.setenv(name, "")
    script(tmp_path, "exit 3")
    return tmp_path


def script(home: Path, text: str) -> None:
    file = home / "bin" / "spark-submit"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)


def test_pyspark_is_told_how_the_jvm_is_reached(home: Path) -> None:
    script(home, f'echo "$@ $SPARK_HOME" > {home / "arguments"}\n{REACHED}')
    jvm = Jvm(["--name", "some"], home)
    jvm.serve_pyspark()
    assert (os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]) == ("5000", "word")
    assert (home / "arguments").read_text().split() == ["--name", "some", str(home)]
    jvm.end()
    jvm.wait()


def test_a_jvm_that_ends_while_it_starts_is_told_of(home: Path) -> None:
    with pytest.raises(JvmEnded, match="exit code 3"):
        Jvm([], home).serve_pyspark()


def test_spark_is_found_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME")
    assert (spark_home() / "jars").is_dir()
