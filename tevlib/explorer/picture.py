"""One draft tree as text or as a matplotlib drawing: where the target's mass leaves it, and which path was accepted."""

from collections.abc import Sequence

from torch import Tensor

from tevlib.trees.draft_tree import DraftTree

NODE_HEIGHT = 0.34  # inches for each leaf, enough for a label


def tidy_rows(tree: DraftTree) -> list[float]:
    """Row of every node: leaves numbered from the top, children in node order, parents in the middle of theirs."""
    rows = [0.0] * len(tree)
    leaves = 0
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += reversed(tree.children[node])
        if not tree.children[node]:
            rows[node], leaves = float(leaves), leaves + 1
    for node in reversed(order):
        if children := tree.children[node]:
            rows[node] = (rows[children[0]] + rows[children[-1]]) / 2
    return rows


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


def draw_tree(tree: DraftTree, labels: Sequence[str], w: Tensor, path: Sequence[int] = (), title: str = ""):
    """A matplotlib figure of the tree from left to right; the darker a node, the more mass w(v) leaves there.

    Each node carries its label and w(v); the accepted path is drawn in orange.
    """
    import matplotlib.pyplot as plt

    rows, depths = tidy_rows(tree), tree.depths.tolist()
    figure, axes = plt.subplots(
        figsize=(2.2 + 1.7 * max(depths), 1.1 + NODE_HEIGHT * (max(rows) + 1)), layout="constrained"
    )
    on_path = set(path)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            taken = node in on_path
            axes.plot(
                [depths[parent], depths[node]],
                [rows[parent], rows[node]],
                color="#D55E00" if taken else "#BBBBBB",
                linewidth=2.4 if taken else 1.0,
                zorder=1,
            )
    edges = ["#D55E00" if node in on_path else "#666666" for node in range(len(tree))]
    dots = axes.scatter(
        depths, rows, c=w.tolist(), cmap="Blues", vmin=0, s=110, edgecolors=edges, linewidths=1.6, zorder=2
    )
    for node, label in enumerate(labels):
        axes.annotate(
            f"{label}  {float(w[node]):.2f}".replace("$", r"\$"),
            (depths[node], rows[node]),
            xytext=(8, 5),
            textcoords="offset points",
            fontsize=8,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
            zorder=3,
        )
    axes.set(xlabel="depth", title=title, xlim=(-0.3, max(depths) + 0.9), ylim=(max(rows) + 0.6, -0.9))
    axes.set_xticks(range(max(depths) + 1))
    axes.yaxis.set_visible(False)
    axes.spines[["left", "right", "top"]].set_visible(False)
    figure.colorbar(dots, ax=axes, label="w(v): mass that leaves here", pad=0.02)
    return figure
