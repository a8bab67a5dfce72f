"""Finds the flows of a process for the dashboard, asks their workers for what only they know, and adds it up.

A Connect worker has one herder, whose connectors may belong to several flows. A dedicated mirror has one herder for
each flow, and its paths begin with the flow, ``/{source}/{target}``.

Any worker shows the whole flow: rates, the last hour, batches, Spark. A worker that does not answer is named with the
reason, and then no sum is shown. The last answer to each question is kept, so that one that takes long delays nothing
else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

from connect.core.errors import HeliographError, RetriableError
from connect.core.herder_api import FORWARDED_HEADER, ForwardedRequest, HerderApi, NotFound
from connect.core.model import State
from connect.kafka.concurrency import Scope, together, wall_ms
from rest.access import Caller, Role
from rest.errors import RestError
from rest.other_workers import Forwarder
from rest.rest_config import Flows

log = logging.getLogger(__name__)

SOURCE: Final = "source"
#: Java's classes, without package and ``Connector``, and what each does for its flow.
_PARTS: Final = {"MirrorSource": SOURCE, "MirrorCheckpoint": "checkpoint", "MirrorHeartbeat": "heartbeat"}


@dataclass(frozen=True, slots=True)
class UiFlow:
    """A flow as pages see it, with a ``name`` that is unique in this process, such as ``us->eu``, the ``prefix`` of its
    REST paths, and the names of its connectors by what they do: source, checkpoint, heartbeat."""

    name: str
    source: str
    target: str
    prefix: str
    connectors: Mapping[str, str]
    herder: HerderApi

    def to_json(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in ("name", "source", "target", "prefix", "connectors")}


async def flows_of(flows: Flows) -> dict[str, UiFlow]:
    """Return the flows of a process by name, in order. Flows without a MirrorSource are left out, and so are those of
    workers that are still starting."""
    found: list[UiFlow] = []
    for path, herder in list(flows.items()):
        if herder.is_ready():
            found += [each async for each in _flows(path, herder)]
    names = Counter(each.name for each in found)
    named = {each.name if names[each.name] == 1 else f"{each.name} ({each.connectors[SOURCE]})": each for each in found}
    return {name: replace(each, name=name) for name, each in sorted(named.items())}


async def _flows(path: tuple[str, str], herder: HerderApi) -> AsyncIterator[UiFlow]:
    prefix = "".join(f"/{quote(each, safe='')}" for each in path if each)
    sources: list[tuple[tuple[str, str], str]] = []
    others: dict[tuple[str, str], dict[str, str]] = {}
    for name in await herder.connectors():
        try:
            config = herder.known_connector(name).config
        except NotFound:  # deleted meanwhile
            continue
        part = _PARTS.get(config.get("connector.class", "").rpartition(".")[2].removesuffix("Connector"))
        ends = (config.get("source.cluster.alias", "source"), config.get("target.cluster.alias", "target"))
        if part == SOURCE:
            sources.append((ends, name))
        elif part is not None:
            others.setdefault(ends, {})[part] = name
    for (source, target), name in sources:
        connectors = {SOURCE: name, **others.get((source, target), {})}
        yield UiFlow(f"{source}->{target}", source, target, prefix, connectors, herder)


#: An answer that was not asked for again is forgotten after this time.
_KEPT_S: Final = 600.0

Ask = Callable[[], Awaitable[Mapping[str, Any]]]


@dataclass(slots=True)
class Answer:
    """What is known of a question: the last answer, None before the first; why the last attempt gave none; and the
    attempt under way. Times are those of the loop's clock."""

    data: Mapping[str, Any] | None = None
    problem: str | None = None
    asking: asyncio.Task[None] | None = None
    began_s: float = 0.0
    found_s: float = 0.0
    due_s: float = 0.0


