"""The file source, after Java's ``FileStreamSourceTaskTest`` and ``-ConnectorTest``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.source import STRING, ExactlyOnceSupport, Fields, SourceRecord
from connect.core.errors import ConfigError, PermanentError
from connect.plugins import file_source
from connect.plugins.file_source import FileStreamSourceConnector, FileStreamSourceTask


class Offsets:
    """What was stored, by file."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._stored = stored

    async def offset(self, partition: Fields) -> Fields | None:
        return self._stored.get(str(partition["filename"]))

    async def offsets(self, partitions: Sequence[Fields]) -> Sequence[Fields | None]:
        return [await self.offset(each) for each in partitions]


class Context:
    """A task's context with stored offsets."""

    def __init__(self, **stored: Any) -> None:
        self.configs: Mapping[str, str] = {}
        self.offset_reader = Offsets(stored)
        self.transaction_context = None

    def wait_for(self, asked: Any) -> Any:
        with pytest.raises(StopIteration) as answer:  # nothing in it waits
            asked.send(None)
        return answer.value.value


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "_WAIT_S", 0)


@pytest.fixture
def task() -> Iterator[FileStreamSourceTask]:
    made = FileStreamSourceTask()
    made.initialize(Context())
    yield made
    made.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def props(file: Path | None, **more: str) -> dict[str, str]:
    settings = {"topic": "lines", **more}
    return settings if file is None else {**settings, "file": str(file)}


def read(records: Sequence[SourceRecord] | None) -> list[tuple[Any, Any]]:
    return [(each.value, each.source_offset["position"]) for each in records or ()]


def test_lines_and_their_positions(task: FileStreamSourceTask, path: Path) -> None:
    task.start(props(path))
    with path.open("wb", buffering=0) as file:
        assert task.poll() is None
        file.write(b"partial line")
        assert task.poll() is None
        file.write(b" finished\n")
        records = task.poll()
        assert read(records) == [("partial line finished", 22)]
        assert records is not None
        first = records[0]
        assert first.source_partition == {"filename": str(path)}
        assert (first.topic, first.partition, first.key, first.key_schema) == ("lines", None, None, None)
        assert first.value_schema == STRING
        assert first.timestamp_ms is not None
        assert task.poll() is None

        # The last \r makes a line only when what follows it is there.
        file.write(b"line1\rline2\r\nline3\nline4\n\r")
        assert read(task.poll()) == [("line1", 28), ("line2", 35), ("line3", 41), ("line4", 47)]
        file.write(b"subsequent text")
        assert read(task.poll()) == [("", 48)]


def test_batches_end_where_they_are_full(task: FileStreamSourceTask, path: Path) -> None:
    path.write_bytes(b"x" * 94 + b"\n" + b"".join(b"%d\n" % n for n in range(25_000)))
    task.start(props(path, **{"batch.size": "10000"}))
    sizes = [len(task.poll() or ()) for _ in range(4)]
    assert sizes == [10_000, 10_000, 5_001, 0]


@pytest.mark.parametrize("size", ["0", "-1"])
def test_a_batch_has_a_line_at_least(task: FileStreamSourceTask, path: Path, size: str) -> None:
    path.write_bytes(b"a\nb\n")
    task.start(props(path, **{"batch.size": size}))
    assert read(task.poll()) == [("a", 2)]
    assert read(task.poll()) == [("b", 4)]


def test_reading_goes_on_where_it_stopped(path: Path) -> None:
    path.write_bytes("früher\nspäter\n".encode())
    task = FileStreamSourceTask()
    task.initialize(Context(**{str(path): {"position": 8}}))
    task.start(props(path))
    assert read(task.poll()) == [("später", 16)]
    task.stop()


@pytest.mark.parametrize("position", ["8", 1.5, True, -1])
def test_a_stored_position_that_is_none(path: Path, position: Any) -> None:
    path.touch()
    task = FileStreamSourceTask()
    task.initialize(Context(**{str(path): {"position": position}}))
    task.start(props(path))
    with pytest.raises(PermanentError, match="Offset position is the incorrect type"):
        task.poll()


