"""One draft tree as text or as a drawing: where the target's mass flows, where it leaves, what was accepted."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from tevlib.explorer.layout import tidy_rows
from tevlib.trees.draft_tree import DraftTree

FONT = 10.0  # points: token labels; all other text is 9 or more
ROW = 0.32  # inches from one row of boxes to the next
BOX = 0.25  # inches: height of a box
GAP = 0.42  # inches between the columns
PAD = 0.07  # inches between a box and its text
CHARACTER = 0.602 / 72  # inches per point of size: the width of every character of DejaVu Sans Mono
LONGEST = 14  # characters of a label
DASHES = (2, 1)  # of the bonus token
ACCEPTED, PLAIN, INK = "#D55E00", "#9A9A9A", "#222222"  # vermilion stays apart from blue and grey for all eyes


def tree_text(tree: DraftTree, labels: Sequence[str], P: Tensor, w: Tensor, path: Sequence[int] = ()) -> str:
    """The tree as indented lines: label, P (mass that gets there), w (mass that leaves there); `*` on the path."""
    lines, stack = ["     P      w"], [0]
    while stack:
        node = stack.pop()
        mark = "*" if node in path else " "
        indent = "  " * int(tree.depths[node])
        lines.append(f"{float(P[node]):6.3f} {float(w[node]):6.3f} {mark} {indent}{labels[node]}")
        stack += reversed(tree.children[node])
    return "\n".join(lines)


def draw_tree(
    tree: DraftTree,
    labels: Sequence[str],
    w: Tensor,
    path: Sequence[int] = (),
    title: str = "",
    *,
    bonus: str | None = None,
):
    """A matplotlib figure of the tree, root at the left, one box per node with its label and w(v).

    The darker a box, the more target mass leaves there. A line is as thick as the mass P(v) that runs through it, which
    is the sum of w over the subtree (Eq. 26). The accepted `path` (node indices from the root) is vermilion, and
    `bonus`, the label of the bonus token, hangs dashed at its end. The size follows from the labels, so that no two
    overlap; long labels are cut. Raises ValueError for a bonus without a path, and where `labels` or `w` do not fit.
    """
    if len(labels) != len(tree) or w.shape != (len(tree),):
        raise ValueError(f"a tree of {len(tree)} nodes needs as many labels and w; got {len(labels)}, {tuple(w.shape)}")
    if bonus is not None and not path:
        raise ValueError(f"the bonus token {bonus!r} hangs at the end of the accepted path, and there is no path")
    import matplotlib.pyplot as plt
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    children, depths = [list(found) for found in tree.children], tree.depths.tolist()
    texts = [_cut(label) for label in labels]
    if bonus is not None:  # one more child of the exit node
        children[path[-1]].append(len(tree))
        children.append([])
        depths.append(depths[path[-1]] + 1)
        texts.append(_cut(bonus))
    rows = tidy_rows(children)
    left, widths = _columns(depths, texts)
    top, bottom = 0.7, 0.8  # inches for title and depths, and for the legend
    width, height = max(left[-1] + widths[-1], 7.0) + 0.4, ROW * max(rows) + top + bottom
    figure = plt.figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.2, width - 0.2), ylim=(height - top, -top))
    axes.axis("off")  # data units are inches, y downwards, row 0 at y = 0

    mass = (tree.ancestors.to(w).T @ w).tolist()  # P
    on_path = set(path)
    for node, below in enumerate(children):
        start, y = left[depths[node]] + widths[depths[node]], ROW * rows[node]
        for child in below:
            end, y_end = left[depths[child]], ROW * rows[child]
            if child == len(tree):  # its own way down, so that it covers no other line
                axes.plot(
                    [start - 0.1, start - 0.1, end], [y, y_end, y_end], color=ACCEPTED, linewidth=2, dashes=DASHES
                )
                continue
            axes.plot(
                [start, end - GAP / 2, end - GAP / 2, end],
                [y, y, y_end, y_end],
                color=ACCEPTED if child in on_path else PLAIN,
                linewidth=0.7 + 5.5 * mass[child],
                solid_capstyle="butt",
                zorder=2 if child in on_path else 1,
            )

    shade = ScalarMappable(Normalize(0, max(float(w.max()), 1e-9)), "Blues")
    for node, text in enumerate(texts):
        is_bonus = node == len(tree)
        x, y, across = left[depths[node]], ROW * rows[node], widths[depths[node]]
        fill = (1, 1, 1, 1) if is_bonus else shade.to_rgba(float(w[node]))
        _box(axes, x, y, across, fill, node in on_path, is_bonus)
        ink = "white" if sum(fill[:3]) < 1.35 else INK
        _write(axes, x + PAD, y, text, ink, size=FONT, weight="bold", family="monospace")
        number = "bonus" if is_bonus else f"{float(w[node]):.2f}"
        _write(axes, x + across - PAD, y, number, ink, ha="right", family="monospace")

    for depth, x in enumerate(left[: tree.height + 1]):
        _write(axes, x + PAD, -0.27, f"depth {depth}" if depth else "root", "#555555")
    _write(axes, 0, -0.52, title, INK, size=11)
    _legend(axes, ROW * max(rows) + 0.36, shade, bool(path), bonus is not None)
    return figure


def beside(figures: Sequence):
    """One figure with several side by side at the same scale, their tops level; the single ones are closed."""
    import matplotlib.pyplot as plt

    images = []
    for figure in figures:
        figure.canvas.draw()
        images.append(np.asarray(figure.canvas.buffer_rgba()).copy())
        plt.close(figure)
    dpi = figures[0].dpi
    width, height = sum(image.shape[1] for image in images), max(image.shape[0] for image in images)
    joined = plt.figure(figsize=(width / dpi, height / dpi), dpi=dpi, facecolor="white")
    x = 0
    for image in images:
        rows, columns = image.shape[:2]
        axes = joined.add_axes((x / width, 1 - rows / height, columns / width, rows / height))
        axes.imshow(image, interpolation="none", aspect="auto")
        axes.axis("off")
        x += columns
    return joined


def save_png(figure, path: Path | str) -> Path:
    """The path of the PNG file, written with its folder; the same bytes for the same figure and matplotlib version."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png", metadata={"Software": None})
    return path


