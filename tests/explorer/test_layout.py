"""The layout: nothing overlaps, nothing crosses, whatever the tree."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tevlib.explorer.layout import BOX, CHARACTER, GAP, ROW, packed_rows, tidy_layout, tidy_rows
from tevlib.explorer.scene import children_of


@st.composite
def parent_lists(draw, most=60):
    nodes = draw(st.integers(1, most))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]


def overlap(a, b) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def check(parents, labels):
    place = tidy_layout(children_of(parents, [0.0] * len(parents)), labels)
    boxes = [place.box(node) for node in range(len(parents))]
    cells = {(place.depth[node], place.row[node]) for node in range(len(parents))}
    assert len(cells) == len(parents)
    assert ROW > BOX and all(b - a > GAP - 0.2 for a, b in edges_of_columns(place))
    for node, parent in enumerate(parents[1:], start=1):
        assert place.depth[node] == place.depth[parent] + 1
    return place, boxes


def edges_of_columns(place):
    right = [x + w for x, w in zip(place.left, place.width, strict=True)]
    return list(zip(right, place.left[1:], strict=False))


@given(parent_lists(), st.integers(0, 10**6))
def test_boxes_do_not_overlap_and_edges_do_not_cross(parents, seed):
    """Any tree, labels of any width: no two boxes meet, and in a gap no edge changes sides with another.

    Edges are the same S between the same two lines, so two of them cross exactly if their ends are in another order
    than their starts; edges of one parent start together.
    """
    rng = random.Random(seed)
    labels = ["x" * rng.randrange(1, 15) for _ in parents]
    place, boxes = check(parents, labels)
    assert not any(overlap(a, b) for a, b in itertools.combinations(boxes, 2))
    edges = {}
    for node, parent in enumerate(parents[1:], start=1):
        edges.setdefault(place.depth[node], []).append((place.row[parent], place.row[node]))
    for gap in edges.values():
        for (a, a_end), (b, b_end) in itertools.combinations(gap, 2):
            assert (a - b) * (a_end - b_end) >= 0 and a_end != b_end
            assert a == b or min(a, a_end) > max(b, b_end) or min(b, b_end) > max(a, a_end)


@pytest.mark.parametrize("nodes", [1, 2, 256, 1024])
@pytest.mark.parametrize("shape", ["random", "chain", "star"])
def test_sizes_from_1_to_1024(nodes, shape):
    """Chains, stars and random trees of up to 1,024 nodes keep one node a cell and columns a gap apart."""
    rng = random.Random(nodes)
    parent = {"random": lambda v: rng.randrange(max(0, v - 40), v), "chain": lambda v: v - 1, "star": lambda v: 0}
    parents = [-1, *(parent[shape](node) for node in range(1, nodes))]
    place, _ = check(parents, ["label"] * nodes)
    rows = {"chain": 1, "star": max(nodes - 1, 1)}.get(shape)
    assert rows is None or max(place.row) + 1 == rows


def test_wide_characters_get_wide_boxes():
    """A box with Chinese text is twice as wide as one with as many Latin letters: labels stay inside."""
    latin, chinese = (tidy_layout([[]], [label]).width[0] for label in ("abcd", "世界世界"))
    assert chinese - latin == pytest.approx(4 * CHARACTER, abs=0.1)


@given(parent_lists())
def test_packing_never_takes_more_rows(parents):
    """Packed upwards, a tree is at most as tall as with one block of rows for every subtree; first children go on."""
    children = children_of(parents, [0.0] * len(parents))
    packed, blocks = packed_rows(children), tidy_rows(children)
    assert max(packed) <= max(blocks) and min(packed) == 0
    assert all(packed[below[0]] == packed[node] for node, below in enumerate(children) if below)
    assert all(a < b for below in children for a, b in itertools.pairwise(packed[child] for child in below))
