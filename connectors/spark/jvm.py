"""The JVM of a Spark driver. It starts before pyspark is imported, since either takes a second or more."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.01
_LENGTH_BYTES: Final = 4


class JvmEnded(Exception):
    """The JVM ended before it took commands; what it printed says why."""


class Jvm:
    """A JVM below this process, made by Spark's own scripts, which know its class path and ``spark-env.sh``.

    Args:
        arguments: Of ``spark-submit``.
        folder: Gets the file in which the JVM says how it is reached.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._reached = folder / "gateway"
        home = spark_home()
        told = {
            # What pyspark sets before it starts a JVM itself.
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._reached),
            # Else the scripts start a Python to find it.
            "SPARK_HOME": str(home),
        }
        # The end of its standard input ends it.
        self._process = subprocess.Popen(
            [home / "bin" / "spark-submit", *arguments], stdin=subprocess.PIPE, env={**os.environ, **told}
        )

    def serve_pyspark(self) -> None:
        """Wait until it takes commands, and let pyspark send its own there. Raises JvmEnded."""
        while not self._reached.exists():
            if self._process.poll() is not None:
                self.end()
                raise JvmEnded(f"the JVM ended with exit code {self._process.returncode}")
            time.sleep(_LOOK_S)
        told = self._reached.read_bytes()
        os.environ["PYSPARK_GATEWAY_PORT"] = str(int.from_bytes(told[:_LENGTH_BYTES], "big"))
        os.environ["PYSPARK_GATEWAY_SECRET"] = told[2 * _LENGTH_BYTES :].decode()

    def wait(self) -> None:
        """Return once it has ended."""
        self._process.wait()

    def end(self) -> None:
        """Let it end in order, and return once it has."""
        assert self._process.stdin is not None, "it has a pipe"
        self._process.stdin.close()
        self._process.wait()


def spark_home() -> Path:
    """Return the folder of Spark, by pyspark's own rule."""
    spec = importlib.util.find_spec("pyspark")  # because to import it takes a second
    assert spec is not None and spec.origin is not None, "the project depends on it"
    rule = runpy.run_path(str(Path(spec.origin).parent / "find_spark_home.py"))["_find_spark_home"]
    return Path(rule())
