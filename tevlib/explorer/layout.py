"""The tidy layout of a tree, in pixels: one for the widget, the SVG and the PNG.

The root is at the left, a column for every depth. A first child stays in its parent's row, so that a line of the
drawing reads as text (the first line is the text that was decoded); every other child starts a row below all that came
before. The rows of a subtree are therefore
one block: boxes cannot overlap, and edges, which live between the columns, cannot cross.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tevlib.explorer.labels import columns

ROW = 34  # from one row to the next
BOX = 26  # height of a box
GAP = 84  # between two columns: edges, and a chip for the bonus token
CHARACTER = 7.9  # width of a character of a label
NUMBER = 38  # room for the number in a box
PAD = 8  # inside a box
MARGIN = 28  # around the tree


@dataclass(frozen=True)
class Layout:
    """Where the boxes are: `row` of every node; `left` edge and `width` of every depth's column; all in pixels."""

    depth: list[int]
    row: list[int]
    left: list[float]
    width: list[float]

    def box(self, node: int) -> tuple[float, float, float, float]:
        """x, y, width and height of a node's box."""
        d = self.depth[node]
        return self.left[d], MARGIN + ROW * self.row[node], self.width[d], BOX

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the drawing, with its margins and room for a chip behind the last column."""
        return self.left[-1] + self.width[-1] + GAP + MARGIN / 2, 2 * MARGIN + ROW * max(self.row) + BOX


def tidy_rows(children: Sequence[Sequence[int]]) -> list[int]:
    """Row of every node of the tree with these `children` (node 0 the root), no two nodes of one depth in one row.

    A first child goes on in its parent's row, so that a line of the drawing reads as text; every further child starts
    below all that came before it. The order of the children is the caller's.
    """
    rows = [0] * len(children)
    lines, stack = 0, [(0, False)]
    while stack:
        node, below = stack.pop()
        lines += below
        rows[node] = lines
        stack += [(child, i > 0) for i, child in reversed(list(enumerate(children[node])))]
    return rows


def tidy_layout(children: Sequence[Sequence[int]], labels: Sequence[str]) -> Layout:
    """The `Layout` of a tree whose boxes show `labels`: a column is as wide as its longest label needs."""
    depth = [0] * len(children)
    for node, below in enumerate(children):
        for child in below:
            depth[child] = depth[node] + 1
    longest = [1] * (max(depth) + 1)
    for d, label in zip(depth, labels, strict=True):
        longest[d] = max(longest[d], columns(label))
    width = [round(CHARACTER * n + NUMBER + 2 * PAD, 1) for n in longest]
    left = [MARGIN + sum(width[:d]) + GAP * d for d in range(len(width))]
    return Layout(depth, tidy_rows(children), [round(x, 1) for x in left], width)
