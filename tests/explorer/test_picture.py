"""The drawing of a tree: rows, nothing overlapping, what thickness and dashes say, bytes that stay."""

import random

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import FancyBboxPatch

from tevlib.explorer.picture import ACCEPTED, beside, draw_tree, save_png, tidy_rows, tree_text
from tevlib.trees.draft_tree import DraftTree


def random_tree(nodes, seed):
    rng = random.Random(seed)
    return DraftTree(list(range(nodes)), [-1, *(rng.randrange(max(0, node - 6), node) for node in range(1, nodes))])


def exit_weights(tree, seed=0):
    w = torch.rand(len(tree), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
    return w / w.sum()


@pytest.fixture
def figure_of():
    """The function `draw_tree`, whose figures are closed afterwards."""
    yield draw_tree
    plt.close("all")


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_tidy(seed):
    """First children stay in the parent's row, a subtree's rows are contiguous, no two nodes share depth and row."""
    tree = random_tree(30, seed)
    rows = tidy_rows(tree.children)
    assert len({*zip(rows, tree.depths.tolist(), strict=True)}) == len(tree)
    assert sorted(set(rows)) == list(range(sum(not below for below in tree.children)))
    for node, below in enumerate(tree.children):
        assert all(rows[child] == rows[node] for child in below[:1])
        inside = {rows[v] for v in range(len(tree)) if tree.ancestors[v, node]}
        assert inside == set(range(min(inside), max(inside) + 1))


def test_a_chain_is_one_line_and_deep_trees_do_not_recurse():
    """A chain of 3,000 nodes has one row."""
    assert set(tidy_rows([[node + 1] for node in range(2999)] + [[]])) == {0}


@pytest.mark.parametrize(("nodes", "seed"), [(1, 0), (2, 0), (17, 1), (33, 2), (65, 3)])
def test_nothing_overlaps_and_all_is_legible(figure_of, nodes, seed):
    """As rendered: every text of at least 9 points, inside the figure, apart from the others; no two boxes meet."""
    tree = random_tree(nodes, seed)
    words = ["␣the", "\\n", "␣internationalisation", "W", "$x$", "\\xe2\\x80"]
    path = tree.node_path(len(tree) // 2)
    title = f"One round: {nodes - 1} draft tokens, ceiling 1 + C_p = 2.61 tokens, this draw {len(path)}"
    figure = figure_of(
        tree, [words[i % 6] for i in range(nodes)], exit_weights(tree), path, title, bonus="␣WWWWWWWWWWWW"
    )
    renderer = figure.canvas.get_renderer()
    axes = figure.axes[0]
    texts = [text for text in axes.texts if text.get_text()]
    extents = [text.get_window_extent(renderer) for text in texts]
    boxes = [patch.get_window_extent(renderer) for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert len(boxes) == nodes + 1
    assert all(text.get_fontsize() >= 9 for text in texts)
    for one in extents:
        assert figure.bbox.containsx(one.x0) and figure.bbox.containsx(one.x1)
        assert figure.bbox.containsy(one.y0) and figure.bbox.containsy(one.y1)
    for group in (extents, boxes):
        assert not any(a.overlaps(b) for i, a in enumerate(group) for b in group[:i])
    inside = [
        sum(box.x0 <= e.x0 and e.x1 <= box.x1 for e in extents if box.y0 < (e.y0 + e.y1) / 2 < box.y1) for box in boxes
    ]
    assert all(count >= 2 for count in inside)  # label and number


def test_thickness_is_mass_and_colour_is_the_path(figure_of):
    """An edge is as thick as the target mass below it; exactly the edges of the path are in the accent colour."""
    tree = DraftTree([0, 1, 2, 3, 4], [-1, 0, 0, 1, 1])
    w = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1])
    figure = figure_of(tree, list("rabcd"), w, [0, 1, 3])
    edges = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 4]
    widths = [(line.get_linewidth() - 0.7) / 5.5 for line in edges]
    assert sorted(widths) == pytest.approx([0.1, 0.3, 0.3, 0.6])  # d; c and b; a with c and d below it
    assert sorted(w for w, line in zip(widths, edges, strict=True) if line.get_color() == ACCEPTED) == pytest.approx(
        [0.3, 0.6]
    )


def test_tokens_are_shown_as_they_are(figure_of):
    """Dollar signs and backslashes are no mathematics; a long token is cut with an ellipsis."""
    tree = DraftTree([0, 1, 2], [-1, 0, 0])
    figure = figure_of(tree, ["$x^2$", "\\n", "a" * 40], exit_weights(tree), title="$5 and $6")
    figure.canvas.draw()
    shown = [text.get_text() for text in figure.axes[0].texts if not text.get_parse_math()]
    assert {"$x^2$", "\\n", "a" * 13 + "…", "$5 and $6"} <= set(shown)


def test_the_same_round_gives_the_same_bytes(figure_of, tmp_path):
    """Two drawings are the same file, with no program version inside; the folder is made."""
    tree = random_tree(17, 4)
    files = [
        save_png(figure_of(tree, ["t"] * 17, exit_weights(tree), [0], bonus="b"), tmp_path / "figures" / f"{i}.png")
        for i in range(2)
    ]
    first, second = (file.read_bytes() for file in files)
    assert first == second and first.startswith(b"\x89PNG") and b"Software" not in first


def test_what_does_not_fit_is_refused(figure_of):
    """Too few labels, too many weights, and a bonus token that would hang nowhere."""
    tree = DraftTree([0, 1], [-1, 0])
    with pytest.raises(ValueError, match="needs as many labels and w; got 1"):
        figure_of(tree, ["r"], torch.ones(2))
    with pytest.raises(ValueError, match=r"got 2, \(3,\)"):
        figure_of(tree, ["r", "a"], torch.ones(3))
    with pytest.raises(ValueError, match="there is no path"):
        figure_of(tree, ["r", "a"], torch.ones(2), bonus="b")


def test_the_tree_as_text():
    """One line per node in reading order, indented by depth, `*` on the path."""
    tree = DraftTree([0, 1, 2, 3], [-1, 0, 0, 1])
    text = tree_text(
        tree, list("rabc"), torch.tensor([1, 0.5, 0.3, 0.25]), torch.tensor([0.2, 0.25, 0.3, 0.25]), [0, 1]
    )
    assert text.splitlines() == [
        "     P      w",
        " 1.000  0.200 * r",
        " 0.500  0.250 *   a",
        " 0.250  0.250       c",
        " 0.300  0.300     b",
    ]


def test_pictures_beside_each_other_are_the_pictures(figure_of):
    """Pixel for pixel, tops level, white where one is shorter; the single figures are closed."""
    figures = []
    for nodes in (4, 12):
        tree = random_tree(nodes, 1)
        figures.append(figure_of(tree, [f"t{i}" for i in range(nodes)], exit_weights(tree)))
    images = []
    for figure in figures:
        figure.canvas.draw()
        images.append(np.asarray(figure.canvas.buffer_rgba()).copy())
    joined = beside(figures)
    assert plt.get_fignums() == [joined.number]
    joined.canvas.draw()
    pixels = np.asarray(joined.canvas.buffer_rgba())
    x = 0
    for image in images:
        rows, columns = image.shape[:2]
        assert (pixels[:rows, x : x + columns] == image).mean() > 0.99
        assert (pixels[rows:, x : x + columns] == 255).all()
        x += columns
    assert x == pixels.shape[1]
