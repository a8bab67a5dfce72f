"""Stacks that a sampling profiler saw, as a flame graph (SVG) and as the functions and lines that took most (text)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final
from zlib import crc32

#: Frames from the outermost to the innermost, ``function (file:line)``, to how often they were seen.
Stacks = Mapping[tuple[str, ...], int]

_WIDTH: Final = 1400
_ROW: Final = 17
_MARGIN: Final = 10
_HEAD: Final = 44
#: Narrower than this a frame is left out, and so is all above it.
_LEAST_WIDTH: Final = 0.8
_CHARACTER: Final = 6.7
_TOP: Final = 30
_SELECT: Final = "select (selectors.py"


def parse(lines: Iterable[str]) -> Counter[tuple[str, ...]]:
    """Stacks as ``py-spy record --format raw`` writes them: ``frame;frame;frame count``."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        frames, _, count = line.rstrip().rpartition(" ")
        if frames:
            stacks[tuple(frames.split(";"))] += int(count)
    return stacks


def working(stacks: Stacks) -> Counter[tuple[str, ...]]:
    """Without those that stand in ``select`` (they wait for a socket or, woken, for a core), and without the
    outermost frames that all have."""
    kept = {frames: count for frames, count in stacks.items() if _SELECT not in frames[-1]}
    shared = 0
    while len({frames[shared : shared + 1] for frames in kept}) == 1 and all(len(each) > shared + 1 for each in kept):
        shared += 1
    return Counter({frames[shared:]: count for frames, count in kept.items()})


def function_of(frame: str) -> str:
    """The frame without its line: ``function (file)``."""
    head, colon, line = frame.rpartition(":")
    return f"{head})" if colon and line.rstrip(")").isdigit() else frame


def by_function(stacks: Stacks) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for frames, count in stacks.items():
        found[tuple(function_of(frame) for frame in frames)] += count
    return found


@dataclass(frozen=True, slots=True)
class Top:
    """Samples in a function itself, and in it or in what it calls; a function in a stack twice counts once."""

    own: Counter[str]
    total: Counter[str]


def top(stacks: Stacks) -> Top:
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for frames, count in stacks.items():
        own[frames[-1]] += count
        for frame in set(frames):
            total[frame] += count
    return Top(own, total)


def text(title: str, stacks: Stacks) -> str:
    """The functions with most samples of their own, those with most in all, and the lines with most of their own."""
    functions, lines = top(by_function(stacks)), top(stacks)
    samples = sum(stacks.values())
    parts = [title]
    for heading, counted in (
        ("share of own samples, by function", functions.own),
        ("share with all that is called, by function", functions.total),
        ("share of own samples, by line", lines.own),
    ):
        parts += ["", heading]
        parts += [f"{count / samples:7.1%}  {frame}" for frame, count in counted.most_common(_TOP)]
    return "\n".join(parts) + "\n"


@dataclass(slots=True)
class _Node:
    """A frame under its callers."""

    count: int = 0
    below: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Box:
    frame: str
    count: int
    depth: int
    start: int


def svg(title: str, stacks: Stacks) -> str:
    """A flame graph, callers above the called, width by samples. Holds no script; a frame's title names it whole."""
    root = _Node()
    for frames, count in by_function(stacks).items():
        node = root
        node.count += count
        for frame in frames:
            node = node.below.setdefault(frame, _Node())
            node.count += count
    scale = (_WIDTH - 2 * _MARGIN) / max(root.count, 1)
    boxes = [box for box in _boxes(root, 0, 0) if box.count * scale >= _LEAST_WIDTH]
    height = _HEAD + _ROW * (1 + max((box.depth for box in boxes), default=0)) + _MARGIN
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">',
            '<rect width="100%" height="100%" fill="#fffdf8"/>',
            f'<text x="{_MARGIN}" y="18" font-size="14">{escape(title)}</text>',
            f'<text x="{_MARGIN}" y="34" fill="#666">{root.count} samples; width is the share of them</text>',
            *(_drawn(box, scale, root.count) for box in boxes),
            "</svg>\n",
        ]
    )


def _boxes(node: _Node, depth: int, start: int) -> Iterator[_Box]:
    for frame, below in sorted(node.below.items()):
        yield _Box(frame, below.count, depth, start)
        yield from _boxes(below, depth + 1, start)
        start += below.count


def _drawn(box: _Box, scale: float, samples: int) -> str:
    x, y, width = _MARGIN + box.start * scale, _HEAD + box.depth * _ROW, box.count * scale
    room = int((width - 4) / _CHARACTER)
    label = box.frame if len(box.frame) <= room else f"{box.frame[: room - 1]}…"
    shown = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(label)}</text>' if room >= 3 else ""
    return (
        f"<g><title>{escape(box.frame)}: {box.count} samples, {box.count / samples:.1%}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 1}" fill="{_color(box.frame)}" rx="1"/>'
        f"{shown}</g>"
    )


def _color(frame: str) -> str:
    """The same for all functions of a file, so that modules can be told apart."""
    draw = crc32(frame.rpartition("(")[2].encode())
    return f"hsl({draw % 360}, 60%, {72 + draw // 360 % 10}%)"


def merged(several: Sequence[Stacks]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for stacks in several:
        found.update(stacks)
    return found
