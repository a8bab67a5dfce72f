"""Kafka's own Java programs as contender and judge: MirrorMaker 2 and the tools, from Maven Central."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from connect.embedded.brokers import QUICK_JVM, classpath
from connect.embedded.java import find_java
from tests.kit.java_program import KAFKA_VERSION, LOGGING, JavaProgram, java_command, write_log4j2

#: The mirror, the worker, and Kafka's tools.
COORDINATES: Final = (
    f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    LOGGING,
)
_TAIL_BYTES: Final = 4000
_JUDGE_DEADLINE_S: Final = 300.0


class JavaToolFailed(Exception):
    """A Java tool ended with another exit code than 0; the text holds the end of what it printed."""


def run_tool(main_class: str, arguments: Sequence[str], *, timeout_s: float = 300, heap: str = "1g") -> str:
    """Runs one of Kafka's tools to its end; its standard output. Raises JavaToolFailed."""
    with tempfile.TemporaryDirectory(prefix="kafka-tool-") as folder:
        log4j2 = write_log4j2(Path(folder), Path(folder) / "tool.log", level="WARN")
        command = java_command(COORDINATES, main_class, arguments, heap=heap, log4j2=log4j2)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    if done.returncode != 0:
        tail = (done.stdout + done.stderr)[-_TAIL_BYTES:]
        raise JavaToolFailed(f"{main_class} ended with exit code {done.returncode}: {tail}")
    return done.stdout


def judged(judge: Path, lines: Iterable[str]) -> list[str]:
    jars = os.pathsep.join(str(jar) for jar in classpath(COORDINATES))
    done = subprocess.run(
        [str(find_java().executable), *QUICK_JVM, "-cp", jars, str(judge)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=_JUDGE_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-_TAIL_BYTES:]
    return done.stdout.splitlines()


class JavaMirrorMaker(JavaProgram):
    coordinates: Sequence[str] = COORDINATES
    main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
