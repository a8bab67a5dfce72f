"""What became of a case: the records that were written, without their times; and the file of what Java wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

RECORDED: Final = Path(__file__).parent / "recorded.json"
#: By class: what REST says of its settings, without their documentation.
DEFINITIONS: Final = Path(__file__).parent / "definitions.json"
FIELDS: Final = (
    "name",
    "type",
    "required",
    "default_value",
    "importance",
    "group",
    "order_in_group",
    "width",
    "display_name",
    "dependents",
)


class Written(NamedTuple):
    """A record as text, where its bytes are UTF-8, else as ``hex:``."""

    key: str | None
    value: str | None
    headers: Sequence[Sequence[str | None]]

    @classmethod
    def of(cls, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> Written:
        return cls(_shown(key), _shown(value), [[name, _shown(data)] for name, data in headers])


Outcomes = Mapping[str, Sequence[Written]]


def save(outcomes: Outcomes, file: Path = RECORDED) -> None:
    cases = []
    for name, records in outcomes.items():
        lines = [f"  {_json(record)}" for record in records]
        cases.append(f"{_json(name)}: [\n" + ",\n".join(lines) + "\n]" if lines else f"{_json(name)}: []")
    file.write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")


def load(file: Path = RECORDED) -> dict[str, list[Written]]:
    data = json.loads(file.read_text(encoding="utf-8"))
    return {name: [Written(*record) for record in records] for name, records in data.items()}


def save_definitions(definitions: Mapping[str, Sequence[Mapping[str, object]]], file: Path = DEFINITIONS) -> None:
    classes = []
    for name, settings in definitions.items():
        lines = [f"  {_json([setting[field] for field in FIELDS])}" for setting in settings]
        classes.append(f"{_json(name)}: [\n" + ",\n".join(lines) + "\n]" if lines else f"{_json(name)}: []")
    file.write_text("{\n" + ",\n".join(classes) + "\n}\n", encoding="utf-8")


def load_definitions(file: Path = DEFINITIONS) -> dict[str, list[list[object]]]:
    found: dict[str, list[list[object]]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return text if text.isprintable() or "\t" in text else f"hex:{data.hex()}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(", ", ": "))
