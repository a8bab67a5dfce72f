"""Java's client library of mirrors (``RemoteClusterUtils``) as a judge."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from connect.embedded.brokers import QUICK_JVM
from connect.embedded.java import find_java
from connect.embedded.kafka_releases import classpath
from connectors.client import OffsetAndMetadata, Offsets, TopicPartition
from tests.kit.java_mm2 import COORDINATES

_JUDGE: Final = Path(__file__).parent.parent / "interop" / "RemoteClusterUtilsJudge.java"
_DEADLINE_S: Final = 300.0
_AT: Final = "at "
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"


def ask_java(questions: Sequence[str]) -> list[list[str]]:
    """The lines that Java answers to each question, sorted. A question is a function's name, bootstrap, policy and
    arguments with spaces between them."""
    jars = os.pathsep.join(str(jar) for jar in classpath(COORDINATES))
    done = subprocess.run(
        [str(find_java().executable), *QUICK_JVM, "-cp", jars, str(_JUDGE)],
        input="\n".join(questions),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[list[str]] = [[]]
    for line in done.stdout.splitlines():
        if line == "end":
            answers.append([])
        else:
            answers[-1].append(line)
    return [sorted(answer) for answer in answers[:-1]]


def offsets_reported(answer: Sequence[str]) -> dict[str, Offsets]:
    """By group, of an answer to ``translate`` or ``translate-all``."""
    found: dict[str, Offsets] = {}
    for line in answer:
        group, topic, partition, offset, metadata = line.removeprefix(_AT).split(" ", 4)
        place = TopicPartition(topic, int(partition))
        found.setdefault(group, {})[place] = OffsetAndMetadata(int(offset), metadata)
    return found
