"""``docs/benchmarks.md`` and ``docs/scale.md``: the templates here, filled with tables of the results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench import plots, scale, tables
from bench.loads import DEFAULT, LOADS, Load
from bench.rows import Latency, Result, Row, Rows, Run, Started

_REPOSITORY: Final = Path(__file__).parents[1]
RESULTS: Final = Path(__file__).parent / "results" / "results.json"
#: Flame graphs, and what they say in a sentence each.
FLAMES: Final = RESULTS.parent
TEMPLATE: Final = Path(__file__).parent / "page.md"
PAGE: Final = _REPOSITORY / "docs" / "benchmarks.md"
SCALE_TEMPLATE: Final = Path(__file__).parent / "scale.md"
SCALE_PAGE: Final = _REPOSITORY / "docs" / "scale.md"
IMAGES: Final = _REPOSITORY / "docs" / "images" / "benchmarks"
_PLACE: Final = re.compile(r"^<!-- (\w+) -->$", re.MULTILINE)
_WRITTEN: Final = "<!-- Written by `python -m bench --page` from bench/{} and bench/results; change those. -->\n\n"


def write(rows: Rows) -> None:
    """Write the pages and their plots again."""
    for old in IMAGES.glob("*.png"):
        old.unlink()
    plots.draw(rows, IMAGES)
    PAGE.write_text(text(TEMPLATE, rows))
    SCALE_PAGE.write_text(text(SCALE_TEMPLATE, rows))
    with suppress(scale.NoModel):
        found = scale.model(rows)
        scale.draw(found.costs, found.loads, IMAGES / "scale.png")


def keep(file: Path, run: Run, rows: Iterable[Row]) -> None:
    """Keep what another command has measured, and write the pages of it if ``file`` is that of the pages."""
    kept = Rows.read(file)
    for row in rows:
        kept.add(run, row)
    kept.write(file)
    if file == RESULTS:
        write(kept)


def text(template: Path, rows: Rows) -> str:
    """The template with every place filled. Raises KeyError for a place that is not known."""
    filled = _PLACE.sub(lambda place: _PLACES[place[1]](rows), template.read_text())
    return _WRITTEN.format(template.name) + filled


def _runs(rows: Rows) -> str:
    used = [run for run in rows.runs.values() if any(row.run == run.id for row in rows.rows)]
    if not used:
        return "Nothing was measured yet."
    parts = []
    for run in used:
        loads = list(dict.fromkeys(row.load for row in rows.rows if row.run == run.id))
        parts.append(
            f"* {run.id} UTC, `{run.command}`: {_listed(loads)}.\n  {_pairs(run.machine)}.\n  {_pairs(run.versions)}."
        )
    return "\n".join(parts)


def _pairs(named: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in named.items())


def _listed(loads: Sequence[str]) -> str:
    """Their names, or how many there are."""
    return ", ".join(f"`{load}`" for load in loads) if len(loads) <= 6 else f"{len(loads)} loads"


def _disturbed(rows: Rows) -> str:
    looked = [row.busy_before_percent for row in rows.rows if isinstance(row, Result | Latency | Started)]
    busy = sum(percent > 15 for percent in looked)
    return f"Before {busy} of the {len(looked)} runs of contenders other processes used more than 15 % of the machine."


def _copied(group: str) -> Callable[[Rows], str]:
    def made(rows: Rows) -> str:
        summary, details = tables.copied(rows, group), tables.details(rows, group)
        if summary is None or details is None:
            return _missing(rows, Result, group)
        held = tables.sources(rows, [load.name for load in tables.loads_of(group)])
        parts = [
            f"![Throughput, {group}](images/benchmarks/{group}-throughput.png)",
            summary.markdown(),
            f"![CPU, {group}](images/benchmarks/{group}-cpu.png)",
            _folded("Every contender", details.markdown() + ("" if held is None else f"\n\n{held.markdown()}")),
            _missing(rows, Result, group),
        ]
        return "\n\n".join(part for part in parts if part)

    return made


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _single(
    table: Callable[[Rows], tables.Table | None], kind: type[Row], group: str, image: str = ""
) -> Callable[[Rows], str]:
    def made(rows: Rows) -> str:
        found = table(rows)
        if found is None:
            return _missing(rows, kind, group)
        picture = f"![{image}](images/benchmarks/{image}.png)" if image else ""
        return "\n\n".join(part for part in (picture, found.markdown(), _missing(rows, kind, group)) if part)

    return made


def _missing(rows: Rows, kind: type[Row], group: str) -> str:
    absent = [f"`{load.name}`" for load in tables.loads_of(group) if not rows.of(kind, load.name)]
    return f"Not measured yet: {', '.join(absent)}." if absent else ""


def _fitted(rows: Rows) -> str:
    try:
        return scale.fitted_text(scale.model(rows))
    except scale.NoModel as error:
        return f"The results give no model: {error}."


def _modelled(part: Callable[[Rows, scale.Model], str]) -> Callable[[Rows], str]:
    """What the model says, if there is one."""

    def made(rows: Rows) -> str:
        try:
            return part(rows, scale.model(rows))
        except scale.NoModel:
            return "No model yet."

    return made


_SCALE_PLOT: Final = "![Rate against cores](images/benchmarks/scale.png)"


def flames(folder: Path) -> str:
    """The flame graphs in ``folder``, each with the sentence in its Markdown file."""
    copying = [load for load in LOADS if isinstance(load, Load)]
    found = [load for load in copying if flame_of(folder, load.name).exists()]
    parts = [_flame(flame_of(folder, load.name), load) for load in found]
    absent = [f"`{load.name}`" for load in copying if load.name in DEFAULT and load not in found]
    return "\n\n".join([*parts, *([f"No graph yet: {', '.join(absent)}."] if absent else [])])


def flame_of(folder: Path, load: str) -> Path:
    """Where the flame graph of a load is."""
    return folder / f"flame-{load}.svg"


def _flame(graph: Path, load: Load) -> str:
    sentence = graph.with_suffix(".md")
    said = f"not described yet; write a sentence into `bench/results/{sentence.name}`."
    if sentence.exists():
        said = sentence.read_text().strip()
    return f"`{load.name}` ({load.about}): {said}\n\n![Flame graph of {load.name}](../bench/results/{graph.name})"


def _loads(_: Rows) -> str:
    lines = [[f"`{load.name}`", load.about] for load in LOADS]
    return "\n".join(f"| {' | '.join(line)} |" for line in [["load", "what"], ["---", "---"], *lines])


_PLACES: Final[Mapping[str, Callable[[Rows], str]]] = {
    "runs": _runs,
    "disturbed": _disturbed,
    "loads": _loads,
    "replicated": _copied("replicated"),
    "single": _copied("single"),
    "tiny": _copied("tiny"),
    "far": _single(tables.far, Result, "far", "far"),
    "secured": _single(tables.secured, Result, "secured"),
    "latency": _single(tables.latency, Latency, "latency", "latency"),
    "start": _single(tables.started, Started, "start"),
    "flames": lambda _: flames(FLAMES),
    "partitions": scale.partitions_text,
    "fitted": _fitted,
    "costs": _modelled(lambda rows, found: scale.costs_table(found.costs, rows).markdown()),
    "checks": _modelled(lambda _, found: scale.checks_table(found.costs, found.loads).markdown()),
    "aim": _modelled(lambda rows, found: f"{scale.aim_table(found.costs, rows).markdown()}\n\n{_SCALE_PLOT}"),
    "walls": lambda rows: scale.walls_table(rows).markdown(),
}
