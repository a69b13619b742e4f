"""A small draft tree on matplotlib axes: boxes selected, omitted or new, and the target's flow in red."""

from collections.abc import Sequence
from dataclasses import dataclass

from tevlib.explorer.labels import columns, short
from tevlib.explorer.layout import packed_rows
from tevlib.report.figures.style import BLUE, GREEN, GREY, INK, MUTED, VERMILION

CHARACTER, PAD, GAP = 8.2, 9, 44  # units of the axes: width of a letter, inside a box, between the columns
FONT = 13  # the same units
LOOKS = {  # edge colour, fill, dashes, line width
    "kept": (BLUE, "#D6E8F5", False, 1.6),
    "omitted": (GREY, "white", True, 1.4),
    "new": (GREEN, "#CDEDE2", False, 2.2),
    "exit": (VERMILION, "#FBE0CF", False, 2.6),
}


@dataclass(frozen=True)
class Node:
    """A box: its label, its parent (-1 for the root), the target mass that runs into it, a second text, its look."""

    label: str
    parent: int
    mass: float
    note: str
    look: str = "kept"


@dataclass(frozen=True)
class Places:
    """Where the boxes are, in units of the axes, y downwards; `box(node)` is x, y, width, height."""

    depth: list[int]
    row: list[int]
    left: list[float]
    width: list[float]
    pitch: float
    height: float

    def box(self, node: int) -> tuple[float, float, float, float]:
        d = self.depth[node]
        return self.left[d], self.row[node] * self.pitch, self.width[d], self.height

    @property
    def size(self) -> tuple[float, float]:
        return self.left[-1] + self.width[-1], max(self.row) * self.pitch + self.height


def places(nodes: Sequence[Node], two_lines: bool = False) -> Places:
    """The `Places` of `nodes` (parents before children): heavier children above, no crossing edges.

    two_lines: the note stands below the label instead of behind it.
    """
    children: list[list[int]] = [[] for _ in nodes]
    depth = [0] * len(nodes)
    for i, node in enumerate(nodes[1:], start=1):
        children[node.parent].append(i)
        depth[i] = depth[node.parent] + 1
    children = [sorted(below, key=lambda i: (nodes[i].look == "omitted", -nodes[i].mass)) for below in children]
    width = [0.0] * (max(depth) + 1)
    for node, d in zip(nodes, depth, strict=True):
        label, note = CHARACTER * columns(short(node.label)), 0.82 * CHARACTER * len(node.note)
        width[d] = max(width[d], 2 * PAD + (max(label, note) if two_lines else label + PAD + note))
    left = [sum(width[:d]) + GAP * d for d in range(len(width))]
    return Places(depth, packed_rows(children), left, width, 62 if two_lines else 36, 44 if two_lines else 27)


def draw(axes, nodes: Sequence[Node], at: Places, scale: float, dx: float = 0, dy: float = 0, flow: float = 15) -> None:
    """Draw `nodes` at `at`, moved by (dx, dy). scale: points per unit, for text and lines; flow: units for mass 1.

    Edges are red, as thick as the mass that runs through; those to omitted candidates are grey and dashed.
    """
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path

    for i, node in enumerate(nodes[1:], start=1):
        x, y, w, h = at.box(node.parent)
        x_end, y_end, _, _ = at.box(i)
        start, end, middle = x + w + dx, x_end + dx, (x + w + x_end) / 2 + dx
        y, y_end = y + h / 2 + dy, y_end + h / 2 + dy
        omitted = node.look == "omitted"
        path = Path([(start, y), (middle, y), (middle, y_end), (end, y_end)], [1, 4, 4, 4])
        thick = max(flow * node.mass, 1.2) * scale
        axes.add_patch(
            PathPatch(path, facecolor="none", edgecolor=GREY if omitted else VERMILION, linewidth=thick,
                      capstyle="butt", linestyle=(0, (2, 1.2) if thick < 3 else (0.8, 0.4)) if omitted else "-",
                      alpha=0.9 if omitted else 0.55, zorder=1)
        )  # fmt: skip
    for i, node in enumerate(nodes):
        x, y, w, h = at.box(i)
        edge, fill, dashed, line = LOOKS[node.look]
        axes.add_patch(
            FancyBboxPatch((x + dx, y + dy), w, h, boxstyle="round,pad=0,rounding_size=6", facecolor=fill,
                           edgecolor=edge, linewidth=line, linestyle=(0, (3, 1.6)) if dashed else "-", zorder=2)
        )  # fmt: skip
        ink = MUTED if node.look == "omitted" else INK
        two = at.height > 30
        write(
            axes,
            x + dx + PAD,
            y + dy + (h * 0.31 if two else h / 2),
            short(node.label),
            scale,
            ink,
            mono=True,
            bold=True,
        )
        if two:
            write(axes, x + dx + PAD, y + dy + h * 0.74, node.note, scale, ink, size=10.5, mono=True)
        else:
            write(axes, x + dx + w - PAD, y + dy + h / 2, node.note, scale, ink, size=11, mono=True, ha="right")


def write(axes, x, y, text, scale, ink=INK, *, size: float = FONT, mono=False, bold=False, ha="left", **style) -> None:
    """A text centred on y, taken as it is: a dollar sign starts no formula. size: units of the axes."""
    axes.text(
        x, y, text, color=ink, fontsize=size * scale, ha=ha, va="center_baseline", parse_math=False, zorder=3,
        family="DejaVu Sans Mono" if mono else "DejaVu Sans", weight="bold" if bold else "normal", **style,
    )  # fmt: skip


def canvas(width: float, height: float, inches: float):
    """A figure of `inches` across with axes of `width` by `height` units, y downwards, and its points per unit."""
    from matplotlib.figure import Figure

    scale = 72 * inches / width
    figure = Figure(figsize=(inches, inches * height / width), layout="none", facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes, scale
