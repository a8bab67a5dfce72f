"""Java's client library of mirrors (``RemoteClusterUtils``) as a judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from connectors.client import OffsetAndMetadata, Offsets, TopicPartition
from tests.kit.java_mm2 import judged

_JUDGE: Final = Path(__file__).parent.parent / "interop" / "RemoteClusterUtilsJudge.java"
_AT: Final = "at "
DEFAULT, IDENTITY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"


def ask_java(questions: Sequence[str]) -> list[list[str]]:
    """The lines that Java answers to each question (function, bootstrap, policy and arguments), sorted."""
    answers: list[list[str]] = [[]]
    for line in judged(_JUDGE, questions):
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
