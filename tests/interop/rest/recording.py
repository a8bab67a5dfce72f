"""The file of recorded answers: one line an answer, so that a change of one shows as such."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.interop.rest.answers import Answer

RECORDED: Final = Path(__file__).parent / "recorded.json"

#: Session to request to answer.
Recording = Mapping[str, Mapping[str, Answer]]


def save(recording: Recording, file: Path = RECORDED) -> None:
    sessions = []
    for session, answers in recording.items():
        lines = [f"  {_json(name)}: {_json(answer.as_json())}" for name, answer in answers.items()]
        sessions.append(f"{_json(session)}: {{\n" + ",\n".join(lines) + "\n}")
    file.write_bytes(("{\n" + ",\n".join(sessions) + "\n}\n").encode())


def load(file: Path = RECORDED) -> dict[str, dict[str, Answer]]:
    data = json.loads(file.read_text(encoding="utf-8"))
    return {
        session: {name: Answer.of_json(answer) for name, answer in answers.items()} for session, answers in data.items()
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
