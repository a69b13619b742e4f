"""Rows that are made when asked for: the same rows as made all at once, each made once, few products."""

import pytest
import torch

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.rows import WAVE, DeferredRows, TensorRows, as_rows

VOCABULARY, HIDDEN = 13, 5


class Head:
    """A head that remembers which nodes it was given, product by product."""

    def __init__(self, seed: int):
        self.weight = torch.randn(HIDDEN, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.products: list[list[int]] = []

    def __call__(self, hidden, nodes):
        self.products.append(nodes.tolist())
        return hidden @ self.weight


@pytest.fixture(params=range(6))
def made(request):
    """A random tree, its rows all at once, deferred ones, and their head."""
    generator = torch.Generator().manual_seed(request.param)
    size = 1 + 7 * request.param
    tree = DraftTree(range(size), [-1, *(int(torch.randint(i, (), generator=generator)) for i in range(1, size))])
    hidden, head = torch.randn(len(tree), HIDDEN, generator=generator), Head(request.param)
    return tree, TensorRows(hidden @ head.weight), DeferredRows(tree, hidden, VOCABULARY, head), head


def test_any_order_of_questions_gives_the_same_rows(made):
    """A walk, a selection, everything: equal to the rows made at once, and no node goes through the head twice."""
    tree, plain, deferred, head = made
    order = torch.randperm(len(tree), generator=torch.Generator().manual_seed(0)).tolist()
    for node in order[::2]:
        torch.testing.assert_close(deferred[node], plain[node])
    torch.testing.assert_close(deferred.take(order), plain.take(order))
    torch.testing.assert_close(deferred.all(), plain.all())
    passed = [node for product in head.products for node in product]
    assert sorted(passed) == list(range(len(tree))) and deferred.shape == plain.shape


def test_a_leaf_comes_alone_and_an_inner_node_with_the_best_below_it(made):
    """The first nodes of its subtree in builder order, as many as a product takes; none from elsewhere in the tree."""
    tree, _, deferred, head = made
    for node in range(len(tree)):
        before = set(deferred.made)
        if node in before:
            continue
        deferred[node]
        below = [n for n in range(len(tree)) if tree.ancestors[n, node] and n != node and n not in before]
        assert head.products[-1] == [node, *below[: WAVE - 1]]


def test_a_selection_is_one_product_and_an_empty_one_has_the_shape(made):
    """The internal nodes of a tree cost one product, whatever was there before adds none; of a root alone, none."""
    tree, plain, deferred, head = made
    torch.testing.assert_close(deferred.take(tree.internal), plain.take(tree.internal))
    assert head.products == [tree.internal] and deferred.take([]).shape == (0, VOCABULARY)
    deferred.take(tree.internal)
    assert [product for product in head.products if product] == [tree.internal][: len(tree.internal)]


def test_a_tensor_is_wrapped_and_rows_are_not():
    """bfloat16 logits come back as float32; wrapped rows are the very same object."""
    rows = as_rows(torch.randn(3, VOCABULARY).bfloat16())
    assert rows[0].dtype == torch.float32 and as_rows(rows) is rows and rows.device.type == "cpu"
    deferred = DeferredRows(DraftTree([0], [-1]), torch.randn(1, HIDDEN), VOCABULARY, Head(0))
    assert as_rows(deferred) is deferred
