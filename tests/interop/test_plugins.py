"""Our file source, transforms and converters against Java's: what its worker wrote of the same lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from connect.api.convert import Converter, DataError, HeaderConverter
from connect.api.plugins import PluginDescription
from connect.api.source import Fields, SourceRecord
from connect.core.config.validation import key_info
from connect.plugins import builtin
from connect.plugins.file_source import FileStreamSourceTask
from tests.interop.plugins.cases import CASES, Case
from tests.interop.plugins.outcome import Written, load, load_definitions

RECORDED = load()
DEFINITIONS = load_definitions()
#: The worker's, where a connector names none: like those of the recording.
CONVERTERS = {each.name: each for each in builtin.CONVERTERS}
HEADER_CONVERTERS = {each.name: each for each in builtin.HEADER_CONVERTERS}
PREDICATES = {each.name: each for each in builtin.PREDICATES}
TRANSFORMATIONS = {each.name: each for each in builtin.TRANSFORMATIONS}


class NothingStored:
    """A context of a task that begins at the beginning."""

    configs: Mapping[str, str] = {}
    transaction_context = None

    @property
    def offset_reader(self) -> NothingStored:
        return self

    def wait_for(self, asked: Any) -> Any:
        with pytest.raises(StopIteration) as answer:  # nothing in it waits
            asked.send(None)
        return answer.value.value

    async def offset(self, partition: Fields) -> Fields | None:
        return None

    async def offsets(self, partitions: Sequence[Fields]) -> Sequence[Fields | None]:
        return [None for _ in partitions]


def with_prefix(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix)}


def made(known: Mapping[str, PluginDescription], name: str, settings: Mapping[str, str]) -> object:
    plugin = known[name].factory()
    plugin.configure(settings)  # type: ignore[attr-defined]
    return plugin


def converter(props: Mapping[str, str], use: str) -> object:
    known = HEADER_CONVERTERS if use == "header" else CONVERTERS
    key = f"{use}.converter"
    return made(known, props[key], {**with_prefix(props, f"{key}."), "converter.type": use})


async def written(case: Case, file: Path) -> list[Written]:
    """What a worker of ours would write of a case, in which what fails is left out."""
    props = {"header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter", **case.props(str(file))}
    key, value, header = (converter(props, use) for use in ("key", "value", "header"))
    assert isinstance(key, Converter) and isinstance(value, Converter) and isinstance(header, HeaderConverter)
    steps = [
        made(TRANSFORMATIONS, props[f"transforms.{alias}.type"], with_prefix(props, f"transforms.{alias}."))
        for alias in filter(None, props["transforms"].split(","))
    ]
    task = FileStreamSourceTask()
    task.initialize(NothingStored())
    task.start(props)
    kept: list[Written] = []
    for record in task.poll() or ():
        try:
            after: SourceRecord = record
            for step in steps:
                after = step.apply(after)  # type: ignore[attr-defined]
            headers = [
                (each.key, header.from_connect_header(after.topic, each.key, each.schema, each.value))
                for each in after.headers
            ]
            key_data = key.from_connect(after.topic, after.key_schema, after.key)
            kept.append(Written.of(key_data, value.from_connect(after.topic, after.value_schema, after.value), headers))
        except DataError:
            continue
    task.stop()
    return kept


@pytest.fixture
def lines(case: Case, tmp_path: Path) -> Path:
    file = tmp_path / "lines"
    file.write_bytes(case.text)
    return file


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_records_are_javas(case: Case, lines: Path) -> None:
    ours = await written(case, lines)
    assert [each._asdict() for each in ours] == [each._asdict() for each in RECORDED[case.name]]


def test_every_case_is_recorded() -> None:
    assert [case.name for case in CASES] == list(RECORDED), "record again: the cases have changed"


@pytest.mark.parametrize("name", DEFINITIONS)
def test_settings_are_javas(name: str) -> None:
    plugin = {**TRANSFORMATIONS, **PREDICATES, **CONVERTERS, **HEADER_CONVERTERS}[name]
    ours = [key_info(each) for each in plugin.config_def.settings.values()]
    assert [
        [
            each.name,
            each.type,
            each.required,
            each.default_value,
            each.importance,
            each.group,
            each.order_in_group,
            each.width,
            each.display_name,
            list(each.dependents),
        ]
        for each in ours
    ] == DEFINITIONS[name]


def test_every_plugin_is_judged() -> None:
    assert DEFINITIONS.keys() == {**TRANSFORMATIONS, **PREDICATES, **CONVERTERS, **HEADER_CONVERTERS}.keys()