class KeptAnswers:
    """The answers of a process, by question. Each is asked for once at a time, and goes on when its caller leaves."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Answer] = {}
        self._scope = Scope("answers for the dashboard")

    async def close(self) -> None:
        await self._scope.close()

    async def get(
        self, question: Hashable, ask: Ask, *, within_s: float, fresh_s: float = 0.0, again_s: float = 0.0
    ) -> Answer:
        """Return the answer to ``question``, found at most ``fresh_s`` ago, or what is known ``within_s`` after ``ask``
        began. After an error ``ask`` is not called again for ``again_s``."""
        clock = asyncio.get_running_loop().time
        kept = self._kept.get(question)
        if kept is None:
            self._forget(clock() - _KEPT_S)
            kept = self._kept[question] = Answer()
        if kept.asking is None and clock() >= kept.due_s:
            kept.began_s = clock()
            kept.asking = self._scope.spawn(self._ask(kept, ask, fresh_s, again_s), "an answer")
        if kept.asking is not None and (left_s := kept.began_s + within_s - clock()) > 0:
            await asyncio.wait({kept.asking}, timeout=left_s)
        return kept

    async def _ask(self, kept: Answer, ask: Ask, fresh_s: float, again_s: float) -> None:
        clock = asyncio.get_running_loop().time
        try:
            kept.data, kept.problem, kept.found_s = await ask(), None, clock()
            kept.due_s = kept.found_s + fresh_s
        except Exception as error:
            kept.problem, kept.due_s = str(error), clock() + again_s
            if not isinstance(error, HeliographError):
                log.error("a report for the dashboard failed because of a bug", exc_info=error)
                kept.problem = f"{type(error).__name__}; see the worker's log."
        finally:
            kept.asking = None

    def _forget(self, before_s: float) -> None:
        """Forget what was last asked for before that time, because flows and workers come and go."""
        for question, kept in list(self._kept.items()):
            if kept.asking is None and kept.began_s < before_s:
                del self._kept[question]


RATES: Final = "rates"
#: A worker that has not answered after this time counts as silent, and is asked again later.
WITHIN_S: Final = 2.0
_AGAIN_S: Final = 10.0
_FRESH_S: Final = 4.0
#: Workers of a flow that are asked.
_MOST_WORKERS: Final = 32
#: Who asks, for the other worker's log.
_DASHBOARD: Final = Caller("dashboard", Role.VIEW)
#: The time between samples, and how many of them a worker may lack at its newest end, because others sample earlier.
_SAMPLE_MS: Final = 10_000
_SAMPLES: Final = 360
_CARRIED: Final = 2
_RATES: Final = ("records_per_s", "bytes_per_s")
_GREATEST: Final = "lag_ms"
_KEYS: Final = (*_RATES, "lag_records", _GREATEST)

#: By worker id, its report of :data:`RATES`, or why there is none.
Reports = Mapping[str, Mapping[str, Any] | str]


class FlowWorkers:
    """The workers of this process's flows. ``forwarder`` knows this worker's advertised URL; workers of a group have
    one scheme."""

    def __init__(self, forwarder: Forwarder, answers: KeptAnswers) -> None:
        self._forwarder, self._answers = forwarder, answers

    async def reports(self, flow: UiFlow) -> Reports:
        """Return the report of each worker that has the source connector of a flow, or tasks of it."""
        ids = _worker_ids(flow)
        asked = ids[:_MOST_WORKERS]
        reports = await together("rates of workers", [self._report(flow, one) for one in asked])
        found = dict(zip(asked, reports, strict=True))
        return {one: found.get(one, f"It was not asked, because at most {_MOST_WORKERS} are.") for one in ids}

    def is_this(self, worker_id: str) -> bool:
        return _place(worker_id) == urlsplit(self._forwarder.own_url or "").netloc

    async def _report(self, flow: UiFlow, worker_id: str) -> Mapping[str, Any] | str:
        name = flow.connectors[SOURCE]

        async def ask() -> Mapping[str, Any]:
            try:
                # Bounded here too, because a silent worker would hold one of the forwarder's connections for minutes.
                async with asyncio.timeout(WITHIN_S):
                    if self.is_this(worker_id):
                        return await flow.herder.connector_report(name, RATES, {})
                    return await self._ask_other(flow, _place(worker_id))
            except TimeoutError:
                raise RetriableError(f"It has not answered within {WITHIN_S:.0f} s.") from None

        if ":" not in _place(worker_id):
            return "It serves no REST API."
        question = (RATES, flow.prefix, name, worker_id)
        answer = await self._answers.get(question, ask, within_s=2 * WITHIN_S, fresh_s=_FRESH_S, again_s=_AGAIN_S)
        return answer.problem or answer.data or "It has not answered yet."

    async def _ask_other(self, flow: UiFlow, place: str) -> Mapping[str, Any]:
        root = f"{urlsplit(self._forwarder.own_url or '').scheme}://{place}{flow.prefix}"
        url = f"{root}/connectors/{quote(flow.connectors[SOURCE], safe='')}/{RATES}"
        asked = ForwardedRequest("GET", url, _DASHBOARD.to_header(wall_ms() / 1000), b"")
        signature = flow.herder.sign_forwarded(asked)
        if not signature:
            why = "It was not asked, because this worker has no session key to sign the request."
            raise RetriableError(f"{why} If it stays so, set connect.protocol = sessioned on all workers.")
        answer = await self._forwarder.send("GET", url, headers={FORWARDED_HEADER: asked.user, **signature})
        try:
            return dict(orjson.loads(answer.body))
        except (ValueError, TypeError):
            raise RestError(500, "Its answer is not a report. Check its version.") from None


def _place(worker_id: str) -> str:
    """Return host and port of a worker id: ``host:port``, of a dedicated mirror with its flow after a slash."""
    return worker_id.partition("/")[0]


def _worker_ids(flow: UiFlow) -> list[str]:
    try:
        status = flow.herder.connector_status(flow.connectors[SOURCE])
    except NotFound:
        return []
    parts = (status.connector, *status.tasks.values())
    return sorted({part.worker_id for part in parts if part.state != State.UNASSIGNED and part.worker_id})


def problems(reports: Reports) -> list[dict[str, str]]:
    return [{"worker_id": one, "reason": report} for one, report in reports.items() if isinstance(report, str)]


def rates_together(reports: Reports) -> dict[str, float | None]:
    """Return the sums of rates; None if one is not known."""
    rates = {key: [_figures(report)[key] for report in reports.values()] for key in _RATES}
    return {key: None if None in values else round(sum(values), 1) for key, values in rates.items()}


def details_together(details: Mapping[str, Any], reports: Reports, now_ms: int) -> dict[str, Any]:
    """Return the details of a flow with what its workers reported: sums, and each worker's own figures. The sums leave
    out workers that did not answer, which the details name."""
    known = {one: report for one, report in reports.items() if not isinstance(report, str)}
    batches: Counter[tuple[str, str]] = Counter()
    for report in known.values():
        batches.update({(one["kind"], one["reason"]): one["count"] for one in report["batches"]})
    hours = {one: _Hour(report["history"], now_ms - report["at_ms"]) for one, report in known.items()}
    newest = max((hour.last for hour in hours.values()), default=0)
    times = range(max(min((hour.first for hour in hours.values()), default=1), newest - _SAMPLES + 1), newest + 1)
    added = {
        key: [_added(key, [one for one in hours.values() if one.first <= each], each) for each in times]
        for key in _KEYS
    }
    tasks = {one["worker_id"]: one["tasks"] for one in details["workers"]}
    return {
        **details,
        "history": {"at_ms": [each * _SAMPLE_MS for each in times], **added},
        "histories": [
            {"worker_id": one, **{key: [hour.value(key, each) for each in times] for key in _KEYS}}
            for one, hour in hours.items()
        ],
        "workers": [
            {"worker_id": one, "tasks": tasks.get(one, {}), **_figures(reports.get(one, ""))}
            for one in sorted({*tasks, *reports})
        ],
        "batches": [{"kind": kind, "reason": why, "count": count} for (kind, why), count in batches.most_common()],
        "sparks": [{"worker_id": one, **report["spark"]} for one, report in known.items()],
    }


def _figures(report: Mapping[str, Any] | str) -> dict[str, Any]:
    if isinstance(report, str):
        return {**dict.fromkeys(_RATES), "problem": report}
    return {**{key: report[key] for key in _RATES}, "problem": ""}


class _Hour:
    """A worker's last hour, in intervals of this worker's clock. Samples are not taken at exact times, so an interval
    without one has that of the interval before."""

    def __init__(self, history: Mapping[str, Sequence[Any]], skew_ms: int) -> None:
        self._history = history
        self._indexes = {int(at_ms + skew_ms) // _SAMPLE_MS: index for index, at_ms in enumerate(history["at_ms"])}
        #: Of a worker without samples, such that it never began.
        self.first = min(self._indexes, default=1 << 60)
        self.last = max(self._indexes, default=0)

    def value(self, key: str, interval: int) -> float | None:
        for each in range(interval, interval - 1 - _CARRIED, -1):
            if each in self._indexes:
                found: float | None = self._history[key][self._indexes[each]]
                return found
        return None


def _added(key: str, hours: Sequence[_Hour], interval: int) -> float | None:
    """Return the sum of a figure, or the greatest age; None if one is not known."""
    values = [hour.value(key, interval) for hour in hours]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    return max(known) if key == _GREATEST else round(sum(known), 1)
