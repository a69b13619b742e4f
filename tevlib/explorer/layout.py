"""The tidy layout of a tree, in pixels: one for the widget, the SVG and the PNG.

The root is at the left, a column for every depth. A first child stays in its parent's row, so that a line of the
drawing reads as text (the first line is the text that was decoded). Every other child goes as far up as it can with its
subtree below what came before it in every column. So boxes cannot overlap. Nor can edges cross, which live between the
columns: a parent shares its row with its first child, so all its children lie below all children of the parents above.
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


def packed_rows(children: Sequence[Sequence[int]]) -> list[int]:
    """Row of every node: first children in the parent's row, the others packed upwards, column by column."""
    order = [0]
    for node in order:
        order.extend(children[node])
    below = [0] * len(children)  # rows from a node's parent down to it
    top: list[list[int]] = [[] for _ in children]  # first and last row of a subtree in every column, from its root on
    last: list[list[int]] = [[] for _ in children]
    for node in reversed(order):
        first, end = [0], [0]
        for child in children[node]:
            places = zip(end[1:], top[child], strict=False)
            shift = max((bottom + 1 - upper for bottom, upper in places), default=0)
            below[child] = shift
            for column, (upper, bottom) in enumerate(zip(top[child], last[child], strict=True), start=1):
                if column == len(end):
                    first.append(upper + shift)
                    end.append(bottom + shift)
                end[column] = bottom + shift
            top[child], last[child] = [], []
        top[node], last[node] = first, end
    rows = [0] * len(children)
    for node in order:
        for child in children[node]:
            rows[child] = rows[node] + below[child]
    return rows


def tidy_layout(children: Sequence[Sequence[int]], labels: Sequence[str]) -> Layout:
    """The `Layout` of a tree whose boxes show `labels`: a column is as wide as its longest label needs."""
    depth = [0] * len(children)
    for node, below in enumerate(children):  # parents come before their children
        for child in below:
            depth[child] = depth[node] + 1
    longest = [1] * (max(depth) + 1)
    for d, label in zip(depth, labels, strict=True):
        longest[d] = max(longest[d], columns(label))
    width = [round(CHARACTER * n + NUMBER + 2 * PAD, 1) for n in longest]
    left = [MARGIN + sum(width[:d]) + GAP * d for d in range(len(width))]
    return Layout(depth, packed_rows(children), [round(x, 1) for x in left], width)
