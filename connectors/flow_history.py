"""Keep the rates and the lag of a flow for the last hour, as the worker that copies it knows them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

from connectors.flow_progress import UNKNOWN, Lag

SAMPLE_S: Final = 10.0
_SAMPLES: Final = 360
_COLUMNS: Final = ("at_ms", "records_per_s", "bytes_per_s", "lag_records", "lag_ms")
#: A rate is not taken over less time than this.
_LEAST_MS: Final = 2000

#: Records and bytes that each task has copied since it began. The key is of the task's run, which may be a later one of
#: the same task: then it has begun again from 0.
Copied = Mapping[int, tuple[int, int]]


class FlowHistory:
    """The samples of one flow, the oldest first: 14 KB. A figure is -1 while it is not known."""

    def __init__(self) -> None:
        self._values = array("d")
        self._copied: Copied = {}

    def observe(self, at_ms: int, copied: Copied, lag: Lag | None) -> None:
        """Add a sample; ``lag`` is that of the partitions here, None if it is not known. After the clock was set back,
        the history begins again."""
        if self._values and at_ms < self._values[-len(_COLUMNS)]:
            del self._values[:]
        records_per_s, bytes_per_s = self.rates(at_ms, copied)
        known = (UNKNOWN, UNKNOWN) if lag is None else (lag.records, lag.ms)
        self._values.extend((at_ms, records_per_s, bytes_per_s, *known))
        del self._values[: -_SAMPLES * len(_COLUMNS)]
        self._copied = copied

    def rates(self, at_ms: int, copied: Copied) -> tuple[float, float]:
        """Return records and bytes a second since the last sample; soon after it, those of the sample."""
        if not self._values:
            return UNKNOWN, UNKNOWN
        sampled_ms, *sampled = self._values[-len(_COLUMNS) :][:3]
        took_ms = at_ms - sampled_ms
        if took_ms < _LEAST_MS:
            return sampled[0], sampled[1]
        before = self._copied
        records, size = (
            sum(now[column] - before.get(task, (0, 0))[column] for task, now in copied.items()) for column in (0, 1)
        )
        return records * 1000 / took_ms, size * 1000 / took_ms

    def to_json(self) -> dict[str, Any]:
        """Return a list for each figure, all of one length; times in ms since 1970, null if unknown."""
        return {
            name: [None if value < 0 else round(value, 1) for value in self._values[column :: len(_COLUMNS)]]
            for column, name in enumerate(_COLUMNS)
        }