def _cut(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def _columns(depths: Sequence[int], texts: Sequence[str]) -> tuple[list[float], list[float]]:
    """Left edge and width, in inches, of the boxes of each depth: as wide as the longest label there, and a number."""
    longest = [0] * (max(depths) + 1)
    for depth, text in zip(depths, texts, strict=True):
        longest[depth] = max(longest[depth], len(text))
    widths = [CHARACTER * (FONT * n + 9 * len("bonus")) + 3.5 * PAD for n in longest]
    return [sum(widths[:depth]) + GAP * depth for depth in range(len(widths))], widths


def _box(axes, x: float, y: float, width: float, fill, taken: bool, is_bonus: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = {"edgecolor": ACCEPTED, "linewidth": 2.0} if taken or is_bonus else {"edgecolor": PLAIN, "linewidth": 0.8}
    style |= {"linestyle": (0, DASHES)} if is_bonus else {}
    corner = "round,pad=0,rounding_size=0.05"
    axes.add_patch(FancyBboxPatch((x, y - BOX / 2), width, BOX, boxstyle=corner, facecolor=fill, zorder=3, **style))


def _write(axes, x: float, y: float, text: str, ink: str, *, size: float = 9, **style) -> None:
    """A line of text centred on y, its characters taken as they are: a dollar sign starts no formula."""
    axes.text(x, y, text, color=ink, fontsize=size, va="center_baseline", zorder=4, parse_math=False, **style)


def _legend(axes, y: float, shade, has_path: bool, has_bonus: bool) -> None:
    """Two lines below the tree that say what shade, thickness, colour and dashes mean."""
    low, high = shade.get_clim()
    strip = axes.inset_axes((0.34, y - 0.07, 0.7, 0.14), transform=axes.transData)
    axes.figure.colorbar(shade, cax=strip, orientation="horizontal", ticks=[])
    _write(axes, 0, y, f"{low:.2f}", INK)
    _write(axes, 1.1, y, f"{high:.2f}   shade and number: w(v), the target mass that leaves the tree here", INK)
    x, y = 0.0, y + 0.24
    entries = [("as thick as P(v), the target mass that runs through", {"color": PLAIN, "linewidth": 4})]
    entries += [("accepted", {"color": ACCEPTED, "linewidth": 3})] if has_path else []
    entries += [("bonus token", {"color": ACCEPTED, "linewidth": 2, "dashes": DASHES})] if has_bonus else []
    for text, style in entries:
        axes.plot([x, x + 0.26], [y, y], **style)
        _write(axes, x + 0.34, y, text, INK)
        x += 0.6 + 0.07 * len(text)
