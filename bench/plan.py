"""What a command runs: which loads with whom, how long each is looked at, and about how long all takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.ceiling import variants
from bench.loads import DEFAULT, LOADS, AnyLoad, Load, Paced

#: What loads are large enough for: a window behind a ramp.
_USUAL_S: Final = 36.0
_COPY_S: Final = 30.0
_RAMP_S: Final = 6.0
#: Epochs are a minute: at least one change is in it.
_LATENCY_S: Final = 63.0
#: It takes Java so long until its code is compiled for small requests.
_LATENCY_RAMP_S: Final = 20.0
#: What a bed's brokers get of small requests from each contender first, which does not count: their latencies fall by
#: half and more in the first two minutes of these. Brokers that have copied need half of it.
WARM_LATENCY_S: Final = 28.0
COLD_TIMES: Final = 2
#: Seconds beside what is measured, seen on two cores: brokers of a bed until they are warm, a contender's start and end
#: with the clearing around it, the ceiling's, and each of its short probes.
_BED_S: Final = 105.0
_CONTENDER_S: Final = 16.0
_CEILING_S: Final = 8.0
_PROBE_S: Final = 11.0
#: How fast a load is written: limited by bytes, by records, or by batches of one record, of which a partition takes
#: so many and all of them no more than so many.
_WRITTEN_BYTES_PER_S: Final = 150_000_000
_WRITTEN_PER_S: Final = 600_000
_WRITTEN_ALONE_PER_S: Final = 15_000
_WRITTEN_ALONE_AT_MOST_PER_S: Final = 70_000
_JSON_BYTES: Final = 230
_DEFAULTS: Final = "mm2-default"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that decide; None and () leave it to the load."""

    loads: Sequence[str] = DEFAULT
    only: Sequence[str] | None = None
    older: Sequence[str] = ()
    rounds: int = 3
    seconds: float | None = None
    ramp_s: float | None = None
    scale: float | None = None
    has_ceiling: bool = True

    def command(self) -> str:
        """What repeats it."""
        parts = ["python -m bench"]
        if set(self.loads) == {load.name for load in LOADS}:
            parts.append("--all")
        elif tuple(self.loads) != DEFAULT:
            parts.append(f"--loads {' '.join(self.loads)}")
        if self.only is not None:
            parts.append(" ".join(["--only", *self.only]))
        if self.older:
            parts.append(f"--older {' '.join(self.older)}")
        for option, value in (("--seconds", self.seconds), ("--scale", self.scale)):
            if value is not None:
                parts.append(f"{option} {value:g}")
        parts += [f"--rounds {self.rounds}"] * (self.rounds != 3)
        parts += [] if self.ramp_s is None else [f"--ramp {self.ramp_s:g}"]
        parts += ["--no-ceiling"] * (not self.has_ceiling)
        return " ".join(parts)

    def seconds_of(self, load: AnyLoad) -> float:
        if isinstance(load, Paced):
            return self.seconds or _LATENCY_S
        return self.seconds or _COPY_S

    def ramp_of(self, load: AnyLoad) -> float:
        if self.ramp_s is not None:
            return self.ramp_s
        return _LATENCY_RAMP_S if isinstance(load, Paced) else _RAMP_S

    def rounds_of(self, load: AnyLoad) -> int:
        """A window of latencies is long and holds several epochs: one is enough."""
        return 1 if isinstance(load, Paced) else self.rounds

    def contenders_of(self, load: AnyLoad) -> Sequence[str]:
        return [*(load.contenders if self.only is None else self.only), *self.older]

    def contenders_in(self, load: AnyLoad, number: int) -> Sequence[str]:
        """Those of one round. Java's defaults copy a load once, because each request waits for a round trip, so that
        no run differs from another."""
        names = self.contenders_of(load)
        return [name for name in names if name != _DEFAULTS] if number > 1 and isinstance(load, Load) else names

    def chosen(self) -> list[AnyLoad]:
        """In the order of the list, as large as the window needs."""
        found = [load for load in LOADS if load.name in self.loads]
        return [self._sized(load) if isinstance(load, Load) else load for load in found]

    def _sized(self, load: Load) -> Load:
        sized = load.scaled(self.scale or (self.ramp_of(load) + self.seconds_of(load)) / _USUAL_S)
        return replace(sized, has_ceiling=load.has_ceiling and self.has_ceiling)

    def beds(self) -> Iterator[tuple[tuple[int, bool], list[AnyLoad]]]:
        """The loads by replication factor and whether clusters are secured, as each needs brokers of its own."""
        loads = self.chosen()
        for key in sorted({(load.replication, load.is_secured) for load in loads}, reverse=True):
            yield key, [load for load in loads if (load.replication, load.is_secured) == key]

    def duration_s(self) -> float:
        """About how long it takes."""
        return sum(
            self._warming_s(loads) + sum(map(self._load_s, loads)) + _writing_s(loads) for _, loads in self.beds()
        )

    def _warming_s(self, loads: Sequence[AnyLoad]) -> float:
        copies = any(isinstance(load, Load) for load in loads)
        paced = next((load for load in loads if isinstance(load, Paced)), None)
        times = 0 if paced is None else len(self.contenders_of(paced)) * (1 if copies else COLD_TIMES)
        return _BED_S * copies + times * (_CONTENDER_S + WARM_LATENCY_S)

    def _load_s(self, load: AnyLoad) -> float:
        contenders, rounds = len(self.contenders_of(load)), self.rounds_of(load)
        runs = sum(len(self.contenders_in(load, number)) for number in range(1, rounds + 1))
        ramp_s, seconds = self.ramp_of(load), self.seconds_of(load)
        if isinstance(load, Paced):
            return contenders * (_CONTENDER_S + ramp_s + seconds)
        if not isinstance(load, Load):
            return contenders * (rounds + 1) * _CONTENDER_S
        probes_s = _PROBE_S * sum(map(len, variants(load)))
        ceiling_s = probes_s + rounds * (_CEILING_S + seconds) if load.has_ceiling else 0.0
        return runs * (_CONTENDER_S + ramp_s + seconds) + ceiling_s


def _writing_s(loads: Iterable[AnyLoad]) -> float:
    by_topic = {load.topic: load for load in loads if isinstance(load, Load)}
    return sum(map(_topic_s, by_topic.values()))


def _topic_s(load: Load) -> float:
    is_alone = load.producer.get("batch.size") == "0"
    alone_per_s = min(_WRITTEN_ALONE_PER_S * load.partitions, _WRITTEN_ALONE_AT_MOST_PER_S)
    per_s = alone_per_s if is_alone else _WRITTEN_PER_S
    size = load.records * (load.record_bytes or _JSON_BYTES)
    return max(load.records / per_s, size / _WRITTEN_BYTES_PER_S)
