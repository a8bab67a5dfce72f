"""A connector for workers under test: each task counts, so that a gap or a repetition in its topic shows at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from connect.api.connector import REQUIRED, ConfigDef, Props, Setting, Type
from connect.api.plugins import PluginDescription, PluginKind
from connect.api.source import SourceConnector, SourceRecord, SourceTask

CLASS: Final = "NumberSource"
#: What a worker calls itself in its records.
WORKER_VARIABLE: Final = "HELIOGRAPH_TEST_WORKER"
_CONFIG: Final = ConfigDef.of(
    Setting("topic", Type.STRING, REQUIRED, "Where to write to; partition n is task n's."),
    Setting("every.ms", Type.INT, 50, "Between two records; 0 for none at all."),
)
#: Of an idle task, as long as a poll may well take.
_IDLE_S: Final = 3600.0
_POINTS: Final = "[heliograph.connectors]\nnumbers = tests.kit.numbers:CONNECTORS\n"
_METADATA: Final = "Metadata-Version: 2.1\nName: heliograph-numbers\nVersion: 1.0\n"


class NumberSource(SourceConnector):
    _props: Props

    @classmethod
    def version(cls) -> str:
        return "1.0"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return _CONFIG

    async def start(self, props: Props) -> None:
        self._props = props

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        return [{**self._props, "task": str(number)} for number in range(max_tasks)]

    def make_task(self) -> NumberTask:
        return NumberTask()


class NumberTask(SourceTask):
    """Values are ``<number> <worker>``; the timestamp is when the number was given out, by the machine's clock."""

    async def start(self, props: Props) -> None:
        values = _CONFIG.parse(props)
        self._topic, self._every_s = values.string("topic"), values.integer("every.ms") / 1000
        self._task = int(props["task"])
        self._worker = os.environ.get(WORKER_VARIABLE, "")
        stored = await self.context.offset_reader.offset({"task": self._task}) if self._every_s else None
        self._next = 0 if stored is None else int(str(stored["number"])) + 1

    async def poll(self) -> Sequence[SourceRecord] | None:
        await asyncio.sleep(self._every_s or _IDLE_S)
        if not self._every_s:
            return None
        number = self._next
        self._next += 1
        record = SourceRecord(
            {"task": self._task},
            {"number": number},
            self._topic,
            f"{number} {self._worker}",
            partition=self._task,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        return [record]


CONNECTORS: Final = [PluginDescription(PluginKind.SOURCE, f"{__name__}.{CLASS}", NumberSource, _CONFIG, "1.0")]


def environment(directory: Path, worker: str) -> dict[str, str]:
    """Variables for a worker's process that make the plugin known to it; ``directory`` gets a folder for that."""
    path = directory / "plugins"
    package = path / "heliograph_numbers-1.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text(_METADATA)
    (package / "entry_points.txt").write_text(_POINTS)
    return {"PYTHONPATH": str(path), WORKER_VARIABLE: worker}
