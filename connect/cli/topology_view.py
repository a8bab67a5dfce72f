"""What clusters and flows look like: a line for each flow, and for each cluster the tree of those that reach it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text
from rich.tree import Tree

from connect.cli.connectors_view import console, new_table, printable
from connectors.flow_health import Age, FlowHealth, Seen, State, Way

_STYLES: Final = {
    State.ALIVE: "green",
    State.STOPPED: "bold red",
    State.NONE: "bold red",
    State.OFF: "",
    State.UNKNOWN: "yellow",
}
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def show_topology(clusters: Sequence[Seen], flows: Sequence[FlowHealth], ways: Sequence[Way]) -> None:
    """The flows, then the trees, then what could not be looked at."""
    out = console()
    table = new_table("flow", "its worker", "last heartbeat")
    for flow in flows:
        state = Text(flow.state.value, style=_STYLES[flow.state])
        name = flow.name if flow.in_file else f"{flow.name} (not in the file)"
        table.add_row(printable(name), state, age_words(flow.age))
    out.print(table)
    out.print("Where records come from, by heartbeats that were mirrored:\n", soft_wrap=True)
    for cluster in clusters:
        out.print(_tree(cluster, [way for way in ways if way.cluster == cluster.alias]))
    for cluster in clusters:
        if cluster.error:
            line = f"\nnot looked at: {printable(cluster.error)}"
            out.print(line, markup=False, soft_wrap=True, style="bold red")


def _tree(cluster: Seen, ways: Sequence[Way]) -> Tree:
    tree = Tree(Text(printable(cluster.alias), style="bold"))
    if cluster.error:
        tree.add(Text("not looked at", style=_STYLES[State.UNKNOWN]))
    elif not ways:
        tree.add(Text("no mirrored heartbeats"))
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for way in ways:
        for depth in range(1, len(way.through) + 1):
            through = way.through[:depth]
            if through not in branches:
                label = Text(f"<- {printable(through[-1])}")
                branches[through] = branches[through[:-1]].add(label)
        branches[way.through].label = _label(way)
    return tree


def _label(way: Way) -> Text:
    hops = "1 hop" if len(way.through) == 1 else f"{len(way.through)} hops"
    label = Text(f"<- {printable(way.through[-1])}  {hops}, ")
    word = "" if way.state is State.ALIVE else f"{way.state.value}: "
    return label.append(f"{word}{age_words(way.age)}", style=_STYLES[way.state])


def age_words(age: Age | None) -> str:
    """Such as ``0.4 s ago`` or ``more than 3 h ago``."""
    if age is None:
        return "none"
    unit = next(((size, word) for size, word in _UNITS if age.seconds >= size), None)
    told = f"{age.seconds:.1f} s" if unit is None else f"{age.seconds / unit[0]:.0f} {unit[1]}"
    return f"more than {told} ago" if age.at_least else f"{told} ago"
