"""DraftTree: what it derives, and what it refuses."""

import random

import pytest
import torch
from tree_reference import children_of

from tevlib.trees.draft_tree import DraftTree


def random_parents(rng, nodes):
    return [-1, *(rng.randrange(max(0, node - 6), node) for node in range(1, nodes))]


def test_ancestor_matrix_by_hand():
    """The mask is the ancestor-or-self closure and nothing else: unrelated nodes stay hidden (vllm#17560)."""
    tree = DraftTree([0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2])
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 0, 1],
    ]
    assert tree.ancestors.int().tolist() == expected


def test_derived_quantities_on_random_trees():
    """Depths, levels, children, paths and ancestors agree with walking the parents, on 500 random trees."""
    rng = random.Random(0)
    for _ in range(500):
        parents = random_parents(rng, rng.randint(1, 14))
        tokens = [rng.randrange(1000) * 20 + node for node in range(len(parents))]  # distinct
        tree = DraftTree(tokens, parents)
        assert tree.children == children_of(parents)
        assert tree.internal == [node for node, kids in enumerate(tree.children) if kids]
        assert sorted(node for level in tree.levels for node in level.tolist()) == list(range(len(tree)))
        for node in range(len(tree)):
            chain = [node]
            while parents[chain[0]] >= 0:
                chain.insert(0, parents[chain[0]])
            assert tree.node_path(node) == chain
            assert tree.path(node) == [tokens[step] for step in chain[1:]]
            assert tree.depths[node] == len(chain) - 1
            assert node in tree.levels[len(chain) - 1].tolist()
            assert tree.ancestors[node].nonzero().flatten().tolist() == sorted(chain)
            if node:
                assert tree.child(parents[node], tokens[node]) == node
        assert tree.height == int(tree.depths.max())
        assert tree.child(0, 999_999) is None


def test_long_chain():
    """A chain of 1,024 nodes: depth 1,023 and a lower-triangular mask."""
    tree = DraftTree([0] * 1024, list(range(-1, 1023)))
    assert tree.height == 1023
    assert torch.equal(tree.ancestors, torch.ones(1024, 1024).tril().bool())


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([7, 0, 0], [-1, 0, 0], "node 2: duplicate sibling of node 1"),  # would make rho = 0 at p = .5
        ([7, 1, 2], [-1, 2, 1], "node 1: its ancestors form a cycle 1 -> 2 -> 1"),
        ([7, 1], [-1, 1], "node 1: its ancestors form a cycle 1 -> 1"),
        ([7, 1, 2], [-1, 2, 0], "node 1: parent 2 does not come before it"),
        ([7, 1, 2], [-1, 0, -1], "node 2: a second root"),
        ([7, 1, 2], [-1, 0, 5], "node 2: parent 5 is not a node"),
        ([7, 1, 2], [-1, 0, -3], "node 2: parent -3 is not a node"),
        ([7, 1], [0, 0], "node 0 is the root and must have parent -1"),
        ([7, 1, 2], [-1, 0], "differ in length: 3 and 2"),
        ([7, -4], [-1, 0], "node 1: token -4 is negative"),
        ([], [], "at least the root"),
        ([[7]], [-1], "must be a vector"),
        ([7.5], [-1], "must be integers"),
    ],
)
def test_malformed_trees_are_refused(tokens, parents, message):
    """Duplicate siblings, cycles, two roots, missing parents (sglang#36196) and bad lengths name the node at fault."""
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents)


def test_a_child_whose_parent_was_dropped_is_refused():
    """Ancestor closure: taking node 1 out of [-1, 0, 1, 2] without renumbering leaves a node without a parent."""
    with pytest.raises(ValueError, match="node 1: its ancestors form a cycle 1 -> 1"):
        DraftTree([0, 6, 7], [-1, 1, 2])


def test_scores_are_checked():
    """Scores must be one float per node, none of them NaN."""
    with pytest.raises(ValueError, match="one per node"):
        DraftTree([0, 1], [-1, 0], [0.0])
    with pytest.raises(ValueError, match="node 1: score is NaN"):
        DraftTree([0, 1], [-1, 0], [0.0, float("nan")])


def test_prefix_and_device():
    """`prefix(n)` keeps the first n nodes with their scores; sizes outside 1..N are refused; `to` keeps all."""
    tree = DraftTree([9, 1, 2, 3], [-1, 0, 1, 0], [0.0, -1.0, -2.0, -3.0])
    smaller = tree.prefix(3).to("cpu")
    assert (smaller.tokens.tolist(), smaller.parents.tolist()) == ([9, 1, 2], [-1, 0, 1])
    assert smaller.scores.tolist() == [0.0, -1.0, -2.0]
    for n in (0, 5, -1):
        with pytest.raises(ValueError, match=f"got {n}"):
            tree.prefix(n)
    with pytest.raises(IndexError):
        tree.path(4)