def test_a_missing_file_is_waited_for(task: FileStreamSourceTask, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task.start(props(path))
    for _ in range(3):
        assert task.poll() is None
    assert [each.getMessage() for each in caplog.records] == [
        f"Couldn't find file {path}, waiting for it to be created"
    ]
    path.write_bytes(b"here\n")
    assert read(task.poll()) == [("here", 5)]


def test_a_directory_is_no_file(task: FileStreamSourceTask, tmp_path: Path) -> None:
    task.start(props(tmp_path))
    with pytest.raises(PermanentError, match="cannot be read: Is a directory"):
        task.poll()


def test_a_named_pipe_without_a_writer_does_not_block(task: FileStreamSourceTask, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    task.start(props(path))
    assert task.poll() is None
    with path.open("wb", buffering=0) as pipe:
        assert task.poll() is None
        pipe.write(b"hello\n")
        assert read(task.poll()) == [("hello", 6)]


def test_the_standard_input(task: FileStreamSourceTask, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(file_source, "_STANDARD_INPUT", reading)
    try:
        task.start(props(None))
        assert task.poll() is None
        os.write(writing, b"line\nmore")
        records = task.poll()
        assert read(records) == [("line", None)]
        assert records is not None
        assert records[0].source_partition == {"filename": None}
        task.stop()
        os.fstat(reading)  # the standard input stays open
    finally:
        os.close(reading)
        os.close(writing)


def test_text_that_is_not_utf_8_is_replaced(task: FileStreamSourceTask, path: Path) -> None:
    path.write_bytes(b"a\xffb\n")
    task.start(props(path))
    assert read(task.poll()) == [("a\ufffdb", 4)]


def test_a_line_has_a_longest_length(task: FileStreamSourceTask, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "_LONGEST_LINE_BYTES", 100_000)
    path.write_bytes(b"short\n" + b"x" * 90_000 + b"\n" + b"y" * 200_000)
    task.start(props(path, **{"batch.size": "2"}))
    assert [len(line) for line, _ in read(task.poll())] == [5, 90_000]
    with pytest.raises(PermanentError, match="has a line of more than 100000 bytes at position 90007"):
        task.poll()


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", "é".encode()]), max_size=30), st.data())
def test_lines_are_the_same_however_bytes_come(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    lines = file_source._Lines(0)
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        lines.feed(text[begin:end])
    whole = text.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    found = [line for line, _ in lines.ready]
    assert found == (whole[:-1] if text.endswith(b"\r") else whole)
    assert lines.position == len(text) - lines.unfinished_bytes
    for (line, end), begin in zip(lines.ready, [0, *(position for _, position in lines.ready)], strict=False):
        assert text[begin:end].rstrip(b"\r\n").decode() == line or line == ""


def test_exactly_once_needs_a_file(tmp_path: Path) -> None:
    connector = FileStreamSourceConnector()
    assert connector.exactly_once_support(props(tmp_path)) is ExactlyOnceSupport.SUPPORTED
    for nothing in (props(None), {**props(None), "file": ""}):
        assert connector.exactly_once_support(nothing) is ExactlyOnceSupport.UNSUPPORTED


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, 'Missing required configuration "topic" which has no default value.'),
        ({"topic": ""}, "Invalid value  for configuration topic: String must be non-empty"),
        ({"topic": "t", "batch.size": "x"}, "Invalid value x for configuration batch.size: Not a number of type INT"),
    ],
)
async def test_settings_that_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await FileStreamSourceConnector().start(settings)


PARTITION = {"filename": "/file"}
VALUE = "The value for the 'position' key in the offset"


@pytest.mark.parametrize(
    ("partition", "offset"),
    [(PARTITION, {"position": 0}), (PARTITION, {"position": 2**40}), (PARTITION, None), ({"rubbish": 1}, None)],
)
async def test_offsets_that_may_be_set(partition: dict[str, Any], offset: dict[str, Any] | None) -> None:
    assert await FileStreamSourceConnector().alter_offsets(props(Path("/file")), [(partition, offset)])


@pytest.mark.parametrize(
    ("partition", "offset", "words"),
    [
        (PARTITION, {"other": 1}, "Offset objects should either be null or contain the key 'position'"),
        (PARTITION, {"position": "10"}, f"{VALUE} is expected to be a Long value"),
        (PARTITION, {"position": True}, f"{VALUE} is expected to be a Long value"),
        (PARTITION, {"position": -1}, f"{VALUE} should be a non-negative value"),
        ({"other": 1}, {"position": 1}, "Partition objects should contain the key 'filename'"),
    ],
)
async def test_offsets_that_may_not_be_set(partition: dict[str, Any], offset: dict[str, Any], words: str) -> None:
    with pytest.raises(PermanentError) as refused:
        await FileStreamSourceConnector().alter_offsets(props(Path("/file")), [(partition, offset)])
    assert str(refused.value) == words


async def test_one_task_gets_the_whole_config(tmp_path: Path) -> None:
    connector = FileStreamSourceConnector()
    await connector.start(props(tmp_path))
    assert await connector.task_configs(3) == [props(tmp_path)]
    assert isinstance(connector.make_task(), FileStreamSourceTask)


async def test_the_standard_input_has_no_offsets() -> None:
    with pytest.raises(PermanentError, match="Offsets cannot be modified if the 'file' configuration is unspecified"):
        await FileStreamSourceConnector().alter_offsets(props(None), [])
